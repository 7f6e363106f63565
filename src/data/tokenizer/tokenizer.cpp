#include "data/tokenizer/tokenizer.h"

#include <filesystem>

#include "base/error.h"
#include "data/tokenizer/bytes_tokenizer.h"
#include "io/hub.h"

namespace octet {
namespace {

// The id before the '@'; the revision is what follows it.
std::string id_of(const std::string& name) {
  return name.substr(0, name.find('@'));
}

}  // namespace

bool is_hub_tokenizer(const std::string& name) {
  return name != "bytes" && !std::filesystem::exists(name) && is_hub_name(id_of(name));
}

std::string local_tokenizer(const std::string& name) {
  if (!is_hub_tokenizer(name)) return name;
  HubRequest request{.kind = HubKind::Model, .id = id_of(name), .files = hub_tokenizer_files()};
  if (name.size() > request.id.size()) request.revision = name.substr(request.id.size() + 1);
  try {
    return hub_snapshot(request);
  } catch (const Error& error) {
    fail_config("[tokenizer] there is no file or folder '{}', and reading it from the hub failed: {}", name,
                error.what());
  }
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_unique<BytesTokenizer>();
  const std::string path = local_tokenizer(name);
  if (!std::filesystem::exists(path)) {
    fail_config(
        "[tokenizer] '{}' does not exist: expected bytes, a tokenizer file or folder, or a hub id such as org/name",
        name);
  }
  return load_tokenizer(path);
}

}  // namespace octet
