#include "data/datasets/prepared_list.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/shards/manifest.h"
#include "io/sealed_json.h"

namespace octet {
namespace {

constexpr const char* kFormat = "octet dataset list";
constexpr int64_t kVersion = 1;

}  // namespace

bool has_prepared_list(const std::string& folder) {
  std::error_code error;
  const std::string path = join_path(folder, kPreparedListName);
  if (folder.empty() || !std::filesystem::is_regular_file(path, error)) return false;
  // Other programs may use the name, too.
  return posix_env().read_text(path).find(fmt::format("\"format\": \"{}\"", kFormat)) != std::string::npos;
}

std::vector<DatasetPart> read_prepared_list(const std::string& folder) {
  const std::string path = join_path(folder, kPreparedListName);
  const nlohmann::json object = parse_sealed_json(posix_env().read_text(path), path);
  require(object.is_object() && object.contains("format") && object["format"] == kFormat,
          "[{}] is not the list of an octet dataset", path);
  const auto version = json_field<int64_t>(object, "version", path);
  require(version == kVersion, "[{}] has format version {}, this program reads version {}", path, version,
          kVersion);
  std::vector<DatasetPart> parts;
  for (const nlohmann::json& entry : json_field<nlohmann::json::array_t>(object, "datasets", path)) {
    require(entry.is_object(), "[{}] \"datasets\" holds something that is not an object", path);
    const auto name = json_field<std::string>(entry, "folder", path);
    require(!name.empty() && name[0] != '.' && name.find('/') == name.npos,
            "[{}] lists \"{}\", which is not the name of a folder in its folder", path, name);
    DatasetPart& part = parts.emplace_back();
    part.path = join_path(folder, name);
    require(posix_env().is_directory(part.path), "[{}] lists \"{}\", but there is no such folder in {}", path,
            name, folder);
    if (entry.contains("weight")) part.weight = json_field<double>(entry, "weight", path);
  }
  require(!parts.empty(), "[{}] lists no dataset", path);
  return parts;
}

void write_prepared_list(Env& env, const std::string& folder, const std::vector<DatasetPart>& parts) {
  nlohmann::ordered_json object = {
      {"format", kFormat}, {"version", kVersion}, {"datasets", nlohmann::ordered_json::array()}};
  for (const DatasetPart& part : parts) {
    nlohmann::ordered_json entry = {{"folder", part.path}};
    if (part.weight > 0) entry["weight"] = part.weight;
    object["datasets"].push_back(std::move(entry));
  }
  write_file_atomically(env, folder, kPreparedListName, seal_json(object));
}

}  // namespace octet
