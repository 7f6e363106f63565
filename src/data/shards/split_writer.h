#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "data/shards/manifest.h"

namespace octet {

inline constexpr const char* kTrainName = "train";
inline constexpr const char* kValidationName = "validation";
// "train_00012.octet" or "validation_00000.octet".
bool is_shard_name(std::string_view name);

// Writes the documents of one split into shards of a folder, each under a temporary name until it is whole.
class SplitWriter {
 public:
  // `written`: the whole shards that already exist.
  SplitWriter(Env& env, std::string folder, std::string name, const ShardKind& kind, int64_t shard_tokens,
              SplitManifest written);
  ~SplitWriter();  // removes a shard that is not whole

  // Whether the document has a token to predict; add() skips others.
  static bool predicts(const Document& document);
  void add(const Document& document);
  bool is_full() const;                 // the shard has enough tokens
  void end_shard(int64_t end_example);  // if one is begun; examples before `end_example` are in whole shards
  void finish(int64_t examples);        // ends the last shard

  const SplitManifest& written() const { return written_; }  // whole shards

 private:
  struct Open;
  void begin_shard();

  Env& env_;
  std::string folder_, name_;
  ShardKind kind_;
  int64_t shard_tokens_;
  SplitManifest written_;
  std::unique_ptr<Open> open_;  // the shard being written
  // Lengths of the documents since the last whole shard.
  LengthStatistics lengths_;
  int64_t dropped_ = 0;
};

}  // namespace octet
