#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "model/config.h"
#include "model/parameters.h"

namespace octet {

// The frozen base of a LoRA run. Its checkpoints do not hold the base, so they say which one it was: adapters on other
// weights would be another model. docs/formats.md describes base.json and what is hashed.
struct BaseIdentity {
  std::string path;  // for messages only: as given, absolute where it is a folder; "" for random weights
  std::string config_sha256;
  std::string weights_sha256;  // for random weights: of what they are drawn from
  bool operator==(const BaseIdentity&) const = default;
};

// The base in the Hugging Face folder `folder`, which users gave as `path`. Reads every byte of the tensors in `table`,
// with all threads. Missing and misshapen tensors are an Error.
BaseIdentity identity_of_folder(const std::string& folder, const std::string& path,
                                std::span<const ParameterSpec> table);
// The base whose weights ParameterSet::initialise draws.
BaseIdentity identity_of_random(const ModelConfig& config, uint64_t seed);

// "" if it is the same base, wherever it is now. Otherwise the text of a refusal.
std::string differences(const BaseIdentity& saved, const BaseIdentity& now);

std::string to_json(const BaseIdentity& base);
BaseIdentity base_identity_from_json(std::string_view text, const std::string& place);

}  // namespace octet
