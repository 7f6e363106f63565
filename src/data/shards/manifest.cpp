#include "data/shards/manifest.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <numeric>
#include <optional>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/for_all.h"
#include "io/sealed_json.h"
#include "io/temporary_file.h"

namespace octet {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kFormat = "octet dataset";
constexpr int64_t kVersion = 1;
constexpr int64_t kMaxCount = int64_t{1} << 53;

int64_t count_field(const json& object, const char* key, const std::string& place) {
  const auto value = json_field<int64_t>(object, key, place);
  require(value >= 0 && value <= kMaxCount, "[{}] \"{}\" is {}, expected 0 to {}", place, key, value,
          kMaxCount);
  return value;
}

ordered_json counts_json(const ShardCounts& counts) {
  return {{"documents", counts.documents}, {"tokens", counts.tokens}, {"targets", counts.targets}};
}

ShardCounts parse_counts(const json& object, const std::string& place) {
  return {count_field(object, "documents", place), count_field(object, "tokens", place),
          count_field(object, "targets", place)};
}

ordered_json split_json(const SplitManifest& split) {
  ordered_json result = counts_json(split.counts);
  result["dropped"] = split.dropped;
  result["longest"] = split.lengths.longest;
  const auto& counts = split.lengths.counts;
  const auto last = std::find_if(counts.rbegin(), counts.rend(), [](int64_t count) { return count != 0; });
  result["lengths"] = std::vector<int64_t>(counts.begin(), last.base());
  result["shards"] = ordered_json::array();
  for (const ShardEntry& shard : split.shards) {
    ordered_json entry = {{"name", shard.name}, {"size", shard.size}, {"crc32c", crc_text(shard.crc32c)}};
    entry.update(counts_json(shard.counts));
    entry["end_example"] = shard.end_example;
    result["shards"].push_back(std::move(entry));
  }
  return result;
}

SplitManifest parse_split(const json& object, const std::string& place) {
  require(object.is_object(), "[{}] a split is not an object", place);
  SplitManifest split;
  split.counts = parse_counts(object, place);
  split.dropped = count_field(object, "dropped", place);
  split.lengths.longest = count_field(object, "longest", place);
  const auto lengths = json_field<json::array_t>(object, "lengths", place);
  require(lengths.size() <= split.lengths.counts.size(), "[{}] {} lengths, expected at most {}", place,
          lengths.size(), split.lengths.counts.size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    const std::optional<int64_t> length = integer_of(lengths[i]);
    require(length && *length >= 0 && *length <= kMaxCount, "[{}] \"lengths\" holds {}, expected 0 to {}",
            place, lengths[i].dump(), kMaxCount);
    split.lengths.counts[i] = *length;
  }
  ShardCounts sum;
  for (const json& entry : json_field<json::array_t>(object, "shards", place)) {
    require(entry.is_object(), "[{}] \"shards\" holds something that is not an object", place);
    ShardEntry shard;
    shard.name = json_field<std::string>(entry, "name", place);
    require(!shard.name.empty() && shard.name[0] != '.' && shard.name.find('/') == shard.name.npos &&
                shard.name.find('\0') == shard.name.npos,
            "[{}] lists \"{}\", which is not the name of a file in its folder", place, shard.name);
    shard.size = count_field(entry, "size", place);
    shard.crc32c = parse_crc(json_field<std::string>(entry, "crc32c", place), place);
    shard.counts = parse_counts(entry, place);
    shard.end_example = count_field(entry, "end_example", place);
    sum = {checked_add(sum.documents, shard.counts.documents), checked_add(sum.tokens, shard.counts.tokens),
           checked_add(sum.targets, shard.counts.targets)};
    split.shards.push_back(std::move(shard));
  }
  require(sum == split.counts, "[{}] the shards have {} tokens in {} documents, the split says {} in {}",
          place, sum.tokens, sum.documents, split.counts.tokens, split.counts.documents);
  return split;
}

template <class... Args>
void require_sound(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw DamagedShard(fmt::format(format, std::forward<Args>(args)...));
}

void check_entry(const Shard& shard, const ShardEntry& entry, const DatasetManifest& manifest,
                 const std::string& place) {
  require_sound(shard.counts() == entry.counts,
                "[{}] {} tokens in {} documents with {} targets, the manifest says {} in {} with {}", place,
                shard.counts().tokens, shard.counts().documents, shard.counts().targets, entry.counts.tokens,
                entry.counts.documents, entry.counts.targets);
  require_sound(shard.kind().tokenizer_hash == manifest.tokenizer_hash &&
                    shard.kind().vocab_size == manifest.vocab_size,
                "[{}] was made with tokenizer {:016x} of {} ids, the manifest says {:016x} of {}", place,
                shard.kind().tokenizer_hash, shard.kind().vocab_size, manifest.tokenizer_hash,
                manifest.vocab_size);
  require_sound(shard.file_checksum() == entry.crc32c,
                "[{}] has checksum {}, the manifest says {}: it is sound, but not the file that was prepared",
                place, crc_text(shard.file_checksum()), crc_text(entry.crc32c));
}

}  // namespace

