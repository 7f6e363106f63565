#include "data/tokenizer/byte_level_tokenizer.h"

#include <utility>

#include "base/hash.h"
#include "data/tokenizer/unicode.h"

namespace octet {
namespace {

std::vector<AddedToken> found_in_normalized_text(const ByteLevelSpec& spec) {
  std::vector<AddedToken> tokens;
  for (const AddedToken& token : spec.added) {
    if (!token.normalized) continue;
    tokens.push_back(token);
    if (spec.nfc) tokens.back().content = to_nfc(token.content);
  }
  return tokens;
}

uint64_t fingerprint_of(const ByteLevelSpec& spec) {
  Hash64 hash;
  hash_model(hash, spec);
  hash.add(static_cast<int>(spec.pattern)).add(spec.add_prefix_space).add(spec.nfc);
  if (spec.digits != DigitSplit::None) hash.add(static_cast<int>(spec.digits));
  hash_added(hash, spec);
  return hash.value();
}

}  // namespace

ByteLevelTokenizer::ByteLevelTokenizer(ByteLevelSpec spec)
    : VocabularyTokenizer(spec, fingerprint_of(spec)),
      model_(std::move(spec.tokens), spec.merges, spec.ignore_merges),
      pattern_(spec.pattern),
      digits_(spec.digits),
      add_prefix_space_(spec.add_prefix_space),
      nfc_(spec.nfc),
      normalized_added_(found_in_normalized_text(spec)) {}

void ByteLevelTokenizer::encode_section(std::string_view text, Before before, BpeScratch& scratch,
                                        std::vector<int32_t>& out) const {
  std::string composed;
  if (nfc_ && !surely_nfc(text)) {
    composed = to_nfc(text);
    text = composed;
  }
  const char* const begin = text.data();
  normalized_added_.split(
      text,
      [&](std::string_view piece) {
        std::string prefixed;
        const bool continues = before == Before::Text && piece.data() == begin;
        if (add_prefix_space_ && !continues && piece.front() != ' ') {
          prefixed.reserve(piece.size() + 1);
          prefixed.append(1, ' ').append(piece);
          piece = prefixed;
        }
        encode_chunks(
            piece, [&](size_t from) { return safe_cut(pattern_, piece, from); },
            [&](std::string_view chunk, BpeScratch& used, std::vector<int32_t>& ids) {
              encode_words(chunk, used, ids);
            },
            scratch, out);
      },
      [&](int32_t id) { out.push_back(id); });
}

void ByteLevelTokenizer::encode_words(std::string_view text, BpeScratch& scratch,
                                      std::vector<int32_t>& out) const {
  for (size_t begin = 0; begin < text.size();) {
    const std::string_view part = text.substr(0, digit_part_end(digits_, text, begin));
    while (begin < part.size()) {
      const size_t end = word_end(pattern_, part, begin);
      model_.encode_word(text.substr(begin, end - begin), text.size() - begin, scratch, out);
      begin = end;
    }
  }
}

}  // namespace octet
