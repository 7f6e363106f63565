#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/records/example.h"
#include "io/env.h"

namespace octet {

// octet's token shards: ids, where documents start, and which tokens are targets. docs/formats.md has the bytes.

constexpr const char* kShardExtension = ".octet";
constexpr const char* kPrepareAgain =
    "remove the folder and prepare the dataset again";  // what helps against damage

// A file of a prepared dataset is not what was written. Failures to read it are other Errors.
class DamagedShard : public Error {
 public:
  using Error::Error;
};

// Properties that all shards of a dataset share.
struct ShardKind {
  int64_t vocab_size = 0;  // ids are below it; up to 65536 they take two bytes, otherwise four
  uint64_t tokenizer_hash = 0;
  int token_width() const { return vocab_size <= 65536 ? 2 : 4; }
};

struct ShardCounts {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t targets = 0;  // a document's first token is never one: no token comes before it
  bool operator==(const ShardCounts&) const = default;
  ShardCounts& operator+=(const ShardCounts& other);
};

// Writes a shard piece by piece. Tokens are written at once; index and mask (8 bytes per document, a bit per token)
// are written by finish(). Without finish() the file is not a shard.
class ShardWriter {
 public:
  ShardWriter(Sink& sink, const ShardKind& kind);

  void append(const Document& document);  // not empty; Error for an id outside the vocabulary
  void finish();

  const ShardCounts& counts() const { return counts_; }
  int64_t bytes() const { return bytes_; }    // written so far
  uint32_t checksum() const { return crc_; }  // CRC-32C of them

 private:
  void write(std::span<const std::byte> bytes);
  void flush_tokens();
  uint32_t write_section(std::span<const std::byte> bytes);  // with its padding; returns its checksum

  Sink& sink_;
  ShardKind kind_;
  ShardCounts counts_;
  std::vector<std::byte> tokens_;  // not written yet
  uint32_t tokens_crc_ = 0;
  int64_t tokens_bytes_ = 0;
  std::vector<uint64_t> starts_;  // of each document, in tokens
  std::vector<std::byte> mask_;   // a bit per token
  int64_t bytes_ = 0;
  uint32_t crc_ = 0;
};

enum class ShardCheck {
  Whole,  // sizes, order of documents, checksums and every id
  Ends,   // only header and trailer, for a file that was checked before: what lies between is not read
};

// A memory-mapped shard. Immutable, cheap to copy, safe to read from many threads.
class Shard {
 public:
  Shard() = default;
  // Throws Error naming the file, the byte offset, what is there and what was expected.
  static Shard open(Env& env, const std::string& path, ShardCheck check = ShardCheck::Whole);
  static Shard parse(std::shared_ptr<const void> owner, std::span<const std::byte> bytes,
                     const std::string& name, ShardCheck check = ShardCheck::Whole);

  const ShardKind& kind() const { return kind_; }
  const ShardCounts& counts() const { return counts_; }
  const std::string& name() const { return name_; }
  bool has_mask() const { return mask_ != nullptr; }

  int64_t document_start(int64_t document) const { return static_cast<int64_t>(starts_[document]); }
  int64_t document_length(int64_t document) const {
    return static_cast<int64_t>(starts_[document + 1] - starts_[document]);
  }

  // Places are token numbers from the start of the shard. read() throws if a damaged file has an id that cannot be.
  void read(int64_t first, std::span<int32_t> out) const;
  void read_targets(int64_t first, std::span<uint8_t> out) const;  // 1 or 0; all 1 without a mask
  bool any_target(int64_t first, int64_t count) const;

  // The raw sections, for TokenSource.
  const std::byte* token_bytes() const { return tokens_; }
  int64_t token_bytes_offset() const;
  const std::byte* mask_bytes() const { return mask_; }
  std::span<const uint64_t> document_starts() const {
    return {starts_, static_cast<size_t>(counts_.documents)};
  }
  uint64_t checksum() const { return checksum_; }  // of all sections
  // CRC-32C of the whole file, put together from the checksums of its parts.
  uint32_t file_checksum() const { return file_checksum_; }
  const std::shared_ptr<const void>& owner() const { return owner_; }

 private:
  void require_tokens(int64_t first, int64_t count) const;

  std::shared_ptr<const void> owner_;
  ShardKind kind_;
  ShardCounts counts_;
  std::string name_;
  const std::byte* tokens_ = nullptr;
  const uint64_t* starts_ = nullptr;  // (documents + 1)
  const std::byte* mask_ = nullptr;   // null: all are targets
  uint64_t checksum_ = 0;
  uint32_t file_checksum_ = 0;
};

}  // namespace octet
