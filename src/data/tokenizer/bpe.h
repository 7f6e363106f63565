#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

// Memory of one thread, to encode words without allocating: working arrays, and the ids of words seen before.
// The memory is fixed (2 MiB plus the longest word): a new word takes the place of one with the same hash.
class BpeScratch {
 public:
  BpeScratch() : slots_(kSlots) {}

 private:
  friend class BpeModel;
  static constexpr size_t kSlots = size_t{1} << 15;
  static constexpr size_t kMaxWord = 31;  // longer words are not cached
  static constexpr size_t kMaxIds = 7;

  using Key = std::array<uint64_t, 4>;  // the word's bytes, zeros, and its length in the last byte
  struct alignas(64) Slot {             // one cache line; the key of an empty slot matches no word
    Key key{};
    std::array<int32_t, kMaxIds> ids{};
    uint32_t count = 0;
  };
  static Key make_key(const char* word, size_t length, size_t readable);
  static size_t slot_of(const Key& key);

  std::vector<Slot> slots_;
  // One element per symbol of the word being merged; the heap holds rank << 32 | position.
  std::vector<int32_t> ids_, next_, previous_;
  std::vector<uint32_t> ranks_;
  std::vector<uint64_t> heap_;
};

// Byte pair encoding: a vocabulary of byte strings and ranked merges of two of them into a third. Words are merged from
// single bytes or, as SentencePiece does it, from characters.
class BpeModel {
 public:
  struct Merge {
    int32_t left, right, result;
    uint32_t rank;  // the lowest is merged first; of equal ranks the leftmost
  };

  // Ids for a character that has no token: those of its bytes or, where one of them has none, `unknown`. -1: none.
  struct Fallback {
    std::array<int32_t, 256> bytes;
    int32_t unknown = -1;
  };

  // tokens[id]: the bytes of a token that the model can produce; empty if there is none. Of two merges
  // of the same pair the later one counts. With `ignore_merges`, a word that is itself
  // a token becomes that token, whatever the merges say. With `characters`, words are merged from characters.
  BpeModel(std::vector<std::string> tokens, const std::vector<Merge>& merges, bool ignore_merges,
           std::optional<Fallback> characters = std::nullopt);

  // Appends the ids of a word. `readable` >= word.size(): bytes that may be read from word.data() on, so that the
  // cache can compare whole machine words. A byte or a character without any id is an Error.
  void encode_word(std::string_view word, size_t readable, BpeScratch& scratch,
                   std::vector<int32_t>& out) const;

  std::optional<int32_t> find(std::string_view bytes) const;

 private:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  struct Pair {
    uint64_t key = UINT64_MAX;  // left << 32 | right
    uint32_t rank = kNoRank;
    int32_t result = -1;
  };

  const Pair* find_pair(int32_t left, int32_t right) const;
  uint32_t rank_of(int32_t left, int32_t right) const;
  void insert_pair(uint64_t key, uint32_t rank, int32_t result);
  void insert_token(std::string_view bytes, int32_t id);
  size_t start_word(std::string_view word, BpeScratch& scratch) const;
  size_t start_characters(std::string_view word, BpeScratch& scratch) const;
  size_t merge_short(size_t count, BpeScratch& scratch) const;
  size_t merge_long(size_t symbols, BpeScratch& scratch) const;

  std::vector<std::string> tokens_;
  std::vector<int32_t> token_table_;  // open addressing by the hash of the bytes; -1: empty
  std::vector<Pair> pairs_;           // open addressing
  int pair_shift_ = 0;
  std::array<int32_t, 256> byte_ids_{};  // what a word that is this byte starts with
  std::optional<Fallback> characters_;
  // (256 * 256) of the tokens of two single bytes: where every word starts
  std::vector<uint32_t> byte_pair_ranks_;
  bool ignore_merges_ = false;
};

}  // namespace octet
