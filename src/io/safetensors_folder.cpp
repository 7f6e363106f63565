#include <nlohmann/json.hpp>

#include "base/json.h"
#include "io/safetensors.h"
#include "io/safetensors_detail.h"

namespace octet {
namespace {

using Fault = SafetensorsFault;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// Only a file of this folder: an untrusted index must not reach the rest of the disk.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

// Shard -> number of tensors that the index maps to it; `shard_of` gets the other direction.
std::map<std::string, size_t> read_index(Env& env, const std::string& path,
                                         std::map<std::string, std::string, std::less<>>& shard_of) {
  const nlohmann::json index = parse_json(env.read_text(path, kSafetensorsMaxHeader), path,
                                          {.max_depth = 64, .refuse_duplicate_keys = true});
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object()) {
    fail_safetensors(Fault::BadIndex, "[{}] has no object \"weight_map\"", path);
  }
  std::map<std::string, size_t> shards;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !is_plain_file_name(file.get_ref<const std::string&>())) {
      const std::string value =
          file.is_string() ? quoted_name(file.get_ref<const std::string&>()) : file.type_name();
      fail_safetensors(Fault::BadIndex,
                       "[{}] tensor {} is mapped to {}, expected the name of a file in the same folder", path,
                       quoted_name(tensor), value);
    }
    const auto& name = file.get_ref<const std::string&>();
    ++shards[name];
    shard_of.emplace(tensor, name);
  }
  return shards;
}

}  // namespace

SafetensorsFolder SafetensorsFolder::open(Env& env, const std::string& directory) {
  SafetensorsFolder folder;
  folder.directory_ = directory;
  if (const std::string single = join_path(directory, kSingle); env.exists(single)) {
    folder.files_.push_back(SafetensorsFile::open(env, single));
    return folder;
  }
  const std::string index_path = join_path(directory, kIndex);
  require(env.exists(index_path), "[{}] holds neither {} nor {}", directory, kSingle, kIndex);

  std::map<std::string, std::string, std::less<>> shard_of;
  const std::map<std::string, size_t> shards = read_index(env, index_path, shard_of);
  for (const auto& [name, mapped] : shards) {
    const std::string path = join_path(directory, name);
    if (!env.exists(path)) {
      fail_safetensors(Fault::ShardContent, "[{}] is missing; {} maps {} tensors to it", path, kIndex,
                       mapped);
    }
    SafetensorsFile file = SafetensorsFile::open(env, path);
    for (const SafeTensor& tensor : file.tensors()) {
      const auto found = shard_of.find(tensor.name);
      if (found == shard_of.end() || found->second != name) {
        fail_safetensors(Fault::ShardContent, "[{}] holds tensor {}, which {} maps to {}", path,
                         quoted_name(tensor.name), kIndex,
                         found == shard_of.end() ? "no file" : quoted_name(found->second));
      }
      shard_of.erase(found);
    }
    folder.files_.push_back(std::move(file));
  }
  // Every tensor found was removed: what is left is mapped to a shard that does not hold it.
  if (!shard_of.empty()) {
    const auto& [tensor, shard] = *shard_of.begin();
    fail_safetensors(Fault::ShardContent, "[{}] has no tensor {}, which {} maps to it",
                     join_path(directory, shard), quoted_name(tensor), kIndex);
  }
  return folder;
}

const SafeTensor* SafetensorsFolder::find(std::string_view name) const {
  for (const SafetensorsFile& file : files_) {
    if (const SafeTensor* const tensor = file.find(name)) return tensor;
  }
  return nullptr;
}

const SafeTensor& SafetensorsFolder::at(std::string_view name) const {
  if (const SafeTensor* const tensor = find(name)) return *tensor;
  fail_safetensors(Fault::NoSuchTensor, "[{}] has no tensor {}", directory_, quoted_name(name));
}

size_t SafetensorsFolder::tensor_count() const {
  size_t count = 0;
  for (const SafetensorsFile& file : files_) count += file.tensors().size();
  return count;
}

}  // namespace octet
