#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace octet {

// Steps as the console counts them, from 1; both are included.
struct StepRange {
  int64_t first = 0, last = 0;
  bool contains(int64_t step) const { return step >= first && step <= last; }
  bool operator==(const StepRange&) const = default;
};

// "10:12", or "10" for a single step. Empty if the text is something else.
std::optional<StepRange> parse_step_range(std::string_view text);

}  // namespace octet
