#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace octet {

// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78, initial and final value inverted), as in RFC 3720,
// LevelDB and TFRecord. `crc` is the checksum of the bytes before these (0 for none), so that
// crc32c(b, crc32c(a)) == crc32c(a + b).
uint32_t crc32c(const void* data, size_t size, uint32_t crc = 0);
// The same, as computed on a CPU without an instruction for it.
uint32_t crc32c_by_tables(const void* data, size_t size, uint32_t crc = 0);

// The checksum of a + b, from those of both and the size of b.
uint32_t crc32c_joined(uint32_t crc_a, uint32_t crc_b, uint64_t size_b);

inline uint32_t crc32c(std::string_view bytes, uint32_t crc = 0) {
  return crc32c(bytes.data(), bytes.size(), crc);
}

// The form that TFRecord and LevelDB files store next to the data. Without it, the checksum of bytes that include
// their own checksum is a constant and proves nothing.
constexpr uint32_t crc32c_mask(uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}
constexpr uint32_t crc32c_unmask(uint32_t masked) {
  const uint32_t rotated = masked - 0xa282ead8u;
  return (rotated >> 17) | (rotated << 15);
}

}  // namespace octet
