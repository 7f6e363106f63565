#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

namespace octet {
namespace {

// One bit at a time, straight from the definition.
uint32_t crc32c_by_bits(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0u);
  }
  return ~crc;
}

std::string counting(size_t size) {
  std::string bytes(size, '\0');
  std::iota(bytes.begin(), bytes.end(), '\0');
  return bytes;
}

// RFC 3720, appendix B.4, and the check value of the catalogue of CRC algorithms.
TEST(Crc32c, MatchesPublishedVectors) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  const std::string rising = counting(32);
  EXPECT_EQ(crc32c(rising), 0x46dd794eu);
  EXPECT_EQ(crc32c(std::string(rising.rbegin(), rising.rend())), 0x113fdb5cu);
  const unsigned char iscsi_read[48] = {
      0x01, 0xc0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
      0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x18,
      0x28, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};
  EXPECT_EQ(crc32c(iscsi_read, sizeof(iscsi_read)), 0xd9963a56u);
  EXPECT_EQ(crc32c(""), 0u);
}

TEST(Crc32c, EveryLengthOffsetAndSplitAgreesWithTheDefinition) {
  const std::string bytes = counting(70);
  for (size_t offset = 0; offset < 8; ++offset) {
    for (size_t size = 0; offset + size <= bytes.size(); ++size) {
      const std::string_view part = std::string_view(bytes).substr(offset, size);
      const uint32_t expected = crc32c_by_bits(part);
      ASSERT_EQ(crc32c(part), expected) << offset << " " << size;
      ASSERT_EQ(crc32c_by_tables(part.data(), part.size()), expected) << offset << " " << size;
      ASSERT_EQ(crc32c(part.substr(size / 3), crc32c(part.substr(0, size / 3))), expected)
          << offset << " " << size;
    }
  }
}

TEST(Crc32c, JoinsChecksumsOfParts) {
  const std::string bytes = counting(1000);
  for (const size_t first : {0, 1, 8, 500, 999, 1000}) {
    const std::string_view a = std::string_view(bytes).substr(0, first),
                           b = std::string_view(bytes).substr(first);
    EXPECT_EQ(crc32c_joined(crc32c(a), crc32c(b), b.size()), crc32c(bytes)) << first;
  }
  // More than 32 bits of length: zeros after a byte, as the definition moves them through.
  uint32_t zeros = crc32c(std::string(1 << 16, '\0'));
  uint64_t size = 1 << 16;
  uint32_t with_byte = crc32c(std::string("x") + std::string(1 << 16, '\0'));
  for (; size < uint64_t{1} << 34; size *= 2) {
    with_byte = crc32c_joined(with_byte, zeros, size);
    zeros = crc32c_joined(zeros, zeros, size);
  }
  EXPECT_EQ(crc32c_joined(crc32c("x"), zeros, size), with_byte);
}

TEST(Crc32c, MaskIsUndoneAndDiffers) {
  const uint32_t crc = crc32c("foo");
  EXPECT_NE(crc32c_mask(crc), crc);
  EXPECT_NE(crc32c_mask(crc32c_mask(crc)), crc);
  EXPECT_EQ(crc32c_unmask(crc32c_mask(crc)), crc);
  // The length field of a TFRecord of 24 bytes: the first record of every event file ("brain.Event:2").
  EXPECT_EQ(crc32c_mask(crc32c(std::string_view("\x18\0\0\0\0\0\0\0", 8))), 0x224b7fa3u);
}

}  // namespace
}  // namespace octet
