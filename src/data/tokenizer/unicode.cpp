#include "data/tokenizer/unicode.h"

#include <algorithm>
#include <iterator>
#include <vector>

namespace octet {
namespace {

struct ClassRange {
  uint32_t first, last;
  uint8_t value;
};
struct Decomposition {
  uint32_t point, first, second;
};
struct Composition {
  uint32_t first, second, point;
};

#include "data/tokenizer/unicode_tables.inc"

std::vector<uint8_t> expand_classes() {
  std::vector<uint8_t> classes(kCodePoints, 0);
  for (const ClassRange& range : kClassRanges)
    std::fill(classes.begin() + range.first, classes.begin() + range.last + 1, range.value);
  return classes;
}

uint8_t combining_class(uint32_t point) {
  const auto* range = std::upper_bound(std::begin(kCombiningRanges), std::end(kCombiningRanges), point,
                                       [](uint32_t p, const ClassRange& r) { return p < r.first; });
  if (range == std::begin(kCombiningRanges)) return 0;
  --range;
  return point <= range->last ? range->value : 0;
}

// Hangul syllables are arithmetic (Unicode, 3.12).
constexpr uint32_t kSyllable = 0xAC00, kLead = 0x1100, kVowel = 0x1161, kTrail = 0x11A7;
constexpr uint32_t kLeads = 19, kVowels = 21, kTrails = 28, kSyllables = kLeads * kVowels * kTrails;

struct Symbol {
  uint32_t point;
  uint8_t combining;
};

void push(std::vector<Symbol>& out, uint32_t point) {
  out.push_back({point, combining_class(point)});
}

void decompose(std::vector<Symbol>& out, uint32_t point) {
  if (point - kSyllable < kSyllables) {
    const uint32_t index = point - kSyllable;
    push(out, kLead + index / (kVowels * kTrails));
    push(out, kVowel + index % (kVowels * kTrails) / kTrails);
    if (index % kTrails != 0) push(out, kTrail + index % kTrails);
    return;
  }
  // Only the first part of a decomposition decomposes further, so the second parts come out in reverse.
  uint32_t seconds[8];
  size_t count = 0;
  for (;;) {
    const auto* entry = std::lower_bound(std::begin(kDecompositions), std::end(kDecompositions), point,
                                         [](const Decomposition& d, uint32_t p) { return d.point < p; });
    if (entry == std::end(kDecompositions) || entry->point != point || count == std::size(seconds)) break;
    if (entry->second != 0) seconds[count++] = entry->second;
    point = entry->first;
  }
  push(out, point);
  while (count > 0) push(out, seconds[--count]);
}

// The primary composite of the pair, or 0.
uint32_t compose(uint32_t first, uint32_t second) {
  if (first - kLead < kLeads && second - kVowel < kVowels)
    return kSyllable + ((first - kLead) * kVowels + (second - kVowel)) * kTrails;
  if (first - kSyllable < kSyllables && (first - kSyllable) % kTrails == 0 &&
      second - kTrail - 1 < kTrails - 1)
    return first + (second - kTrail);
  const auto* entry = std::lower_bound(
      std::begin(kCompositions), std::end(kCompositions), std::pair(first, second),
      [](const Composition& c, const auto& pair) { return std::pair(c.first, c.second) < pair; });
  if (entry == std::end(kCompositions) || entry->first != first || entry->second != second) return 0;
  return entry->point;
}

void reorder(std::vector<Symbol>& symbols) {
  for (size_t i = 0; i < symbols.size();) {
    size_t end = i;
    while (end < symbols.size() && symbols[end].combining != 0) ++end;
    std::stable_sort(symbols.begin() + static_cast<ptrdiff_t>(i),
                     symbols.begin() + static_cast<ptrdiff_t>(end),
                     [](const Symbol& a, const Symbol& b) { return a.combining < b.combining; });
    i = end + 1;
  }
}

void compose_in_place(std::vector<Symbol>& symbols) {
  size_t out = 0;
  size_t starter = symbols.size();  // index of the last starter written; none yet
  int last_combining = -1;          // of what was written after the starter; -1: nothing
  for (const Symbol symbol : symbols) {
    const bool blocked = last_combining >= symbol.combining;
    if (starter < symbols.size() && !blocked) {
      if (const uint32_t composite = compose(symbols[starter].point, symbol.point)) {
        symbols[starter].point = composite;
        continue;
      }
    }
    if (symbol.combining == 0) {
      starter = out;
      last_combining = -1;
    } else {
      last_combining = symbol.combining;
    }
    symbols[out++] = symbol;
  }
  symbols.resize(out);
}

// Offset just after the leading part that is already in NFC and does not interact with what follows.
size_t nfc_prefix(std::string_view text) {
  const uint8_t* classes = char_classes();
  size_t previous = 0;  // start of the last character: an active one that follows may compose with it
  for (size_t i = 0; i < text.size();) {
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      previous = i++;
      continue;
    }
    const Utf8Char c = decode_utf8(text.data() + i, text.size() - i);
    if (c.valid && (classes[c.point] & kNfcActive)) return previous;
    previous = i;
    i += c.length;
  }
  return text.size();
}

}  // namespace

