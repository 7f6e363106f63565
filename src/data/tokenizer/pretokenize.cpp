#include "data/tokenizer/pretokenize.h"

#include <array>

#include "data/tokenizer/unicode.h"

namespace octet {
namespace {

constexpr std::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr uint8_t kOther = 0;  // neither letter, number nor space
constexpr uint8_t kPatternBits = kLetter | kNumber | kSpace;

constexpr std::array<uint8_t, 128> make_ascii_classes() {
  std::array<uint8_t, 128> classes{};
  for (unsigned c = 0; c < 128; ++c) {
    if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') classes[c] = kLetter;
    if (c >= '0' && c <= '9') classes[c] = kNumber;
    if (c == ' ' || (c >= 9 && c <= 13)) classes[c] = kSpace;
  }
  return classes;
}
constexpr std::array<uint8_t, 128> kAscii = make_ascii_classes();

struct Char {
  uint8_t kind;  // kLetter, kNumber, kSpace or kOther
  uint32_t length;
};

class Matcher {
 public:
  explicit Matcher(std::string_view text) : text_(text.data()), size_(text.size()) {}

  Char at(size_t i) const {
    const auto byte = static_cast<unsigned char>(text_[i]);
    if (byte < 0x80) return {kAscii[byte], 1};
    const Utf8Char c = decode_utf8(text_ + i, size_ - i);
    return {static_cast<uint8_t>(c.valid ? classes_[c.point] & kPatternBits : kOther), c.length};
  }
  bool is(size_t i, char c) const { return i < size_ && text_[i] == c; }
  bool is_newline(size_t i) const { return i < size_ && (text_[i] == '\n' || text_[i] == '\r'); }

  // End of the run of characters of this kind from `i` on.
  size_t run(size_t i, uint8_t kind) const {
    while (i < size_) {
      const Char c = at(i);
      if (c.kind != kind) break;
      i += c.length;
    }
    return i;
  }

  // 's 't 're 've 'm 'll 'd at the apostrophe `i`; `i` where there is none.
  size_t contraction(size_t i, bool ignore_case) const {
    if (i + 1 >= size_) return i;
    const auto lower = [&](size_t k) {
      const char c = text_[k];
      return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    };
    const char first = lower(i + 1);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return i + 2;
    // U+017F, the long s, is an s when case is ignored.
    if (ignore_case && first == '\xC5' && is(i + 2, '\xBF')) return i + 3;
    if (i + 2 >= size_) return i;
    const char second = lower(i + 2);
    if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l'))
      return i + 3;
    return i;
  }

  // \s+(?!\S)|\s+ : all but the last space, which belongs to the next word, unless there is only one.
  size_t spaces(size_t begin) const {
    size_t last = begin, end = begin;
    while (end < size_) {
      const Char c = at(end);
      if (c.kind != kSpace) return last == begin ? end : last;
      last = end;
      end += c.length;
    }
    return end;
  }

  size_t gpt2(size_t begin) const {
    if (text_[begin] == '\'') {
      if (const size_t end = contraction(begin, false); end > begin) return end;
    }
    const Char first = at(begin);
    if (first.kind != kSpace) return run(begin + first.length, first.kind);
    if (text_[begin] == ' ' && begin + 1 < size_) {
      const Char next = at(begin + 1);
      if (next.kind != kSpace) return run(begin + 1 + next.length, next.kind);
    }
    return spaces(begin);
  }

  size_t llama3(size_t begin, int max_digits) const {
    if (text_[begin] == '\'') {
      if (const size_t end = contraction(begin, true); end > begin) return end;
    }
    const Char first = at(begin);
    size_t end = begin + first.length;
    if (first.kind == kLetter) return run(end, kLetter);
    if (first.kind == kNumber) {
      for (int digits = 1; digits < max_digits && end < size_; ++digits) {
        const Char c = at(end);
        if (c.kind != kNumber) break;
        end += c.length;
      }
      return end;
    }
    if (end < size_ && !is_newline(begin)) {
      const Char next = at(end);
      if (next.kind == kLetter) return run(end + next.length, kLetter);
      if (next.kind == kOther && text_[begin] == ' ') return newlines(run(end + next.length, kOther));
    }
    if (first.kind == kOther) return newlines(run(end, kOther));
    return spaces_or_lines(begin);
  }

 private:
  size_t newlines(size_t i) const {
    while (is_newline(i)) ++i;
    return i;
  }

  // \s*[\r\n]+|\s+(?!\S)|\s+ : up to the last line break of the run, if it has one.
  size_t spaces_or_lines(size_t begin) const {
    size_t last = begin, end = begin, line_end = begin;
    while (end < size_) {
      const Char c = at(end);
      if (c.kind != kSpace) break;
      last = end;
      end += c.length;
      if (is_newline(last)) line_end = end;
    }
    if (line_end > begin) return line_end;
    return end == size_ || last == begin ? end : last;
  }

  const char* text_;
  size_t size_;
  const uint8_t* classes_ = char_classes();
};

// Digits are as Rust's char::is_numeric has them, with Unicode 17: these numbers came after the tables of the patterns.
bool is_newest_number(std::string_view text, size_t i) {
  const uint32_t point = decode_utf8(text.data() + i, text.size() - i).point;
  return (point >= 0x11DE0 && point <= 0x11DE9) || (point >= 0x16FF4 && point <= 0x16FF6);
}

}  // namespace

std::optional<SplitPattern> find_split_pattern(std::string_view regex) {
  if (regex == kGpt2Regex) return SplitPattern::Gpt2;
  if (regex == kLlama3Regex) return SplitPattern::Llama3;
  if (regex == kQwen2Regex) return SplitPattern::Qwen2;
  return std::nullopt;
}

size_t word_end(SplitPattern pattern, std::string_view text, size_t begin) {
  const Matcher matcher(text);
  switch (pattern) {
    case SplitPattern::None:
      return text.size();
    case SplitPattern::Gpt2:
      return matcher.gpt2(begin);
    case SplitPattern::Llama3:
      return matcher.llama3(begin, 3);
    case SplitPattern::Qwen2:
      return matcher.llama3(begin, 1);
  }
  return text.size();
}

size_t digit_part_end(DigitSplit digits, std::string_view text, size_t begin) {
  if (digits == DigitSplit::None) return text.size();
  const Matcher matcher(text);
  const auto is_digit = [&](size_t i, const Char& c) {
    return c.kind == kNumber || (c.length == 4 && is_newest_number(text, i));
  };
  const Char first = matcher.at(begin);
  const bool in_digits = is_digit(begin, first);
  size_t end = begin + first.length;
  if (in_digits && digits == DigitSplit::Each) return end;
  while (end < text.size()) {
    const Char c = matcher.at(end);
    if (is_digit(end, c) != in_digits) break;
    end += c.length;
  }
  return end;
}

size_t safe_cut(SplitPattern pattern, std::string_view text, size_t from) {
  if (pattern == SplitPattern::None) return text.size();
  // No alternative of the patterns has white space after a letter or number, and none has a lookbehind.
  for (size_t i = from > 0 ? from : 1; i < text.size(); ++i) {
    if ((text[i] == ' ' || text[i] == '\n') && (class_before(text, i) & (kLetter | kNumber))) return i;
  }
  return text.size();
}

}  // namespace octet
