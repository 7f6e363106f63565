#pragma once

#include <numeric>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "dist/ranks.h"

namespace octet::test {

inline std::vector<int> ranks_up_to(int ranks) {
  std::vector<int> members(static_cast<size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

// Bytes that tell who sent them: the sender, the receiver (-1: all), the item, the place.
inline uint8_t byte_of(int from, int to, int item, int64_t place) {
  return static_cast<uint8_t>(17 + 101 * from + 37 * (to + 1) + 11 * item + 3 * place);
}

inline Tensor view(std::vector<uint8_t>& bytes) {
  return {bytes.data(), DType::U8, {static_cast<int64_t>(bytes.size())}};
}

// Gathers items of 0, 5 and 70,000 bytes per part, the second of them in place, and compares every byte. Empty: right.
inline std::string check_all_gather(Communicator& group, Queue& queue, std::string_view what) {
  const std::vector<int64_t> sizes = {0, 5, 70'000};
  const int me = group.rank();
  std::vector<std::vector<uint8_t>> wholes, parts;
  std::vector<GatherItem> items;
  for (size_t i = 0; i < sizes.size(); ++i) {
    wholes.emplace_back(static_cast<size_t>(sizes[i] * group.size()), uint8_t{0xA5});
    parts.emplace_back(static_cast<size_t>(sizes[i]));
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    const bool in_place = i == 1;
    Tensor mine = view(parts[i]);
    if (in_place) mine.data = wholes[i].data() + me * sizes[i];
    for (int64_t k = 0; k < sizes[i]; ++k)
      static_cast<uint8_t*>(mine.data)[k] = byte_of(me, -1, static_cast<int>(i), k);
    items.push_back({view(wholes[i]), mine});
  }
  group.all_gather(queue, items, what);
  for (size_t i = 0; i < sizes.size(); ++i)
    for (int from = 0; from < group.size(); ++from)
      for (int64_t k = 0; k < sizes[i]; ++k)
        if (wholes[i][static_cast<size_t>(from * sizes[i] + k)] != byte_of(from, -1, static_cast<int>(i), k))
          return fmt::format("rank {}: item {}, part {}, byte {} is wrong", me, i, from, k);
  return "";
}

// Exchanges items whose sent parts are 3, 0 and 40,000 bytes large and lie `gap` bytes further apart.
inline std::string check_exchange(Communicator& group, Queue& queue, int64_t gap, std::string_view what) {
  const std::vector<int64_t> sizes = {3, 0, 40'000};
  const int me = group.rank();
  std::vector<std::vector<uint8_t>> received, sent;
  std::vector<ExchangeItem> items;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t stride = sizes[i] + gap;
    received.emplace_back(static_cast<size_t>(sizes[i] * group.size()), uint8_t{0xA5});
    sent.emplace_back(static_cast<size_t>(stride * group.size()), uint8_t{0x5A});
    for (int to = 0; to < group.size(); ++to)
      for (int64_t k = 0; k < sizes[i]; ++k)
        sent[i][static_cast<size_t>(to * stride + k)] = byte_of(me, to, static_cast<int>(i), k);
  }
  for (size_t i = 0; i < sizes.size(); ++i)
    items.push_back({view(received[i]), sent[i].data(), sizes[i] + gap});
  group.exchange(queue, items, what);
  for (size_t i = 0; i < sizes.size(); ++i)
    for (int from = 0; from < group.size(); ++from)
      for (int64_t k = 0; k < sizes[i]; ++k)
        if (received[i][static_cast<size_t>(from * sizes[i] + k)] !=
            byte_of(from, me, static_cast<int>(i), k))
          return fmt::format("rank {}: item {}, part {}, byte {} is wrong", me, i, from, k);
  return "";
}

}  // namespace octet::test
