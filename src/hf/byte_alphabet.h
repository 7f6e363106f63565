#pragma once

#include <string>
#include <string_view>

namespace octet {

// GPT-2's alphabet, in which vocabularies write bytes: printable ones stand for themselves, the others for the
// characters from U+0100 on, in their order. " the" is "Ġthe".
std::string alphabet_character(int byte);
std::string to_byte_alphabet(std::string_view bytes);

}  // namespace octet
