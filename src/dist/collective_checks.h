#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "dist/communicator.h"

// Checks of a collective's arguments, for all engines, and the arithmetic of parts.

namespace octet {

inline std::byte* part_at(const Tensor& tensor, int64_t part_bytes, int part) {
  return static_cast<std::byte*>(tensor.data) + part_bytes * part;
}
inline const std::byte* sent_part(const ExchangeItem& item, int part) {
  return static_cast<const std::byte*>(item.sent) + item.stride * part;
}
inline Tensor bytes_view(const void* data, int64_t bytes) {
  return {const_cast<void*>(data), DType::U8, {bytes}};
}

// Bytes of one part.
inline int64_t part_bytes(const GatherItem& item, int ranks, std::string_view what) {
  const int64_t part = item.mine.bytes();
  require(item.whole.bytes() == checked_mul(part, ranks),
          "[{}] the whole tensor has {} bytes and this rank's part {}, expected {} equal parts", what,
          item.whole.bytes(), part, ranks);
  return part;
}
inline int64_t part_bytes(const ExchangeItem& item, int ranks, std::string_view what) {
  const int64_t whole = item.received.bytes(), part = whole / ranks;
  require(whole % ranks == 0, "[{}] {} bytes are received, expected {} equal parts", what, whole, ranks);
  require(item.stride >= part || ranks == 1,
          "[{}] the sent parts begin {} bytes apart, expected at least the {} bytes of a part", what,
          item.stride, part);
  return part;
}
template <class Item>
std::vector<int64_t> part_bytes(std::span<const Item> items, int ranks, std::string_view what) {
  std::vector<int64_t> parts;
  for (const Item& item : items) parts.push_back(part_bytes(item, ranks, what));
  return parts;
}

inline bool is_in_place(const GatherItem& item, int64_t bytes, int rank) {
  return item.mine.data == part_at(item.whole, bytes, rank);
}

// Members of a group: at least one, each a rank of the run, none twice. Returns the index of `rank`, -1 if it is none.
int check_members(std::span<const int> members, int rank, int ranks, std::string_view group);
std::string list_of_ranks(std::span<const int> ranks);  // "rank 1", "ranks 0, 2 and 3"

}  // namespace octet