void LengthStatistics::add(int64_t length) {
  ++counts[static_cast<size_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(length, 1)))) - 1];
  longest = std::max(longest, length);
}

LengthStatistics& LengthStatistics::operator+=(const LengthStatistics& other) {
  for (size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
  longest = std::max(longest, other.longest);
  return *this;
}

std::string dataset_manifest_text(const DatasetManifest& manifest) {
  ordered_json result = {{"format", kFormat},
                         {"version", kVersion},
                         {"tokenizer", manifest.tokenizer},
                         {"tokenizer_hash", fmt::format("{:016x}", manifest.tokenizer_hash)},
                         {"vocab_size", manifest.vocab_size},
                         {"options", manifest.options},
                         {"record_format", manifest.format},
                         {"chat_template", manifest.chat_template},
                         {"columns", manifest.columns},
                         {"examples", manifest.examples},
                         {"skipped", ordered_json::object()}};
  for (const auto& [reason, count] : manifest.skipped) result["skipped"][reason] = count;
  result["train"] = split_json(manifest.train);
  result["validation"] = split_json(manifest.validation);
  return seal_json(result);
}

DatasetManifest parse_dataset_manifest(std::string_view text, const std::string& place) {
  const json object = [&] {
    try {
      return parse_sealed_json(text, place);
    } catch (const Error& error) {
      fail("{}; {}", error.what(), kPrepareAgain);
    }
  }();
  require(object.is_object() && object.contains("format") && object["format"] == kFormat,
          "[{}] is not the manifest of an octet dataset", place);
  const auto version = json_field<int64_t>(object, "version", place);
  require(version == kVersion, "[{}] has format version {}, this program reads version {}", place, version,
          kVersion);
  DatasetManifest manifest;
  manifest.tokenizer = json_field<std::string>(object, "tokenizer", place);
  const auto hash = json_field<std::string>(object, "tokenizer_hash", place);
  require(hash.size() == 16 && hash.find_first_not_of("0123456789abcdef") == hash.npos,
          "[{}] \"tokenizer_hash\" is \"{}\", expected sixteen hexadecimal digits", place, hash);
  manifest.tokenizer_hash = std::stoull(hash, nullptr, 16);
  manifest.vocab_size = count_field(object, "vocab_size", place);
  // Parsed a second time, to keep the order of the keys.
  manifest.options = ordered_json::parse(text)["options"];
  manifest.format = json_field<std::string>(object, "record_format", place);
  manifest.chat_template = json_field<std::string>(object, "chat_template", place);
  if (object.contains("columns")) manifest.columns = json_field<std::string>(object, "columns", place);
  manifest.examples = count_field(object, "examples", place);
  for (const auto& [reason, count] : json_field<json::object_t>(object, "skipped", place)) {
    const std::optional<int64_t> number = integer_of(count);
    require(number.has_value(), "[{}] \"skipped\" holds {}, expected integers", place, count.dump());
    manifest.skipped.emplace(reason, *number);
  }
  manifest.train = parse_split(json_field<json>(object, "train", place), place);
  manifest.validation = parse_split(json_field<json>(object, "validation", place), place);
  return manifest;
}

namespace {

bool is_manifest(Env& env, const std::string& path) {
  if (!env.exists(path) || env.is_directory(path)) return false;
  // Other programs also write a manifest.json.
  return env.read_text(path).find(fmt::format("\"format\": \"{}\"", kFormat)) != std::string::npos;
}

}  // namespace

bool has_dataset_manifest(Env& env, const std::string& folder) {
  return is_manifest(env, join_path(folder, kManifestName));
}

bool has_dataset_progress(Env& env, const std::string& folder) {
  return is_manifest(env, join_path(folder, kProgressName));
}

DatasetManifest read_dataset_manifest(Env& env, const std::string& path) {
  return parse_dataset_manifest(env.read_text(path), path);
}

void write_file_atomically(Env& env, const std::string& folder, const std::string& name,
                           std::string_view text) {
  const std::string temporary = join_path(folder, fmt::format(".tmp-{}", name));
  WritableFile file = create_anew(env, temporary);
  file.append(text);
  file.sync();
  file.close();
  env.rename(temporary, join_path(folder, name));
  env.sync_directory(folder);
}

namespace {

// One message per line.
std::string list_of_damage(std::vector<std::string> damage) {
  constexpr size_t kMost = 20;
  const size_t all = damage.size();
  if (all > kMost) damage.resize(kMost);
  std::string text = fmt::format("{}", fmt::join(damage, "\n"));
  if (all > kMost) text += fmt::format("\nand {} more damaged files", all - kMost);
  return text;
}

void check_shard_size(Env& env, const std::string& path, const ShardEntry& entry, const char* list) {
  require_sound(env.exists(path), "[{}] is missing, and {} lists it", path, list);
  const int64_t size = env.file_size(path);
  require_sound(size == entry.size, "[{}] has {} bytes, {} says {}", path, size, list, entry.size);
}

DamagedShard with_advice(const DamagedShard& damage) {
  const std::string text = damage.what();
  const bool is_list = text.find('\n') != text.npos;
  return DamagedShard(fmt::format("{}{}{}", text, is_list ? "\n" : "; ", kPrepareAgain));
}

std::vector<Shard> open_shards(Env& env, const std::string& folder, const DatasetManifest& manifest,
                               const SplitManifest& split, FileChecks& checks) {
  std::vector<Shard> shards(split.shards.size());
  const auto stamp_of = [&](const ShardEntry& entry) {
    const std::string path = join_path(folder, entry.name);
    check_shard_size(env, path, entry, kManifestName);
    return file_stamp(path);
  };
  const auto open = [&](size_t i, ShardCheck check) {
    const ShardEntry& entry = split.shards[i];
    const std::string path = join_path(folder, entry.name);
    Shard shard = Shard::open(env, path, check);
    check_entry(shard, entry, manifest, path);
    shards[i] = std::move(shard);
  };
  CheckedFiles& memory = checks.memory(folder, CheckedFiles::Place::Folder);
  const auto open_known = [&](const std::vector<size_t>& wanted) {
    constexpr size_t kReaders = 16;  // two pages per shard: a disk serves many such reads at once
    std::vector<uint8_t> is_known(wanted.size(), 0);
    for_all(
        wanted.size(),
        [&](size_t i) {
          const ShardEntry& entry = split.shards[wanted[i]];
          // The memory may be of an older dataset in the same folder: what it has found must be what is expected now.
          if (checks.verify() || memory.find(entry.name, stamp_of(entry)) != uint64_t{entry.crc32c}) return;
          open(wanted[i], ShardCheck::Ends);
          is_known[i] = 1;
        },
        kReaders);
    std::vector<size_t> unknown;
    for (size_t i = 0; i < wanted.size(); ++i)
      if (is_known[i] == 0) unknown.push_back(wanted[i]);
    return unknown;
  };
  std::vector<size_t> wanted(shards.size());
  std::iota(wanted.begin(), wanted.end(), size_t{0});
  wanted = open_known(wanted);
  if (wanted.empty()) return shards;

  memory.begin_checks();
  wanted = open_known(wanted);
  std::vector<std::optional<FileStamp>> checked(wanted.size());
  const auto remember = [&] {
    for (size_t i = 0; i < wanted.size(); ++i) {
      const ShardEntry& entry = split.shards[wanted[i]];
      if (checked[i])
        memory.remember(entry.name, *checked[i], entry.crc32c);
      else
        memory.forget(entry.name);
    }
    memory.save();
  };
  const Clock::time_point start = Clock::now();
  std::vector<std::string> damage(wanted.size());
  std::vector<std::exception_ptr> failures(wanted.size());
  for_all(wanted.size(), [&](size_t i) {
    try {
      const FileStamp stamp = stamp_of(split.shards[wanted[i]]);
      open(wanted[i], ShardCheck::Whole);
      checked[i] = stamp;
    } catch (const DamagedShard& error) {
      damage[i] = error.what();
    } catch (...) {
      failures[i] = std::current_exception();
    }
  });
  std::erase(damage, "");
  std::erase(failures, nullptr);
  if (!damage.empty() || !failures.empty()) remember();
  if (!damage.empty()) throw DamagedShard(list_of_damage(damage));
  if (!failures.empty()) std::rethrow_exception(failures.front());
  FileChecks::Amount read{.files = std::ssize(wanted), .seconds = seconds_since(start)};
  for (const size_t i : wanted) read.bytes += split.shards[i].size;
  checks.add(read);
  remember();
  return shards;
}

}  // namespace

void check_shard_sizes(Env& env, const std::string& folder, const SplitManifest& split, const char* list) {
  try {
    for (const ShardEntry& shard : split.shards)
      check_shard_size(env, join_path(folder, shard.name), shard, list);
  } catch (const DamagedShard& damage) {
    throw with_advice(damage);
  }
}

std::vector<Shard> open_split(Env& env, const std::string& folder, const DatasetManifest& manifest,
                              const SplitManifest& split, FileChecks& checks) {
  try {
    return open_shards(env, folder, manifest, split, checks);
  } catch (const DamagedShard& damage) {
    throw with_advice(damage);
  }
}

}  // namespace octet
