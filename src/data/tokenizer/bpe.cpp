#include "data/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <utility>

#include "base/error.h"
#include "data/tokenizer/unicode.h"

namespace octet {
namespace {

static_assert(std::endian::native == std::endian::little, "word keys are masked as little-endian integers");

constexpr uint64_t kMix = 0x9E3779B97F4A7C15;
// Up to this size a scan for the lowest rank is faster than a heap.
constexpr size_t kShortWord = 40;

uint64_t hash_bytes(std::string_view bytes) {
  uint64_t hash = bytes.size() * kMix;
  while (bytes.size() >= 8) {
    uint64_t chunk;
    std::memcpy(&chunk, bytes.data(), 8);
    hash = (hash ^ chunk) * kMix;
    hash ^= hash >> 29;
    bytes.remove_prefix(8);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, bytes.data(), bytes.size());
  hash = (hash ^ rest) * kMix;
  return hash ^ hash >> 32;
}

uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

}  // namespace

BpeScratch::Key BpeScratch::make_key(const char* word, size_t length, size_t readable) {
  Key key{};
  if (readable >= sizeof(Key)) {
    std::memcpy(key.data(), word, sizeof(Key));
    const size_t whole = length / 8;
    key[whole] &= (uint64_t{1} << length % 8 * 8) - 1;
    for (size_t i = whole + 1; i < key.size(); ++i) key[i] = 0;
  } else {
    std::memcpy(key.data(), word, length);
  }
  key[3] |= uint64_t{length} << 56;
  return key;
}

size_t BpeScratch::slot_of(const Key& key) {
  const uint64_t low = (key[0] ^ std::rotl(key[1], 23)) * kMix;
  const uint64_t high = (key[2] ^ std::rotl(key[3], 31)) * 0xD6E8FEB86659FD93;
  return static_cast<size_t>(((low ^ low >> 32) + (high ^ high >> 29)) * kMix >> (64 - 15));
}

BpeModel::BpeModel(std::vector<std::string> tokens, const std::vector<Merge>& merges, bool ignore_merges,
                   std::optional<Fallback> characters)
    : tokens_(std::move(tokens)), characters_(characters), ignore_merges_(ignore_merges) {
  token_table_.assign(std::bit_ceil(tokens_.size() * 2 + 2), -1);
  byte_ids_.fill(-1);
  for (size_t id = 0; id < tokens_.size(); ++id) {
    const std::string& bytes = tokens_[id];
    if (bytes.empty()) continue;
    insert_token(bytes, static_cast<int32_t>(id));
    if (bytes.size() == 1) byte_ids_[static_cast<unsigned char>(bytes[0])] = static_cast<int32_t>(id);
  }
  if (characters_) {
    for (size_t byte = 0; byte < 256; ++byte) {
      if (byte_ids_[byte] < 0) byte_ids_[byte] = characters_->bytes[byte];
      if (byte_ids_[byte] < 0) byte_ids_[byte] = characters_->unknown;
    }
  }

  const size_t slots = std::bit_ceil(merges.size() * 2 + 2);
  pairs_.assign(slots, Pair{});
  pair_shift_ = 64 - std::countr_zero(slots);
  for (const Merge& merge : merges) insert_pair(pair_key(merge.left, merge.right), merge.rank, merge.result);
  byte_pair_ranks_.assign(256 * 256, kNoRank);
  for (size_t left = 0; left < 256; ++left) {
    for (size_t right = 0; right < 256; ++right) {
      if (byte_ids_[left] >= 0 && byte_ids_[right] >= 0)
        byte_pair_ranks_[left * 256 + right] = rank_of(byte_ids_[left], byte_ids_[right]);
    }
  }
}

void BpeModel::insert_token(std::string_view bytes, int32_t id) {
  const size_t mask = token_table_.size() - 1;
  size_t slot = hash_bytes(bytes) & mask;
  while (token_table_[slot] >= 0) slot = (slot + 1) & mask;
  token_table_[slot] = id;
}

std::optional<int32_t> BpeModel::find(std::string_view bytes) const {
  const size_t mask = token_table_.size() - 1;
  for (size_t slot = hash_bytes(bytes) & mask; token_table_[slot] >= 0; slot = (slot + 1) & mask) {
    const int32_t id = token_table_[slot];
    if (tokens_[static_cast<size_t>(id)] == bytes) return id;
  }
  return std::nullopt;
}

void BpeModel::insert_pair(uint64_t key, uint32_t rank, int32_t result) {
  size_t slot = key * kMix >> pair_shift_;
  while (pairs_[slot].rank != kNoRank && pairs_[slot].key != key) slot = (slot + 1) & (pairs_.size() - 1);
  pairs_[slot] = {key, rank, result};
}

const BpeModel::Pair* BpeModel::find_pair(int32_t left, int32_t right) const {
  const uint64_t key = pair_key(left, right);
  for (size_t slot = key * kMix >> pair_shift_;; slot = (slot + 1) & (pairs_.size() - 1)) {
    if (pairs_[slot].key == key) return &pairs_[slot];
    if (pairs_[slot].rank == kNoRank) return nullptr;
  }
}

uint32_t BpeModel::rank_of(int32_t left, int32_t right) const {
  const Pair* pair = find_pair(left, right);
  return pair ? pair->rank : kNoRank;
}

void BpeModel::encode_word(std::string_view word, size_t readable, BpeScratch& scratch,
                           std::vector<int32_t>& out) const {
  BpeScratch::Slot* slot = nullptr;
  BpeScratch::Key key;
  if (word.size() <= BpeScratch::kMaxWord) {
    if (word.empty()) return;
    key = BpeScratch::make_key(word.data(), word.size(), readable);
    slot = &scratch.slots_[BpeScratch::slot_of(key)];
    if (slot->key == key) {
      out.insert(out.end(), slot->ids.data(), slot->ids.data() + slot->count);
      return;
    }
  }
  if (ignore_merges_) {
    if (const std::optional<int32_t> id = find(word)) {
      out.push_back(*id);
      if (slot) {
        slot->key = key;
        slot->ids[0] = *id;
        slot->count = 1;
      }
      return;
    }
  }
  const size_t symbols = start_word(word, scratch);
  const size_t count = symbols <= kShortWord ? merge_short(symbols, scratch) : merge_long(symbols, scratch);
  out.insert(out.end(), scratch.ids_.begin(), scratch.ids_.begin() + static_cast<ptrdiff_t>(count));
  if (slot && count <= BpeScratch::kMaxIds) {
    slot->key = key;
    std::copy_n(scratch.ids_.begin(), count, slot->ids.begin());
    slot->count = static_cast<uint32_t>(count);
  }
}

// Fills ids_ with the tokens of the single bytes or characters and ranks_[i] with the rank of merging symbols i and
// i + 1. Returns how many symbols there are.
size_t BpeModel::start_word(std::string_view word, BpeScratch& scratch) const {
  require(word.size() < INT32_MAX, "[tokenizer] a word of {} bytes, at most {} are supported", word.size(),
          INT32_MAX - 1);
  if (scratch.ids_.size() < word.size()) {
    scratch.ids_.resize(word.size());
    scratch.ranks_.resize(word.size());
  }
  if (characters_) return start_characters(word, scratch);
  const auto* bytes = reinterpret_cast<const unsigned char*>(word.data());
  for (size_t i = 0; i < word.size(); ++i) {
    const int32_t id = byte_ids_[bytes[i]];
    if (id < 0) fail("[tokenizer] the vocabulary has no token for byte {:#04x}", bytes[i]);
    scratch.ids_[i] = id;
    scratch.ranks_[i] =
        i + 1 < word.size() ? byte_pair_ranks_[size_t{bytes[i]} * 256 + bytes[i + 1]] : kNoRank;
  }
  return word.size();
}

size_t BpeModel::start_characters(std::string_view word, BpeScratch& scratch) const {
  const auto* bytes = reinterpret_cast<const unsigned char*>(word.data());
  size_t count = 0;
  const auto add = [&](int32_t id) {
    if (count > 0) scratch.ranks_[count - 1] = rank_of(scratch.ids_[count - 1], id);
    scratch.ids_[count++] = id;
  };
  for (size_t i = 0; i < word.size();) {
    const Utf8Char c = decode_utf8(word.data() + i, word.size() - i);
    if (c.length == 1) {
      const int32_t id = byte_ids_[bytes[i]];
      if (id < 0) fail("[tokenizer] the vocabulary has no token for byte {:#04x}", bytes[i]);
      const bool follows_byte = count > 0 && i > 0 && bytes[i - 1] < 0x80 && bytes[i] < 0x80;
      if (follows_byte) {
        scratch.ranks_[count - 1] = byte_pair_ranks_[size_t{bytes[i - 1]} * 256 + bytes[i]];
        scratch.ids_[count++] = id;
      } else {
        add(id);
      }
      ++i;
      continue;
    }
    const std::string_view character = word.substr(i, c.length);
    i += c.length;
    if (const std::optional<int32_t> id = find(character)) {
      add(*id);
      continue;
    }
    const auto byte_id = [&](char byte) { return characters_->bytes[static_cast<unsigned char>(byte)]; };
    if (std::ranges::all_of(character, [&](char byte) { return byte_id(byte) >= 0; })) {
      for (const char byte : character) add(byte_id(byte));
    } else if (characters_->unknown >= 0) {
      add(characters_->unknown);
    } else {
      fail("[tokenizer] the vocabulary has no token for the character '{}' (U+{:04X})", character, c.point);
    }
  }
  if (count > 0) scratch.ranks_[count - 1] = kNoRank;
  return count;
}

// Both leave the ids at the front of scratch.ids_ and return how many there are.
size_t BpeModel::merge_short(size_t count, BpeScratch& scratch) const {
  int32_t* ids = scratch.ids_.data();
  uint32_t* ranks = scratch.ranks_.data();
  while (count > 1) {
    const size_t best = static_cast<size_t>(std::min_element(ranks, ranks + count - 1) - ranks);
    if (ranks[best] == kNoRank) break;
    ids[best] = find_pair(ids[best], ids[best + 1])->result;
    std::copy(ids + best + 2, ids + count, ids + best + 1);
    std::copy(ranks + best + 2, ranks + count, ranks + best + 1);
    --count;
    ranks[best] = best + 1 < count ? rank_of(ids[best], ids[best + 1]) : kNoRank;
    if (best > 0) ranks[best - 1] = rank_of(ids[best - 1], ids[best]);
  }
  return count;
}

size_t BpeModel::merge_long(size_t symbols, BpeScratch& scratch) const {
  const auto size = static_cast<int32_t>(symbols);
  std::vector<int32_t>&ids = scratch.ids_, &next = scratch.next_, &previous = scratch.previous_;
  std::vector<uint32_t>& ranks = scratch.ranks_;
  std::vector<uint64_t>& heap = scratch.heap_;
  next.resize(symbols);
  previous.resize(symbols);
  heap.clear();
  const auto at = [](auto& values, int32_t i) -> auto& {
    return values[static_cast<size_t>(i)];
  };
  const auto entry = [](uint32_t rank, int32_t i) { return uint64_t{rank} << 32 | static_cast<uint32_t>(i); };
  for (int32_t i = 0; i < size; ++i) {
    at(next, i) = i + 1;
    at(previous, i) = i - 1;
    if (at(ranks, i) != kNoRank) heap.push_back(entry(at(ranks, i), i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());

  // An entry is out of date if its rank is not the current rank at its position. An old entry whose rank is also that
  // of the new pair is as good as the new pair's own.
  const auto update = [&](int32_t i) {
    const int32_t right = at(next, i);
    const uint32_t rank = right < size ? rank_of(at(ids, i), at(ids, right)) : kNoRank;
    at(ranks, i) = rank;
    if (rank == kNoRank) return;
    heap.push_back(entry(rank, i));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    const uint64_t top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const auto i = static_cast<int32_t>(top & UINT32_MAX);
    if (at(ranks, i) != top >> 32) continue;
    const int32_t right = at(next, i), after = at(next, right);
    at(ids, i) = find_pair(at(ids, i), at(ids, right))->result;
    at(ranks, right) = kNoRank;
    at(next, i) = after;
    if (after < size) at(previous, after) = i;
    update(i);
    if (at(previous, i) >= 0) update(at(previous, i));
  }
  size_t count = 0;
  for (int32_t i = 0; i < size; i = at(next, i)) ids[count++] = at(ids, i);
  return count;
}

}  // namespace octet
