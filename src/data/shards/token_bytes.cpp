#include "data/shards/token_bytes.h"

#include <algorithm>

#include "base/error.h"

namespace octet {
namespace {

// The first id that is not below `limit`, or count. Maxima of blocks first: that loop is vectorised.
template <class Id>
int64_t first_not_below(const Id* ids, int64_t count, uint64_t limit) {
  constexpr int64_t kBlock = 1 << 14;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, count);
    Id most = 0;
    for (int64_t i = begin; i < end; ++i) most = std::max(most, ids[i]);
    if (most < limit) continue;
    return std::find_if(ids + begin, ids + end, [limit](Id id) { return id >= limit; }) - ids;
  }
  return count;
}

template <class Id>
uint32_t largest(const Id* ids, int64_t count) {
  Id most = 0;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, ids[i]);
  return most;
}

template <class Id>
void widen(const std::byte* data, int64_t first, std::span<int32_t> out) {
  const Id* ids = reinterpret_cast<const Id*>(data) + first;
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int32_t>(ids[i]);
}

// The first of the ids that is outside of the vocabulary, or count.
int64_t first_outside(const std::byte* data, int width, int64_t count, int64_t vocab_size) {
  require(vocab_size > 0, "[dataset] vocabulary of {}, expected at least 1", vocab_size);
  const uint64_t limit = static_cast<uint64_t>(vocab_size);
  if (width == 2 && limit > UINT16_MAX) return count;
  return width == 2 ? first_not_below(reinterpret_cast<const uint16_t*>(data), count, limit)
                    : first_not_below(reinterpret_cast<const uint32_t*>(data), count, limit);
}

uint32_t id_at(const std::byte* data, int width, int64_t place) {
  return width == 2 ? reinterpret_cast<const uint16_t*>(data)[place]
                    : reinterpret_cast<const uint32_t*>(data)[place];
}

}  // namespace

void check_token_bytes(const std::byte* data, int width, int64_t count, int64_t vocab_size,
                       const std::string& name, int64_t data_offset) {
  const int64_t place = first_outside(data, width, count, vocab_size);
  if (place == count) return;
  fail("[dataset] {}: id {} at token {} (byte offset {}), expected ids below the vocabulary of {}", name,
       id_at(data, width, place), place, data_offset + place * width, vocab_size);
}

void check_tokens_again(const std::byte* data, int width, int64_t count, int64_t vocab_size,
                        const std::string& name, int64_t data_offset, int64_t first) {
  const int64_t place = first_outside(data, width, count, vocab_size);
  if (place == count) return;
  fail(
      "[dataset] {}: id {} at token {} (byte offset {}), expected ids below the vocabulary of {}: the file was damaged "
      "after its last check. Run again with --verify to check all files",
      name, id_at(data, width, place), first + place, data_offset + place * width, vocab_size);
}

uint32_t largest_token(const std::byte* data, int width, int64_t count) {
  if (width == 2) return largest(reinterpret_cast<const uint16_t*>(data), count);
  return largest(reinterpret_cast<const uint32_t*>(data), count);
}

void widen_token_bytes(const std::byte* data, int width, int64_t first, std::span<int32_t> out) {
  if (width == 2) {
    widen<uint16_t>(data, first, out);
  } else {
    widen<uint32_t>(data, first, out);
  }
}

void read_mask_bits(const std::byte* mask, int64_t first, std::span<uint8_t> out) {
  if (!mask) {
    std::fill(out.begin(), out.end(), uint8_t{1});
    return;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const auto place = static_cast<size_t>(first) + i;
    out[i] = std::to_integer<uint8_t>(mask[place / 8]) >> (place % 8) & 1u;
  }
}

}  // namespace octet
