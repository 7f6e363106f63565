#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/safe_text.h"

namespace octet {

// Columns that the text takes on a terminal: UTF-8 aware, wide characters count 2, combining marks 0, each
// byte that is not UTF-8 counts 1.
int display_width(std::string_view text);

// The longest prefix of whole characters that takes at most `columns`.
std::string_view truncate_to_width(std::string_view text, int columns);

std::string human_bytes(double bytes);     // "512 B", "1.50 KiB", "139 GiB"
std::string human_count(double count);     // "950", "1.5K", "124M", "1.24B", "2.1T"
std::string with_thousands(double value);  // "107,340"; rounded
// "1 step", "3 steps"; the plural is the noun with an s unless it is given.
std::string counted(int64_t count, std::string_view noun, std::string_view plural = {});
std::string human_duration(double seconds);  // "450 ms", "12.3 s", "2m 05s", "1h 02m", "3d 04h"
std::string clock_duration(double seconds);  // "00:39", "1:02:03"; "--:--" where it is not a finite number

}  // namespace octet
