#include "data/tokenizer/sentencepiece_tokenizer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/hash.h"

namespace octet {
namespace {

using LeadingSpace = SentencePieceSpec::LeadingSpace;

uint64_t fingerprint_of(const SentencePieceSpec& spec) {
  Hash64 hash;
  hash.add("SentencePiece");
  hash_model(hash, spec);
  hash.add(static_cast<int>(spec.leading_space))
      .add(spec.unless_space)
      .add(spec.normalizes_first)
      .add(spec.strips_decoded_space);
  hash.add(spec.split_at_spaces).add(spec.normalizer.remove_extra_spaces).add(spec.normalizer.chars.hash());
  for (const int32_t id : spec.fallback.bytes) hash.add(id);
  hash.add(spec.fallback.unknown).add(spec.fuse_unknown);
  if (spec.unigram) {
    for (const float score : spec.unigram->scores) hash.add(std::bit_cast<uint32_t>(score));
  }
  hash_added(hash, spec);
  return hash.value();
}

}  // namespace

SentencePieceTokenizer::Model SentencePieceTokenizer::make_model(const SentencePieceSpec& spec) {
  if (spec.unigram)
    return UnigramModel(spec.tokens, spec.unigram->scores, spec.unigram->unknown_score, spec.fallback);
  return BpeModel(spec.tokens, spec.merges, spec.ignore_merges && spec.split_at_spaces, spec.fallback);
}

SentencePieceTokenizer::SentencePieceTokenizer(SentencePieceSpec spec)
    : VocabularyTokenizer(spec, fingerprint_of(spec)),
      model_(make_model(spec)),
      normalizer_(std::move(spec.normalizer)),
      leading_space_(spec.leading_space),
      unless_space_(spec.unless_space),
      normalizes_first_(spec.normalizes_first),
      strips_decoded_space_(spec.strips_decoded_space),
      split_at_spaces_(spec.split_at_spaces),
      ignore_merges_(spec.ignore_merges),
      searched_(std::move(spec.searched)) {
  if (spec.fuse_unknown && spec.fallback.unknown >= 0) fused_ = spec.fallback.unknown;
  for (const BpeModel::Merge& merge : spec.merges) {
    if (static_cast<size_t>(merge.result) >= spec.tokens.size()) continue;  // a token that is only decoded
    const std::string& token = spec.tokens[static_cast<size_t>(merge.result)];
    for (size_t i = 1; i < token.size(); ++i) {
      if (token[i] == ' ') joins_space_[static_cast<unsigned char>(token[i - 1])] = true;
    }
  }
}

std::string SentencePieceTokenizer::prepare(std::string_view text, Before before) const {
  std::string normalized = normalizer_.normalize(text, before == Before::Text);
  const bool is_wanted = leading_space_ == LeadingSpace::EveryPart
                             ? before != Before::Text
                             : leading_space_ == LeadingSpace::FirstPart && before == Before::Nothing;
  if (!is_wanted || (unless_space_ && normalized.starts_with(' '))) return normalized;
  if (normalized.empty() && normalizer_.remove_extra_spaces) return normalized;
  return normalized.insert(0, 1, ' ');
}

void SentencePieceTokenizer::encode_section(std::string_view text, Before before, BpeScratch& scratch,
                                            std::vector<int32_t>& out) const {
  std::string normalized;
  if (normalizes_first_) {
    normalized = prepare(text, before);
    text = normalized;
  }
  const char* const begin = text.data();
  searched_.split(
      text,
      [&](std::string_view part) {
        if (normalizes_first_) return encode_part(part, scratch, out);
        encode_part(prepare(part, part.data() == begin ? before : Before::Token), scratch, out);
      },
      [&](int32_t id) { out.push_back(id); });
}

void SentencePieceTokenizer::encode_part(std::string_view text, BpeScratch& scratch,
                                         std::vector<int32_t>& out) const {
  const auto first = static_cast<ptrdiff_t>(out.size());
  if (const auto* unigram = std::get_if<UnigramModel>(&model_)) {
    unigram->encode(text, out);
  } else {
    const BpeModel& bpe = std::get<BpeModel>(model_);
    // The whole text is one word to the model, even where it can be merged in parts.
    const std::optional<int32_t> whole = ignore_merges_ && !split_at_spaces_ ? bpe.find(text) : std::nullopt;
    if (whole) return out.push_back(*whole);
    encode_chunks(
        text, [&](size_t from) { return word_end(text, from - 1); },
        [&](std::string_view chunk, BpeScratch& used, std::vector<int32_t>& ids) {
          for (size_t begin = 0; begin < chunk.size();) {
            const size_t end = word_end(chunk, begin);
            bpe.encode_word(chunk.substr(begin, end - begin), chunk.size() - begin, used, ids);
            begin = end;
          }
        },
        scratch, out);
  }
  if (!fused_) return;
  const auto both_unknown = [&](int32_t a, int32_t b) { return a == *fused_ && b == *fused_; };
  out.erase(std::unique(out.begin() + first, out.end(), both_unknown), out.end());
}

size_t SentencePieceTokenizer::word_end(std::string_view text, size_t begin) const {
  for (size_t space = begin + 1; space < text.size(); ++space) {
    const void* found = std::memchr(text.data() + space, ' ', text.size() - space);
    if (!found) break;
    space = static_cast<size_t>(static_cast<const char*>(found) - text.data());
    if (split_at_spaces_ || !joins_space_[static_cast<unsigned char>(text[space - 1])]) return space;
  }
  return text.size();
}

std::optional<int32_t> SentencePieceTokenizer::find_in_model(std::string_view text) const {
  const std::string plain = with_plain_spaces(text);
  return std::visit([&](const auto& model) { return model.find(plain); }, model_);
}

std::string SentencePieceTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text = decode_continued(ids);
  if (strips_decoded_space_ && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

std::string SentencePieceTokenizer::decode_continued(std::span<const int32_t> ids) const {
  return VocabularyTokenizer::decode(ids);
}

}  // namespace octet
