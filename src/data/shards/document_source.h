#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/shards/shard.h"

namespace octet {

// The documents of several shards under one numbering. Immutable, cheap to copy, safe for many threads.
class DocumentSource {
 public:
  DocumentSource() = default;
  // The shards must be of one kind. With `vocab_size`, the model's, ids must be below it.
  DocumentSource(std::vector<Shard> shards, int64_t vocab_size);

  bool empty() const { return counts_.documents == 0; }
  const ShardCounts& counts() const { return counts_; }
  const std::vector<Shard>& shards() const { return shards_; }

  // Calls visit(document, length) for all documents in order. A plan needs this; it avoids a search per document.
  template <class Function>
  void for_each_length(Function&& visit) const {
    int64_t document = 0;
    for (const Shard& shard : shards_) {
      for (int64_t i = 0; i < shard.counts().documents; ++i) {
        // A shard that was checked long ago may have been damaged since.
        const int64_t start = shard.document_start(i), length = shard.document_length(i);
        require(
            start >= 0 && length >= 0 && length <= shard.counts().tokens - start,
            "[{}] document {} has {} tokens from token {} on, but the shard has {} tokens: it is damaged; {}",
            shard.name(), i, length, start, shard.counts().tokens, kPrepareAgain);
        visit(document++, length);
      }
    }
  }

  // tokens = the document's tokens from place `first` on; is_target likewise, with the same length.
  void read(int64_t document, int64_t first, std::span<int32_t> tokens, std::span<uint8_t> is_target) const;
  bool any_target(int64_t document, int64_t first, int64_t count) const;

 private:
  struct Place {
    const Shard* shard;
    int64_t document;  // within the shard
  };
  Place find(int64_t document) const;

  std::vector<Shard> shards_;
  std::vector<int64_t> first_documents_;  // of each shard
  ShardCounts counts_;
};

}  // namespace octet
