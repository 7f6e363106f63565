#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "data/records/example_reader.h"
#include "data/shards/manifest.h"

namespace octet {

struct PrepareOptions {
  std::string output;                         // the folder of the dataset
  std::string tokenizer_name;                 // for the manifest
  int64_t shard_tokens = int64_t{100} << 20;  // a shard ends after the document that reaches this
  double eval_split = 0;                      // share of the tokens that go into the validation split
  uint64_t seed = 0;                          // of that choice
  int64_t max_examples = 0;                   // 0: all
  int threads = 0;                            // 0: one per core; the result is the same
  // Everything else that determines the shards: the input and how it is read. A folder with other options is refused.
  nlohmann::ordered_json identity;
  // The folder is octet's own, named by what its shards are made of. While another process prepares it, this one waits instead
  // of failing, and shards whose manifest is gone are made again instead of kept.
  bool in_cache = false;
};

struct PrepareProgress {
  double share = 0;  // of the input
  int64_t documents = 0, tokens = 0;
};

struct PrepareHooks {
  std::function<void(const PrepareProgress&)> progress;  // now and then
  std::function<bool()> stop;                            // true: stop; may be null, as may progress
};

struct PrepareResult {
  DatasetManifest manifest;
  bool whole =
      false;  // false: stopped; all shards written so far are whole, and the same call continues from them
  bool was_there = false;        // there was nothing to do
  int64_t examples_skipped = 0;  // in shards from an earlier call
  std::string first_skip_error;  // of the first bad record that was skipped
};

// The options that a manifest keeps and compares.
nlohmann::ordered_json prepare_identity(const PrepareOptions& options);

// Reads, tokenizes and writes shards and manifest. Shards are whole or absent whenever the process dies. A second
// call with the same options continues after the last whole shard, and the files are the same, byte for byte, as
// those of an uninterrupted call. A folder with other options, another tokenizer or other files is refused.
PrepareResult prepare_dataset(Env& env, const PrepareOptions& options, const Tokenizer& tokenizer,
                              const std::function<std::unique_ptr<DatasetReader>()>& open_reader,
                              const PrepareHooks& hooks = {});

}  // namespace octet
