#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace octet {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string error_of(std::string_view text, const JsonOptions& options = {}) {
  try {
    parse_json(text, "file.json", options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Json, BuildsTheSameValuesAsTheLibrary) {
  const std::string text =
      R"( {"a": [1, -2, 3.5, true, null, "x\u00e9", [], {}], "b": {"c": {"d": [[1], [2, [3]]]}},
      "big": 18446744073709551615, "": 0} )";
  EXPECT_EQ(parse_json(text, "t"), nlohmann::json::parse(text));
  for (const char* scalar : {"1", "\"s\"", "null", "[]", "{}", "[[],[]]"}) {
    EXPECT_EQ(parse_json(scalar, "t"), nlohmann::json::parse(scalar));
  }
}

TEST(Json, NamesFileLineAndColumn) {
  EXPECT_THAT(error_of("{\n  \"a\": 1,\n  \"b\": x\n}"), StartsWith("[file.json] line 3, column 8: "));
  EXPECT_THAT(error_of(""), StartsWith("[file.json] line 1, column 1: "));
  EXPECT_THAT(error_of("{} {}"), StartsWith("[file.json] line 1, column 4: "));
  EXPECT_THAT(error_of("[1, 1e999]"), StartsWith("[file.json] line 1, column "));
  EXPECT_THAT(error_of("\"\xff\""), StartsWith("[file.json] line 1, column 2: "));
  for (const char c : error_of("\"\xff\x01\""))
    EXPECT_TRUE(c >= 0x20 && c <= 0x7e) << "messages are printable";
}

TEST(Json, RefusesWhatFollowsNul) {
  EXPECT_THAT(error_of(std::string_view("{}\0garbage", 10)), StartsWith("[file.json] line 1, column 3: NUL"));
}

TEST(Json, LimitsDepth) {
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_EQ(error_of(nested(64)), "");
  EXPECT_EQ(error_of(nested(65)), "[file.json] line 1, column 65: nested deeper than 64 levels");
  EXPECT_EQ(error_of("{\"a\":\n [{}]}", {.max_depth = 2}),
            "[file.json] line 2, column 3: nested deeper than 2 levels");
  EXPECT_THAT(error_of(nested(100'000)), HasSubstr("nested deeper"));
  EXPECT_THAT(error_of(std::string(5'000'000, '[')), HasSubstr("nested deeper"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_THAT(error_of(objects), HasSubstr("nested deeper"));
}

TEST(Json, RefusesDuplicateKeysWhenTold) {
  const std::string text = "{\"a\": 1,\n \"b\": {\"a\": 2}, \"a\": 3}";
  EXPECT_EQ(parse_json(text, "t").at("a"), 3);
  EXPECT_EQ(error_of(text, {.refuse_duplicate_keys = true}),
            "[file.json] line 2, column 19: key \"a\" appears twice");
  EXPECT_EQ(error_of("[{\"a\":1},{\"a\":1,\"b\":{\"a\":1}}]", {.refuse_duplicate_keys = true}), "");
  EXPECT_THAT(error_of("{\"a\":1,\"\\u0061\":1}", {.refuse_duplicate_keys = true}), HasSubstr("twice"));
}

}  // namespace
}  // namespace octet