namespace detail {

Utf8Char decode_multibyte(const unsigned char* text, size_t size) {
  const auto continues = [&](size_t i) { return i < size && (text[i] & 0xC0) == 0x80; };
  const uint32_t lead = text[0];
  if (lead >= 0xC2 && lead <= 0xDF && continues(1)) return {(lead & 0x1F) << 6 | (text[1] & 0x3Fu), 2, true};
  if (lead >= 0xE0 && lead <= 0xEF && continues(1) && continues(2)) {
    const uint32_t point = (lead & 0x0F) << 12 | (text[1] & 0x3Fu) << 6 | (text[2] & 0x3Fu);
    if (point >= 0x800 && (point < 0xD800 || point > 0xDFFF)) return {point, 3, true};
  } else if (lead >= 0xF0 && lead <= 0xF4 && continues(1) && continues(2) && continues(3)) {
    const uint32_t point =
        (lead & 0x07) << 18 | (text[1] & 0x3Fu) << 12 | (text[2] & 0x3Fu) << 6 | (text[3] & 0x3Fu);
    if (point >= 0x10000 && point < kCodePoints) return {point, 4, true};
  }
  return {lead, 1, false};
}

}  // namespace detail

const uint8_t* char_classes() {
  static const std::vector<uint8_t> classes = expand_classes();
  return classes.data();
}

void append_utf8(std::string& out, uint32_t point) {
  const auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (point < 0x80) {
    put(point);
  } else if (point < 0x800) {
    put(0xC0 | point >> 6);
    put(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    put(0xE0 | point >> 12);
    put(0x80 | (point >> 6 & 0x3F));
    put(0x80 | (point & 0x3F));
  } else {
    put(0xF0 | point >> 18);
    put(0x80 | (point >> 12 & 0x3F));
    put(0x80 | (point >> 6 & 0x3F));
    put(0x80 | (point & 0x3F));
  }
}

IllFormed ill_formed_prefix(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  size_t needed = 0;
  unsigned low = 0x80, high = 0xBF;  // what the second byte may be
  if (lead >= 0xC2 && lead <= 0xDF) {
    needed = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    needed = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    needed = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {1, false};
  }
  size_t length = 1;
  while (length < needed && length < text.size() && byte(length) >= low && byte(length) <= high) {
    ++length;
    low = 0x80, high = 0xBF;
  }
  return {length, length == text.size() && length < needed};
}

uint8_t class_before(std::string_view text, size_t end) {
  // A character has at most four bytes; one that ends elsewhere leaves the last byte ill-formed.
  for (size_t length = 1; length <= 4 && length <= end; ++length) {
    const Utf8Char c = decode_utf8(text.data() + end - length, length);
    if (c.valid && c.length == length) return char_classes()[c.point];
  }
  return 0;
}

bool surely_nfc(std::string_view text) {
  return nfc_prefix(text) == text.size();
}

std::string to_nfc(std::string_view text) {
  const uint8_t* classes = char_classes();
  std::string out;
  out.reserve(text.size());
  std::vector<Symbol> symbols;
  while (!text.empty()) {
    const size_t plain = nfc_prefix(text);
    out.append(text.substr(0, plain));
    text.remove_prefix(plain);
    if (text.empty()) break;
    // One character, then all active ones after it: no other character can combine with them.
    symbols.clear();
    size_t used = 0;
    do {
      const Utf8Char c = decode_utf8(text.data() + used, text.size() - used);
      if (!c.valid) {
        if (used == 0) {  // an ill-formed byte joins nothing
          out.push_back(text[0]);
          used = 1;
        }
        break;
      }
      if (used > 0 && !(classes[c.point] & kNfcActive)) break;
      decompose(symbols, c.point);
      used += c.length;
    } while (used < text.size());
    text.remove_prefix(used);
    reorder(symbols);
    compose_in_place(symbols);
    for (const Symbol& symbol : symbols) append_utf8(out, symbol.point);
  }
  return out;
}

}  // namespace octet
