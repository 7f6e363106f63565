#include "report/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "base/safe_text.h"

namespace octet {
namespace {

using Ranges = std::span<const std::pair<char32_t, char32_t>>;

// The blocks that matter in practice, not the whole of Unicode's tables: the C library's wcwidth knows more,
// but only after setlocale, which changes how a program reads and writes numbers.
constexpr std::pair<char32_t, char32_t> kZeroWidth[] = {
    {0x0300, 0x036f},  {0x0483, 0x0489}, {0x0591, 0x05bd}, {0x0610, 0x061a}, {0x064b, 0x065f},
    {0x093c, 0x093c},  {0x0941, 0x0948}, {0x094d, 0x094d}, {0x0e31, 0x0e31}, {0x0e34, 0x0e3a},
    {0x0e47, 0x0e4e},  {0x1ab0, 0x1aff}, {0x1dc0, 0x1dff}, {0x200b, 0x200f}, {0x202a, 0x202e},
    {0x2060, 0x2064},  {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f}, {0xfeff, 0xfeff},
    {0xe0100, 0xe01ef}};
constexpr std::pair<char32_t, char32_t> kWide[] = {
    {0x1100, 0x115f},   {0x231a, 0x231b},   {0x23e9, 0x23ec},  {0x2614, 0x2615},   {0x26a1, 0x26a1},
    {0x2705, 0x2705},   {0x274c, 0x274c},   {0x2753, 0x2755},  {0x2e80, 0x303e},   {0x3041, 0x33ff},
    {0x3400, 0x4dbf},   {0x4e00, 0xa4cf},   {0xa960, 0xa97c},  {0xac00, 0xd7a3},   {0xf900, 0xfaff},
    {0xfe30, 0xfe6f},   {0xff00, 0xff60},   {0xffe0, 0xffe6},  {0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff},
    {0x1f900, 0x1f9ff}, {0x1fa70, 0x1faff}, {0x20000, 0x3fffd}};

bool contains(Ranges ranges, char32_t code) {
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), code,
                                      [](char32_t c, const auto& range) { return c < range.first; });
  return after != ranges.begin() && code <= std::prev(after)->second;
}

int width_of(const Character& character) {
  if (!character.valid || character.code < 0x300) return 1;
  return contains(kZeroWidth, character.code) ? 0 : contains(kWide, character.code) ? 2 : 1;
}

// Three significant digits without an exponent: 1.23, 12.3, 123.
std::string three_digits(double value) {
  return fmt::format("{:.{}f}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

std::string scaled(double value, double step, std::span<const char* const> units, bool trim) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  const double size = std::abs(value);
  size_t unit = 0;
  double rest = size;
  // A value that would round to a full step goes to the next unit: 1.00 MiB rather than 1024 KiB.
  while (unit + 1 < units.size() && rest >= step - 0.5) {
    rest /= step;
    ++unit;
  }
  std::string digits = unit == 0 ? fmt::format("{:.0f}", rest) : three_digits(rest);
  if (trim && digits.find('.') != std::string::npos) {
    digits.erase(digits.find_last_not_of('0') + 1);
    if (digits.back() == '.') digits.pop_back();
  }
  return fmt::format("{}{}{}", value < 0 ? "-" : "", digits, units[unit]);
}

}  // namespace

int display_width(std::string_view text) {
  int width = 0;
  while (!text.empty()) {
    const Character character = first_character(text);
    width += width_of(character);
    text.remove_prefix(character.size);
  }
  return width;
}

std::string_view truncate_to_width(std::string_view text, int columns) {
  size_t end = 0;
  int width = 0;
  while (end < text.size()) {
    const Character character = first_character(text.substr(end));
    width += width_of(character);
    if (width > columns) break;
    end += character.size;
  }
  return text.substr(0, end);
}

std::string human_bytes(double bytes) {
  constexpr const char* kUnits[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
  return scaled(bytes, 1024, kUnits, false);
}

std::string human_count(double count) {
  constexpr const char* kUnits[] = {"", "K", "M", "B", "T"};
  return scaled(count, 1000, kUnits, true);
}

std::string with_thousands(double value) {
  const std::string digits = fmt::format("{:.0f}", std::abs(value));
  std::string text = value < 0 ? "-" : "";
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string counted(int64_t count, std::string_view noun, std::string_view plural) {
  if (count == 1) return fmt::format("1 {}", noun);
  return plural.empty() ? fmt::format("{} {}s", count, noun) : fmt::format("{} {}", count, plural);
}

std::string human_duration(double seconds) {
  if (!std::isfinite(seconds)) return fmt::format("{} s", seconds);
  if (seconds < 0) return fmt::format("-{}", human_duration(-seconds));
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  if (seconds > 1e15) return fmt::format("{:.3g} s", seconds);
  const int64_t whole = std::llround(seconds);
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  const int64_t minutes = (whole + 30) / 60;
  if (minutes < 24 * 60) return fmt::format("{}h {:02}m", minutes / 60, minutes % 60);
  const int64_t hours = (whole + 1800) / 3600;
  return fmt::format("{}d {:02}h", hours / 24, hours % 24);
}

std::string clock_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e15) return "--:--";
  const auto whole = static_cast<int64_t>(seconds);
  if (whole < 3600) return fmt::format("{:02}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace octet
