#include "plan/marked_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "report/text.h"

namespace octet {
namespace {

struct Stretch {
  bool is_target = false;
  std::string text;
};

bool is_inside_character(std::string_view text, size_t at) {
  return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
}

// Keeps the first and the last `half` bytes of all stretches together.
void cut_middle(std::vector<Stretch>& stretches, size_t most) {
  size_t total = 0;
  for (const Stretch& stretch : stretches) total += stretch.text.size();
  if (most == 0 || total <= most) return;
  const size_t half = most / 2, end = total - half;
  std::vector<Stretch> kept;
  size_t at = 0;
  bool is_cut = false;
  for (const Stretch& stretch : stretches) {
    size_t head = std::min(stretch.text.size(), half > at ? half - at : 0);
    size_t tail = std::min(stretch.text.size(), end > at ? end - at : 0);
    while (is_inside_character(stretch.text, head)) ++head;
    while (is_inside_character(stretch.text, tail)) ++tail;
    at += stretch.text.size();
    std::string text = stretch.text.substr(0, head);
    if (tail > head && !is_cut) text += " ... ", is_cut = true;
    if (tail > head) {
      text += stretch.text.substr(tail);
    } else {
      text = stretch.text;
    }
    if (!text.empty()) kept.push_back({stretch.is_target, std::move(text)});
  }
  stretches = std::move(kept);
}

}  // namespace

std::string marked_text(const Document& document, const Tokenizer& tokenizer, MarkStyle style, size_t most) {
  std::vector<Stretch> stretches;
  const std::span<const int32_t> tokens = document.tokens;
  for (size_t i = 0; i < tokens.size();) {
    size_t end = i + 1;
    while (end < tokens.size() && document.is_target[end] == document.is_target[i]) ++end;
    const std::span<const int32_t> part = tokens.subspan(i, end - i);
    stretches.push_back({document.is_target[i] != 0,
                         without_escapes(i == 0 ? tokenizer.decode(part) : tokenizer.decode_continued(part))});
    i = end;
  }
  cut_middle(stretches, most);
  std::string text;
  for (const Stretch& stretch : stretches) {
    if (style == MarkStyle::Color) {
      text += fmt::format("{}{}\x1b[0m", stretch.is_target ? "\x1b[32m" : "\x1b[2m", stretch.text);
    } else {
      text += stretch.is_target ? fmt::format("[[{}]]", stretch.text) : stretch.text;
    }
  }
  return text;
}

std::string marked_counts(const Document& document) {
  // Nothing predicts the first token.
  const int64_t trained = document.is_target.empty() ? 0
                                                     : std::count(document.is_target.begin() + 1,
                                                                  document.is_target.end(), uint8_t{1});
  return fmt::format("{} tokens, {} trained ({:.1f} %)", document.tokens.size(), trained,
                     document.tokens.empty() ? 0.0
                                             : 100.0 * static_cast<double>(trained) /
                                                   static_cast<double>(document.tokens.size()));
}

}  // namespace octet
