#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace octet {

// Bits of a character's class, as the patterns of the tokenizers mean them.
enum CharClass : uint8_t {
  kLetter = 1,      // \p{L}
  kNumber = 2,      // \p{N}
  kSpace = 4,       // \s
  kWord = 8,        // \w of an added token with single_word
  kNfcActive = 16,  // is reordered, decomposed or composed by NFC
};

constexpr uint32_t kCodePoints = 0x110000;

// The classes of all code points: kCodePoints bytes, indexed by code point.
const uint8_t* char_classes();

// One character of a byte string. A byte that does not begin a well-formed sequence (overlong forms,
// surrogates and values above U+10FFFF are not) is a character of its own: length 1, class 0, `valid` false.
struct Utf8Char {
  uint32_t point;
  uint32_t length;
  bool valid;
};

namespace detail {
Utf8Char decode_multibyte(const unsigned char* text, size_t size);
}

// The character at text[0]; `size` > 0.
inline Utf8Char decode_utf8(const char* text, size_t size) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text);
  if (bytes[0] < 0x80) return {bytes[0], 1, true};
  return detail::decode_multibyte(bytes, size);
}

void append_utf8(std::string& out, uint32_t point);

// Bytes at the start of `text` that are the whole of an ill-formed sequence, counted as Unicode recommends
// (maximal subpart), so that each becomes one U+FFFD. `incomplete` says that more bytes could still complete it.
struct IllFormed {
  size_t length;
  bool incomplete;
};
IllFormed ill_formed_prefix(std::string_view text);

// The class of the character that ends at text[end - 1]; 0 for a byte outside a well-formed sequence.
uint8_t class_before(std::string_view text, size_t end);

// Whether NFC leaves the text unchanged, decided without normalising. The answer false can be wrong.
bool surely_nfc(std::string_view text);

// Normalization form C by the tables of Unicode 9.0 (see scripts/make_unicode_tables.py). Ill-formed bytes
// stay as they are. O(n log n) for n combining marks in a row, O(n) otherwise.
std::string to_nfc(std::string_view text);

}  // namespace octet
