#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

namespace octet {

// The value under a key of a file, or nothing if it is of another kind. nlohmann's own value() throws
// its own exceptions then. `Json` is json or ordered_json; `object` may be anything.
template <class Json>
std::optional<std::string> text_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (!object.is_object() || found == object.end() || !found->is_string()) return std::nullopt;
  return found->template get<std::string>();
}

// The number if it is an integer and fits: neither 1.5 nor 1e300 is turned into another number.
template <class Json>
std::optional<int64_t> integer_of(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && !std::in_range<int64_t>(value.template get<uint64_t>()))
    return std::nullopt;
  return value.template get<int64_t>();
}

template <class Json>
std::optional<int64_t> integer_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (!object.is_object() || found == object.end()) return std::nullopt;
  return integer_of(*found);
}

}  // namespace octet
