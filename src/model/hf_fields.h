#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace octet {

// The fields of a config.json, checked as they are read. Names and defaults are those of the Transformers classes.
class HfFields {
 public:
  using Json = nlohmann::json;
  HfFields(const Json& json, std::string_view place) : json_(json), place_(place) {}

  // A field that is null counts as absent, except where a family says otherwise.
  bool is_null(const char* name) const { return json_.contains(name) && json_.at(name).is_null(); }
  bool has(const char* name) const { return json_.contains(name) && !json_.at(name).is_null(); }

  int64_t integer(const char* name, std::optional<int64_t> fallback = {}) const {
    if (!has(name)) return required(name, fallback);
    const Json& value = json_.at(name);
    require(value.is_number_integer(), "[{}] \"{}\" is {}, expected a whole number", place_, name,
            value.dump());
    require(!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX,
            "[{}] \"{}\" is {}, expected at most {}", place_, name, value.dump(), INT64_MAX);
    return value.get<int64_t>();
  }
  double number(const char* name, std::optional<double> fallback = {}) const {
    if (!has(name)) return required(name, fallback);
    const Json& value = json_.at(name);
    require(value.is_number(), "[{}] \"{}\" is {}, expected a number", place_, name, value.dump());
    return value.get<double>();
  }
  bool boolean(const char* name, bool fallback) const {
    if (!has(name)) return fallback;
    const Json& value = json_.at(name);
    require(value.is_boolean(), "[{}] \"{}\" is {}, expected true or false", place_, name, value.dump());
    return value.get<bool>();
  }
  std::string text(const char* name, const char* fallback) const {
    if (!has(name)) return fallback;
    const Json& value = json_.at(name);
    require(value.is_string(), "[{}] \"{}\" is {}, expected a string", place_, name, value.dump());
    return value.get<std::string>();
  }
  std::optional<HfFields> object(const char* name) const {
    if (!has(name)) return std::nullopt;
    const Json& value = json_.at(name);
    require(value.is_object(), "[{}] \"{}\" is {}, expected an object", place_, name, value.dump());
    return HfFields(value, place_);
  }
  // One id or a list of ids; some files write -1 for none.
  std::vector<int32_t> token_ids(const char* name) const {
    std::vector<int32_t> ids;
    if (!has(name)) return ids;
    const Json& value = json_.at(name);
    for (const Json& id : value.is_array() ? value : Json::array({value})) {
      require(id.is_number_integer() && id.get<int64_t>() >= -1 && id.get<int64_t>() < (int64_t{1} << 31),
              "[{}] \"{}\" is {}, expected a token id or a list of them", place_, name, value.dump());
      if (id.get<int64_t>() >= 0) ids.push_back(id.get<int32_t>());
    }
    return ids;
  }
  // A feature of the reference that octet does not compute must be off.
  void refuse_unless(bool condition, const std::string& what) const {
    require(condition, "[{}] {}", place_, what);
  }

 private:
  template <class T>
  T required(const char* name, std::optional<T> fallback) const {
    require(fallback.has_value(), "[{}] \"{}\" is missing", place_, name);
    return *fallback;
  }

  const Json& json_;
  std::string_view place_;
};

using HfJson = nlohmann::ordered_json;

// 1e-5f as 1e-05, not as 9.999999747378752e-06: the double with the fewest digits that converts back to this float.
inline double shortest_double(float value) {
  return std::stod(fmt::format("{}", value));
}

}  // namespace octet
