#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace octet {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78u;

// tables[k][b]: what the byte b contributes when k more zero bytes follow it.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t previous = tables[k - 1][byte];
      tables[k][byte] = (previous >> 8) ^ tables[0][previous & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

// Little-endian whatever the machine is; compilers turn it into one load.
inline uint32_t load32(const unsigned char* p) {
  return uint32_t{p[0]} | uint32_t{p[1]} << 8 | uint32_t{p[2]} << 16 | uint32_t{p[3]} << 24;
}

// Both kinds of CPU have an instruction for this checksum, except the oldest. Written as assembly it needs no
// compiler option, so it can be in the same file as the code for CPUs without it.
#if defined(__x86_64__)
#define OCTET_CRC_INSTRUCTION
inline uint32_t add_word(uint32_t crc, uint64_t word) {
  uint64_t state = crc;
  asm("crc32q %1, %0" : "+r"(state) : "r"(word));
  return static_cast<uint32_t>(state);
}
inline uint32_t add_byte(uint32_t crc, unsigned char byte) {
  asm("crc32b %1, %0" : "+r"(crc) : "r"(byte));
  return crc;
}
bool has_instruction() {
  return __builtin_cpu_supports("sse4.2");
}
#elif defined(__aarch64__)
#define OCTET_CRC_INSTRUCTION
inline uint32_t add_word(uint32_t crc, uint64_t word) {
  asm(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
  return crc;
}
inline uint32_t add_byte(uint32_t crc, unsigned char byte) {
  asm(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"(uint32_t{byte}));
  return crc;
}
bool has_instruction() {
  return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}
#endif

#if defined(OCTET_CRC_INSTRUCTION)
uint32_t crc32c_by_instruction(const void* data, size_t size, uint32_t crc) {
  const auto* p = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; size >= 8; p += 8, size -= 8) {
    uint64_t word = 0;
    std::memcpy(&word, p, 8);
    crc = add_word(crc, word);
  }
  for (; size > 0; ++p, --size) crc = add_byte(crc, *p);
  return ~crc;
}
#endif

}  // namespace

uint32_t crc32c(const void* data, size_t size, uint32_t crc) {
#if defined(OCTET_CRC_INSTRUCTION)
  static const bool by_instruction = has_instruction();
  if (by_instruction) return crc32c_by_instruction(data, size, crc);
#endif
  return crc32c_by_tables(data, size, crc);
}

uint32_t crc32c_by_tables(const void* data, size_t size, uint32_t crc) {
  const auto* p = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; size >= 8; p += 8, size -= 8) {  // slicing by 8: eight lookups that do not wait for each other
    const uint32_t low = crc ^ load32(p);
    const uint32_t high = load32(p + 4);
    crc = kTables[7][low & 0xff] ^ kTables[6][(low >> 8) & 0xff] ^ kTables[5][(low >> 16) & 0xff] ^
          kTables[4][low >> 24] ^ kTables[3][high & 0xff] ^ kTables[2][(high >> 8) & 0xff] ^
          kTables[1][(high >> 16) & 0xff] ^ kTables[0][high >> 24];
  }
  for (; size > 0; ++p, --size) crc = (crc >> 8) ^ kTables[0][(crc ^ *p) & 0xff];
  return ~crc;
}

namespace {

// The product of two polynomials modulo that of the checksum. The highest bit is the coefficient of x^0.
constexpr uint32_t multiplied(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = (b >> 1) ^ (b & 1 ? kPolynomial : 0);
  }
  return product;
}

}  // namespace

uint32_t crc32c_joined(uint32_t crc_a, uint32_t crc_b, uint64_t size_b) {
  // Every byte of b moves the checksum of a by x^8.
  uint32_t shift = 1u << 31, power = 1u << 23;
  for (; size_b != 0; size_b >>= 1) {
    if (size_b & 1) shift = multiplied(shift, power);
    power = multiplied(power, power);
  }
  return multiplied(shift, crc_a) ^ crc_b;
}

}  // namespace octet
