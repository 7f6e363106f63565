#include "config/step_range.h"

#include <charconv>

namespace octet {
namespace {

std::optional<int64_t> step_of(std::string_view text) {
  int64_t step = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  if (error != std::errc() || end != text.data() + text.size() || step < 1) return std::nullopt;
  return step;
}

}  // namespace

std::optional<StepRange> parse_step_range(std::string_view text) {
  const size_t colon = text.find(':');
  const std::optional<int64_t> first = step_of(text.substr(0, colon));
  const std::optional<int64_t> last = colon == text.npos ? first : step_of(text.substr(colon + 1));
  if (!first || !last || *first > *last) return std::nullopt;
  return StepRange{*first, *last};
}

}  // namespace octet
