#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace octet {

struct JsonOptions {
  // Arrays and objects inside one another. Copying, printing and destroying a value recurse once per level,
  // so the limit also keeps those within the stack.
  int max_depth = 64;
  // Values in total: a value of two bytes in the text takes many times that in memory.
  int64_t max_values = INT64_MAX;
  bool refuse_duplicate_keys = false;  // otherwise the last one wins, as in most readers
  // Where the text stands in its file, for the places in errors.
  int64_t first_line = 1;
  int64_t first_column = 1;
};

// Parses UTF-8 text that must hold one JSON value and nothing else. `place` names the file (or other source)
// in errors, which read "[place] line 3, column 7: ...".
nlohmann::json parse_json(std::string_view text, std::string_view place, const JsonOptions& options = {});

// The parser library's error without its tags and place, cut to 200 bytes and in printable ASCII, because it quotes
// the bytes it could not read.
std::string plain_json_error(std::string_view what);

}  // namespace octet
