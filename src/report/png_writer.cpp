#include "report/png_writer.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"

namespace octet {
namespace {

// Deflate (RFC 1951) packs bits from the low end of each byte; Huffman codes go in from their high end.
class BitWriter {
 public:
  explicit BitWriter(std::string& out) : out_(out) {}
  void bits(uint32_t value, int count) {
    held_ |= uint64_t{value} << held_bits_;
    held_bits_ += count;
    while (held_bits_ >= 8) {
      out_.push_back(static_cast<char>(held_ & 0xFF));
      held_ >>= 8;
      held_bits_ -= 8;
    }
  }
  void code(uint32_t value, int count) {
    uint32_t reversed = 0;
    for (int i = 0; i < count; ++i) reversed |= ((value >> i) & 1) << (count - 1 - i);
    bits(reversed, count);
  }
  void finish() {
    if (held_bits_ > 0) bits(0, 8 - held_bits_);
  }

 private:
  std::string& out_;
  uint64_t held_ = 0;
  int held_bits_ = 0;
};

// The fixed code of a literal (0-255), the end (256) or a length class (257-285).
void literal_or_length(BitWriter& out, uint32_t symbol) {
  if (symbol < 144) {
    out.code(0x30 + symbol, 8);
  } else if (symbol < 256) {
    out.code(0x190 + symbol - 144, 9);
  } else if (symbol < 280) {
    out.code(symbol - 256, 7);
  } else {
    out.code(0xC0 + symbol - 280, 8);
  }
}

// Lengths and distances are written as a class and some extra bits: the class says the leading bits of value - base.
struct Classed {
  uint32_t index, extra;
  int extra_bits;
};
Classed classed(uint32_t value, uint32_t base, int direct_bits) {
  const uint32_t offset = value - base;
  int bits = 0;
  while ((offset >> bits) >= (2u << direct_bits)) ++bits;
  const uint32_t top = offset >> bits;
  const uint32_t index = static_cast<uint32_t>(bits) * (1u << direct_bits) + top;
  return {index, offset & ((1u << bits) - 1), bits};
}

constexpr uint32_t kLongestMatch = 258, kFarthestMatch = 32768, kShortestMatch = 3;

void match(BitWriter& out, uint32_t length, uint32_t distance) {
  if (length == kLongestMatch) {
    literal_or_length(out, 285);  // a class of its own
  } else {
    const Classed l = classed(length, 3, 2);
    literal_or_length(out, 257 + l.index);
    out.bits(l.extra, l.extra_bits);
  }
  const Classed d = classed(distance, 1, 1);
  out.code(d.index, 5);
  out.bits(d.extra, d.extra_bits);
}

uint32_t adler32(std::span<const uint8_t> bytes) {
  uint32_t a = 1, b = 0;
  for (const uint8_t byte : bytes) {
    a = (a + byte) % 65521;
    b = (b + a) % 65521;
  }
  return b << 16 | a;
}

uint32_t crc32(std::string_view bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> result{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t x = i;
      for (int bit = 0; bit < 8; ++bit) x = x & 1 ? 0xEDB88320 ^ (x >> 1) : x >> 1;
      result[i] = x;
    }
    return result;
  }();
  uint32_t crc = 0xFFFFFFFF;
  for (const char c : bytes) crc = table[(crc ^ static_cast<uint8_t>(c)) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

void append_u32(std::string& out, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<char>(value >> shift));
}

void append_chunk(std::string& out, std::string_view type, std::string_view data) {
  append_u32(out, static_cast<uint32_t>(data.size()));
  const std::string body = fmt::format("{}{}", type, data);
  out += body;
  append_u32(out, crc32(body));
}

}  // namespace

std::string zlib_compress(std::span<const uint8_t> bytes) {
  std::string result = "\x78\x01";
  BitWriter out(result);
  out.bits(1, 1);                          // the last block
  out.bits(1, 2);                          // with fixed codes
  std::vector<int64_t> last(1 << 15, -1);  // where a hash of three bytes was seen last
  const auto hash = [&](size_t i) {
    const uint32_t x = uint32_t{bytes[i]} | uint32_t{bytes[i + 1]} << 8 | uint32_t{bytes[i + 2]} << 16;
    return (x * 2654435761u) >> 17;
  };
  for (size_t i = 0; i < bytes.size();) {
    uint32_t length = 0, distance = 0;
    if (i + kShortestMatch <= bytes.size()) {
      const int64_t before = last[hash(i)];
      if (before >= 0 && i - static_cast<size_t>(before) <= kFarthestMatch) {
        distance = static_cast<uint32_t>(i - static_cast<size_t>(before));
        const size_t most = std::min<size_t>(kLongestMatch, bytes.size() - i);
        while (length < most && bytes[i + length] == bytes[static_cast<size_t>(before) + length]) ++length;
      }
    }
    const size_t used = length >= kShortestMatch ? length : 1;
    if (used == 1) {
      literal_or_length(out, bytes[i]);
    } else {
      match(out, length, distance);
    }
    for (size_t j = i; j < i + used && j + kShortestMatch <= bytes.size(); ++j)
      last[hash(j)] = static_cast<int64_t>(j);
    i += used;
  }
  literal_or_length(out, 256);
  out.finish();
  append_u32(result, adler32(bytes));
  return result;
}

std::string encode_png(int64_t width, int64_t height, std::span<const uint8_t> rgb) {
  const auto row = static_cast<size_t>(3 * width);
  require(width > 0 && height > 0 && rgb.size() == row * static_cast<size_t>(height),
          "[png] {} bytes for {} x {} pixels", rgb.size(), width, height);
  // Every row as its difference from the one above: a drawing is then mostly zeros.
  std::vector<uint8_t> filtered;
  filtered.reserve((row + 1) * static_cast<size_t>(height));
  for (size_t y = 0; y < static_cast<size_t>(height); ++y) {
    filtered.push_back(2);
    for (size_t x = 0; x < row; ++x) {
      const uint8_t above = y == 0 ? 0 : rgb[(y - 1) * row + x];
      filtered.push_back(static_cast<uint8_t>(rgb[y * row + x] - above));
    }
  }
  std::string header;
  append_u32(header, static_cast<uint32_t>(width));
  append_u32(header, static_cast<uint32_t>(height));
  header += std::string("\x08\x02\x00\x00\x00", 5);  // 8 bits, RGB, deflate, filters by row, not interlaced
  std::string png = "\x89PNG\r\n\x1a\n";
  append_chunk(png, "IHDR", header);
  append_chunk(png, "IDAT", zlib_compress(filtered));
  append_chunk(png, "IEND", "");
  return png;
}

}  // namespace octet
