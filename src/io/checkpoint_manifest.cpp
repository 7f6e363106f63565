#include "io/checkpoint_manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/crc32c.h"
#include "io/sealed_json.h"

namespace octet {
namespace {

using nlohmann::json;

constexpr int64_t kMaxNumber = int64_t{1} << 53;

uint32_t file_crc32c(Env& env, const std::string& path) {
  ReadableFile file = env.open_read(path);
  std::vector<std::byte> buffer(static_cast<size_t>(std::clamp<int64_t>(file.size(), 4096, 1 << 20)));
  uint32_t crc = 0;
  while (const size_t got = file.read(buffer)) crc = crc32c(buffer.data(), got, crc);
  return crc;
}

}  // namespace

std::string manifest_text(const Checkpoint& checkpoint) {
  nlohmann::ordered_json manifest = {{"format", "octet checkpoint"},
                                     {"version", kCheckpointVersion},
                                     {"step", checkpoint.step},
                                     {"sequence", checkpoint.sequence},
                                     {"saved_at", checkpoint.saved_at},
                                     {"precision", checkpoint.summary.precision},
                                     {"loss", checkpoint.summary.loss},  // not finite: null
                                     {"files", nlohmann::ordered_json::array()}};
  for (const CheckpointFile& file : checkpoint.files) {
    manifest["files"].push_back(
        {{"name", file.name}, {"size", file.size}, {"crc32c", crc_text(file.crc32c)}});
  }
  return seal_json(manifest);
}

Checkpoint parse_manifest(std::string_view text, const std::string& place) {
  const json manifest = parse_sealed_json(text, place);
  require(text_in(manifest, "format") == "octet checkpoint",
          "[{}] is not the manifest of an octet checkpoint", place);
  const auto version = json_field<int64_t>(manifest, "version", place);
  require(version == kCheckpointVersion, "[{}] has format version {}, this program reads version {}", place,
          version, kCheckpointVersion);

  Checkpoint checkpoint;
  checkpoint.step = json_field<int64_t>(manifest, "step", place);
  checkpoint.sequence = json_field<int64_t>(manifest, "sequence", place);
  checkpoint.saved_at = json_field<int64_t>(manifest, "saved_at", place);
  // These numbers are incremented later, so they must leave room.
  for (const int64_t number : {checkpoint.step, checkpoint.sequence}) {
    require(number >= 0 && number < kMaxNumber, "[{}] has step or sequence {}, expected 0 to {}", place,
            number, kMaxNumber);
  }
  checkpoint.summary.precision = json_field<std::string>(manifest, "precision", place);
  if (const auto loss = manifest.find("loss"); loss != manifest.end() && loss->is_number()) {
    checkpoint.summary.loss = loss->get<double>();
  }
  int64_t total = 0;
  for (const json& entry : json_field<json::array_t>(manifest, "files", place)) {
    require(entry.is_object(), "[{}] \"files\" holds something that is not an object", place);
    CheckpointFile file = {json_field<std::string>(entry, "name", place),
                           json_field<int64_t>(entry, "size", place),
                           parse_crc(json_field<std::string>(entry, "crc32c", place), place)};
    require(is_plain_name(file.name), "[{}] lists \"{}\", which is not the name of a file in its folder",
            place, file.name);
    // Sizes are added up later, too.
    require(file.size >= 0 && file.size < kMaxNumber - total, "[{}] {} has {} bytes, expected 0 to {}", place,
            file.name, file.size, kMaxNumber - total);
    total += file.size;
    checkpoint.files.push_back(std::move(file));
  }
  return checkpoint;
}

std::string check_files(Env& env, const Checkpoint& checkpoint, bool verify) {
  for (const CheckpointFile& file : checkpoint.files) {
    const std::string path = join_path(checkpoint.path, file.name);
    try {
      if (!env.exists(path)) return fmt::format("{} is missing", file.name);
      if (const int64_t size = env.file_size(path); size != file.size) {
        return fmt::format("{} has {} bytes, the manifest says {}", file.name, size, file.size);
      }
      if (verify) {
        if (const uint32_t crc = file_crc32c(env, path); crc != file.crc32c) {
          return fmt::format("{} has checksum {:08x}, the manifest says {:08x}", file.name, crc, file.crc32c);
        }
      }
    } catch (const IoError& error) {
      return fmt::format("{} cannot be read: {}", file.name, error.what());
    }
  }
  return "";
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name[0] != '.' && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

}  // namespace octet
