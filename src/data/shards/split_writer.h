#pragma once

#include <memory>
#include <optional>
#include <string>

#include "data/shards/manifest.h"

namespace octet {

// Writes the documents of one split into shards of a folder, each under a temporary name until it is whole.
class SplitWriter {
 public:
  // `written`: the whole shards that already exist.
  SplitWriter(Env& env, std::string folder, std::string name, const ShardKind& kind, int64_t shard_tokens,
              SplitManifest written);
  ~SplitWriter();  // removes a shard that is not whole

  // Whether the document has a token to predict; add() skips others.
  static bool predicts(const Document& document);
  // True if this document ended a shard.
  bool add(const Document& document, int64_t example);
  void finish(int64_t examples);  // ends the last shard

  bool has_documents() const { return open_ || written_.counts.documents > 0; }
  const SplitManifest& written() const { return written_; }  // whole shards
  int64_t first_wanted() const { return written_.end_example(); }

 private:
  struct Open;
  void begin_shard();
  void end_shard(int64_t end_example);

  Env& env_;
  std::string folder_, name_;
  ShardKind kind_;
  int64_t shard_tokens_;
  SplitManifest written_;
  std::unique_ptr<Open> open_;  // the shard being written
  // Of the documents since the last whole shard.
  LengthStatistics lengths_;
  int64_t dropped_ = 0;
};

}  // namespace octet
