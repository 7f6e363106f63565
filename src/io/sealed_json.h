#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json_values.h"

namespace octet {

// A JSON object with its own checksum. It is indented by two spaces. Its last key is `key`: the CRC-32C of every byte
// before the comma in front of that key. So a flipped bit in any number is noticed.
std::string seal_json(const nlohmann::ordered_json& object, std::string_view key = "manifest_crc32c");

// The object with the checksum's key. `place` names the file in errors.
nlohmann::json parse_sealed_json(std::string_view text, const std::string& place,
                                 std::string_view key = "manifest_crc32c");

// Eight lower-case hexadecimal digits.
std::string crc_text(uint32_t crc);
uint32_t parse_crc(const std::string& text, const std::string& place);

// The value of a key that must be there. `place` names the file in errors.
template <class T>
T json_field(const nlohmann::json& object, const char* key, const std::string& place) {
  const auto found = object.find(key);
  require(found != object.end(), "[{}] has no \"{}\"", place, key);
  if constexpr (std::is_same_v<T, int64_t>) {
    const std::optional<int64_t> value = integer_of(*found);
    if (!value) fail("[{}] \"{}\" is {}, expected an integer", place, key, found->dump());
    return *value;
  }
  try {
    return found->template get<T>();
  } catch (const nlohmann::json::exception&) {
    fail("[{}] \"{}\" is {}, which has the wrong type", place, key, found->dump());
  }
}

}  // namespace octet
