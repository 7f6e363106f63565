#include "hf/byte_alphabet.h"

#include <array>

#include "data/tokenizer/unicode.h"

namespace octet {
namespace {

std::array<std::string, 256> make_alphabet() {
  const auto printable = [](uint32_t b) {
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
  };
  std::array<std::string, 256> alphabet;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) append_utf8(alphabet[byte], printable(byte) ? byte : next++);
  return alphabet;
}

const std::array<std::string, 256>& alphabet() {
  static const std::array<std::string, 256> characters = make_alphabet();
  return characters;
}

}  // namespace

std::string alphabet_character(int byte) {
  return alphabet()[static_cast<size_t>(byte)];
}

std::string to_byte_alphabet(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += alphabet()[static_cast<unsigned char>(byte)];
  return text;
}

}  // namespace octet
