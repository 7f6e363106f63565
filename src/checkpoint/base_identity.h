#pragma once
#include <string>
#include <vector>
#include "model/parameters.h"
namespace octet {
struct BaseIdentity {
  std::string path, config_sha256, weights_sha256;
};
inline BaseIdentity identity_of_folder(const std::string&, const std::string&,
                                       const std::vector<ParameterSpec>&) {
  return {};
}
inline BaseIdentity identity_of_random(const ModelConfig&, uint64_t) {
  return {};
}
inline std::string to_json(const BaseIdentity&) {
  return "{}";
}
inline BaseIdentity base_identity_from_json(const std::string&, const std::string&) {
  return {};
}
inline std::string differences(const BaseIdentity&, const BaseIdentity&) {
  return "";
}
}  // namespace octet
