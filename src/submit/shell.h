#pragma once

#include <span>
#include <string>
#include <string_view>

namespace octet {

// The word as bash reads it back: unchanged if it is plain, else in single quotes.
std::string shell_quoted(std::string_view word);
std::string shell_command(std::span<const std::string> words);  // quoted and joined by spaces

// The value of an option in an #SBATCH line. sbatch splits these lines itself: both kinds of quotes group, and a
// backslash escapes, also inside quotes. The text must not have line breaks.
std::string sbatch_quoted(std::string_view value);

}  // namespace octet
