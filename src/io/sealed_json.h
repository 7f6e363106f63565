#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace octet {

// A JSON object that carries its own checksum: indented by two spaces, and last in it `key`, the CRC-32C of every
// byte before the comma in front of that key. A flipped bit in any number is noticed.
std::string seal_json(const nlohmann::ordered_json& object, std::string_view key = "manifest_crc32c");

// The object with the checksum's key. `place` names the file in errors.
nlohmann::json parse_sealed_json(std::string_view text, const std::string& place,
                                 std::string_view key = "manifest_crc32c");

// Eight lower-case hexadecimal digits.
std::string crc_text(uint32_t crc);
uint32_t parse_crc(const std::string& text, const std::string& place);

}  // namespace octet
