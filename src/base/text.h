#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

// Parses the whole text: nothing may come before or after the value.
std::optional<bool> parse_bool(std::string_view text);      // true/false, yes/no, on/off, 1/0, in any case
std::optional<int64_t> parse_int(std::string_view text);    // also 1e6 and 2.0, where exact
std::optional<double> parse_double(std::string_view text);  // finite

// "a, b,c" as a, b, c, without the spaces around; "" is the empty list. Commas inside brackets do not
// split, because regular expressions have them: "a{1,2}, b" as a{1,2}, b. If brackets are not balanced, every comma
// splits: "a(, b" as a(, b.
std::vector<std::string> split_list(std::string_view text);

// Whether the text is UTF-8 and has no NUL: what YAML and paths can carry.
bool is_clean_utf8(std::string_view text);

// The text for a message: control characters and stray bytes as \xNN; shortened if very long.
std::string printable(std::string_view text);

// Insertions, deletions, replacements and swaps of neighbours that turn one word into the other.
size_t edit_distance(std::string_view a, std::string_view b);

// The text broken at spaces into lines of at most `width` columns.
std::vector<std::string> wrap_words(std::string_view text, size_t width);

}  // namespace octet
