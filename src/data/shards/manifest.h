#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/shards/shard.h"
#include "io/checked_files.h"

namespace octet {

// The manifest that `octet prepare` writes next to the shards; docs/formats.md describes the file.

constexpr const char* kManifestName = "manifest.json";  // of a whole dataset
constexpr const char* kProgressName =
    "progress.json";  // of an unfinished dataset: the same with fewer shards

struct ShardEntry {
  std::string name;
  int64_t size = 0;
  uint32_t crc32c = 0;
  ShardCounts counts;
  // Input examples up to here are in this shard or earlier ones (or belong to another split).
  int64_t end_example = 0;
  bool operator==(const ShardEntry&) const = default;
};

struct LengthStatistics {
  // counts[i]: documents of 2^i to 2^(i+1) - 1 tokens.
  std::array<int64_t, 40> counts{};
  int64_t longest = 0;
  void add(int64_t length);
  LengthStatistics& operator+=(const LengthStatistics& other);
  bool operator==(const LengthStatistics&) const = default;
};

struct SplitManifest {
  std::vector<ShardEntry> shards;
  ShardCounts counts;  // of all shards
  LengthStatistics lengths;
  int64_t dropped = 0;  // documents without a token to predict
  int64_t end_example() const { return shards.empty() ? 0 : shards.back().end_example; }
  bool operator==(const SplitManifest&) const = default;
};

struct DatasetManifest {
  std::string tokenizer;  // as it was named
  uint64_t tokenizer_hash = 0;
  int64_t vocab_size = 0;
  nlohmann::ordered_json options;  // everything else that determines the shards; compared as a whole
  SplitManifest train, validation;
  int64_t examples = 0;                    // read from the input
  std::map<std::string, int64_t> skipped;  // skipped records, by reason
  std::string format, chat_template;       // detected or given
  std::string columns;                     // "columns prompt, response"; empty: not known

  bool operator==(const DatasetManifest&) const = default;
};

std::string dataset_manifest_text(const DatasetManifest& manifest);
// `place` names the file in errors.
DatasetManifest parse_dataset_manifest(std::string_view text, const std::string& place);

// Whether the folder holds a whole prepared dataset.
bool has_dataset_manifest(Env& env, const std::string& folder);
// Whether it holds an unfinished one.
bool has_dataset_progress(Env& env, const std::string& folder);
DatasetManifest read_dataset_manifest(Env& env, const std::string& path);
// Writes the file under a temporary name, syncs it, and renames it.
void write_file_atomically(Env& env, const std::string& folder, const std::string& name,
                           std::string_view text);

// DamagedShard unless every shard of the split is there with its size. `list` is the file that names them.
void check_shard_sizes(Env& env, const std::string& folder, const SplitManifest& split,
                       const char* list = kManifestName);

// The shards of a split, mapped. A shard that is new or has changed since the last check (io/checked_files.h) is read
// whole, on several threads, and compared with the manifest and its own checksums. Of all others only the ends are read
// and compared. With checks.verify() all shards are read. An error names every damaged shard that was read, one per line.
std::vector<Shard> open_split(Env& env, const std::string& folder, const DatasetManifest& manifest,
                              const SplitManifest& split, FileChecks& checks);

}  // namespace octet
