#pragma once

#include <algorithm>
#include <memory>
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

// Memory of a device with these bytes in it.
class DeviceBytes {
 public:
  DeviceBytes(Device& device, const std::vector<uint8_t>& bytes)
      : device_(&device),
        size_(static_cast<int64_t>(bytes.size())),
        memory_(device.allocate(size_, Place::Device)) {
    if (size_ > 0) device.copy_to_device(tensor(), bytes.data());
  }
  Tensor tensor() const { return {memory_.get(), DType::U8, {size_}}; }
  uint8_t* data() const { return static_cast<uint8_t*>(memory_.get()); }
  std::vector<uint8_t> read() const {
    std::vector<uint8_t> bytes(static_cast<size_t>(size_));
    device_->copy_to_host(bytes.data(), tensor());
    return bytes;
  }

 private:
  Device* device_;
  int64_t size_;
  std::shared_ptr<void> memory_;
};

// Compares part `from` of every item with what `expected` says about its bytes. Empty: all are right.
template <class Expected>
std::string compare_parts(const Communicator& group, const std::vector<DeviceBytes>& wholes,
                          const std::vector<int64_t>& sizes, const Expected& expected) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto bytes = wholes[i].read();
    for (int from = 0; from < group.size(); ++from)
      for (int64_t k = 0; k < sizes[i]; ++k)
        if (bytes[static_cast<size_t>(from * sizes[i] + k)] != expected(from, static_cast<int>(i), k))
          return fmt::format("rank {}: item {}, part {}, byte {} is wrong", group.rank(), i, from, k);
  }
  return "";
}

// Gathers items of 0, 5 and 70,000 bytes per part, the second of them in place, and compares every byte.
inline std::string check_all_gather(Communicator& group, Device& device, std::string_view what) {
  const std::vector<int64_t> sizes = {0, 5, 70'000};
  const int me = group.rank();
  std::vector<DeviceBytes> wholes, parts;
  std::vector<GatherItem> items;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto bytes = static_cast<size_t>(sizes[i]);
    std::vector<uint8_t> whole(bytes * static_cast<size_t>(group.size()), uint8_t{0xA5}), part(bytes);
    for (size_t k = 0; k < bytes; ++k)
      part[k] = byte_of(me, -1, static_cast<int>(i), static_cast<int64_t>(k));
    const bool in_place = i == 1;
    if (in_place) std::copy(part.begin(), part.end(), whole.begin() + me * sizes[i]);
    wholes.emplace_back(device, whole);
    parts.emplace_back(device, part);
    Tensor mine = parts.back().tensor();
    if (in_place) mine.data = wholes.back().data() + me * sizes[i];
    items.push_back({wholes.back().tensor(), mine});
  }
  group.all_gather(device.queue(), items, what);
  return compare_parts(group, wholes, sizes,
                       [](int from, int item, int64_t k) { return byte_of(from, -1, item, k); });
}

// Exchanges items whose sent parts are 3, 0 and 40,000 bytes large and lie `gap` bytes further apart.
inline std::string check_exchange(Communicator& group, Device& device, int64_t gap, std::string_view what) {
  const std::vector<int64_t> sizes = {3, 0, 40'000};
  const int me = group.rank();
  std::vector<DeviceBytes> received, sent;
  std::vector<ExchangeItem> items;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t stride = sizes[i] + gap;
    std::vector<uint8_t> bytes(static_cast<size_t>(stride * group.size()), uint8_t{0x5A});
    for (int to = 0; to < group.size(); ++to)
      for (int64_t k = 0; k < sizes[i]; ++k)
        bytes[static_cast<size_t>(to * stride + k)] = byte_of(me, to, static_cast<int>(i), k);
    sent.emplace_back(device, bytes);
    received.emplace_back(device, std::vector<uint8_t>(static_cast<size_t>(sizes[i] * group.size()), 0xA5));
    items.push_back({received.back().tensor(), sent.back().data(), stride});
  }
  group.exchange(device.queue(), items, what);
  return compare_parts(group, received, sizes,
                       [&](int from, int item, int64_t k) { return byte_of(from, me, item, k); });
}

}  // namespace octet::test
