#include "eval/python_text.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <set>

#include "base/error.h"
#include "data/tokenizer/unicode.h"

namespace octet {
namespace {

// Every `step`-th character from `first` to `last` moves by `distance`.
struct CaseRange {
  uint32_t first, last, step;
  int32_t distance;
};
struct CaseExpansion {
  uint32_t point;
  const char* text;
};
#include "eval/case_tables.inc"

template <size_t Ranges, size_t Expansions>
void append_cased(std::string& out, uint32_t point, const CaseRange (&ranges)[Ranges],
                  const CaseExpansion (&expansions)[Expansions]) {
  for (const CaseExpansion& expansion : expansions) {
    if (expansion.point == point) {
      out += expansion.text;
      return;
    }
  }
  const CaseRange* range = std::ranges::lower_bound(ranges, point, {}, &CaseRange::last);
  if (range != std::end(ranges) && range->first <= point && (point - range->first) % range->step == 0)
    point = static_cast<uint32_t>(static_cast<int64_t>(point) + range->distance);
  append_utf8(out, point);
}

// str.isspace() of one character.
bool is_space(uint32_t point) {
  return (point >= 0x09 && point <= 0x0d) || (point >= 0x1c && point <= 0x20) || point == 0x85 ||
         point == 0xa0 || point == 0x1680 || (point >= 0x2000 && point <= 0x200a) || point == 0x2028 ||
         point == 0x2029 || point == 0x202f || point == 0x205f || point == 0x3000;
}

bool is_letter(uint32_t point) {
  return point < kCodePoints && (char_classes()[point] & kLetter) != 0;
}

Utf8Char character_at(std::string_view text, size_t at) {
  return decode_utf8(text.data() + at, text.size() - at);
}

}  // namespace

int64_t count_characters(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size(); at += character_at(text, at).length) ++count;
  return count;
}

std::string_view strip_end(std::string_view text) {
  size_t end = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = character_at(text, at);
    at += c.length;
    if (!is_space(c.point)) end = at;
  }
  return text.substr(0, end);
}

std::string_view strip(std::string_view text) {
  size_t begin = 0;
  while (begin < text.size()) {
    const Utf8Char c = character_at(text, begin);
    if (!is_space(c.point)) break;
    begin += c.length;
  }
  return strip_end(text.substr(begin));
}

std::string capitalize(std::string_view text) {
  constexpr uint32_t kCapitalSigma = 0x3a3, kFinalSigma = 0x3c2;
  std::string out;
  uint32_t before = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = character_at(text, at);
    const size_t next = at + c.length;
    if (!c.valid) {
      out += text[at];
    } else if (at == 0) {
      append_cased(out, c.point, kTitleRanges, kTitleExpansions);
    } else if (c.point == kCapitalSigma && is_letter(before) &&
               (next == text.size() || !is_letter(character_at(text, next).point))) {
      append_utf8(out, kFinalSigma);  // at the end of a word
    } else {
      append_cased(out, c.point, kLowerRanges, kLowerExpansions);
    }
    before = c.point;
    at = next;
  }
  return out;
}

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

std::string remove_brackets(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '[') {
      // The dot of the pattern matches no line break.
      const size_t end = text.find_first_of("]\n", at);
      if (end != std::string_view::npos && text[end] == ']') {
        at = end + 1;
        continue;
      }
    }
    out += text[at++];
  }
  return out;
}

// The generator of Matsumoto and Nishimura (1998) with their seeding by an array, which holds one number here.
namespace {
constexpr size_t kStateWords = 624, kMiddle = 397;
}

PythonRandom::PythonRandom(uint32_t seed) : state_(kStateWords), at_(kStateWords) {
  state_[0] = 19650218U;
  for (uint32_t i = 1; i < kStateWords; ++i)
    state_[i] = 1812433253U * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
  size_t i = 1;
  const auto wrap = [&] {
    if (++i < kStateWords) return;
    state_[0] = state_[kStateWords - 1];
    i = 1;
  };
  for (size_t k = 0; k < kStateWords; ++k) {
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1664525U)) + seed;
    wrap();
  }
  for (size_t k = 0; k + 1 < kStateWords; ++k) {
    state_[i] =
        (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1566083941U)) - static_cast<uint32_t>(i);
    wrap();
  }
  state_[0] = 0x80000000U;
}

uint32_t PythonRandom::next() {
  if (at_ == kStateWords) {
    for (size_t i = 0; i < kStateWords; ++i) {
      const uint32_t y = (state_[i] & 0x80000000U) | (state_[(i + 1) % kStateWords] & 0x7fffffffU);
      state_[i] = state_[(i + kMiddle) % kStateWords] ^ (y >> 1) ^ ((y & 1) != 0 ? 0x9908b0dfU : 0);
    }
    at_ = 0;
  }
  uint32_t y = state_[at_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680U;
  y ^= (y << 15) & 0xefc60000U;
  return y ^ (y >> 18);
}

size_t PythonRandom::below(size_t bound) {
  require(bound > 0 && bound <= UINT32_MAX, "[eval] a random number below {}, expected 1 to 2^32 - 1", bound);
  const auto bits = static_cast<int>(std::bit_width(bound));
  size_t value = bound;
  while (value >= bound) value = next() >> (32 - bits);
  return value;
}

std::vector<size_t> PythonRandom::sample(size_t size, size_t count) {
  require(count <= size, "[eval] a sample of {} from {}", count, size);
  size_t set_size = 21;
  if (count > 5) {
    const double power = std::ceil(std::log(static_cast<double>(3 * count)) / std::log(4.0));
    set_size += static_cast<size_t>(std::pow(4.0, power));
  }
  std::vector<size_t> chosen;
  if (size <= set_size) {
    std::vector<size_t> pool(size);
    std::iota(pool.begin(), pool.end(), size_t{0});
    for (size_t i = 0; i < count; ++i) {
      const size_t at = below(size - i);
      chosen.push_back(pool[at]);
      pool[at] = pool[size - i - 1];
    }
    return chosen;
  }
  std::set<size_t> taken;
  while (chosen.size() < count) {
    const size_t at = below(size);
    if (taken.insert(at).second) chosen.push_back(at);
  }
  return chosen;
}

}  // namespace octet
