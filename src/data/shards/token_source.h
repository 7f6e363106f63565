#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/shards/shard.h"
#include "data/tokenizer/tokenizer.h"
#include "io/checked_files.h"

namespace octet {

// A long sequence of token ids, readable at any place: pieces (memory-mapped files, or ids in memory) one after
// another. Immutable and cheap to copy; copies share the mapping. Reading is thread-safe. Opening a source checks
// every id against the vocabulary.
class TokenSource {
 public:
  TokenSource() = default;
  static TokenSource from_ids(std::vector<int32_t> ids, std::string name, int64_t vocab_size);

  // Maps a token file: an llm.c shard (uint16 or uint32) or raw uint16 as nanoGPT writes; see docs/formats.md.
  static TokenSource from_token_file(const std::string& path, int64_t vocab_size);
  // Several, one after another. The ids of a file that has not changed since its last check (io/checked_files.h) are not
  // read again, unless checks.verify() is true.
  static TokenSource from_token_files(std::span<const std::string> paths, int64_t vocab_size,
                                      FileChecks& checks);

  // A shard's documents one after another; its mask says which tokens are targets. A document's first token never is
  // one, because the token before it belongs to another document.
  static TokenSource from_shard(const Shard& shard, int64_t vocab_size);

  // The documents one after another, each followed by the tokenizer's eos if it has one.
  static TokenSource from_documents(std::span<const std::string_view> documents, std::string name,
                                    const Tokenizer& tokenizer, int64_t vocab_size);

  // Documents of text files, in order, read as data/record_reader.h reads them: a document ends at the end of its
  // file or at the marker "<|endoftext|>". Empty documents are skipped. Invalid UTF-8 is an Error; with `skip_bad`
  // the document is skipped instead, and a warning gives the number.
  static TokenSource from_text_files(std::span<const std::string> paths, const Tokenizer& tokenizer,
                                     int64_t vocab_size, bool skip_bad = false);

  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // out = ids [first, first + out.size()), which must lie inside the source. An id that is not in the vocabulary is an
  // Error: the file was damaged after its last check.
  void read(int64_t first, std::span<int32_t> out) const;

  // Whether some tokens are not targets, and which: 1 where predicting the token counts in the loss.
  bool has_mask() const { return has_mask_; }
  void read_targets(int64_t first, std::span<uint8_t> out) const;

  void append(const TokenSource& other);

  // (front, tail): the tail is the last `share` (0 to 1) of every piece. So a dataset of several files holds out a part
  // of every file. The two never overlap and together are the whole. The tail has `share` of all tokens, rounded down.
  std::pair<TokenSource, TokenSource> split_tail(double share) const;

  // Distinguishes sources by lengths and content (of files without checksums, if they are large, only of parts).
  uint64_t hash() const;

  // The pieces' names and lengths, for messages.
  std::string describe() const;

 private:
  struct Piece {
    std::shared_ptr<const void> owner;
    const std::byte* data;  // count ids of `width` bytes, little-endian
    int width;              // 2 or 4
    int64_t count;
    std::string name;
    int64_t data_offset;     // of `data` in the file, for messages
    uint64_t checksum;       // of the content, or of parts of it
    int64_t vocab_size = 0;  // all ids are below it
    // For a shard: the piece begins at its token number `first`.
    int64_t first = 0;
    const std::byte* mask = nullptr;  // a bit per token of the shard; null: all are targets
    // Documents' first tokens, which are not targets; empty if the mask says so already.
    std::span<const uint64_t> document_starts = {};
  };

  static Piece map_token_file(const std::string& path, int64_t vocab_size);
  static void check_ids(const Piece& piece);
  void append(Piece piece);
  template <class Out, class Function>
  void for_each_part(int64_t first, std::span<Out> out, Function&& part) const;

  std::vector<Piece> pieces_;
  std::vector<int64_t> starts_;  // of the pieces in the source
  int64_t size_ = 0;
  bool has_mask_ = false;
};

}  // namespace octet
