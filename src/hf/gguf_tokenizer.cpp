#include "hf/gguf_tokenizer.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "data/tokenizer/bytes_tokenizer.h"
#include "data/tokenizer/hf_tokenizer.h"
#include "data/tokenizer/unicode.h"
#include "hf/byte_alphabet.h"

namespace octet {
namespace {

// The kinds of tokens, with the numbers of the format.
enum TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;

  explicit Vocabulary(int64_t size) : types(static_cast<size_t>(size), kUnused) {
    for (int64_t id = 0; id < size; ++id) tokens.push_back(fmt::format("[PAD{}]", id));
  }
  void set(int64_t id, std::string text, TokenType type) {
    require(id >= 0 && id < std::ssize(tokens), "[gguf] token {} is outside the vocabulary of {}", id,
            tokens.size());
    tokens[static_cast<size_t>(id)] = std::move(text);
    types[static_cast<size_t>(id)] = type;
  }
  void set_added(const VocabularySpec& spec) {
    for (const AddedToken& token : spec.added)
      set(token.id, token.content, token.special ? kControl : kUserDefined);
  }
};

ByteLevelSpec bytes_spec() {
  ByteLevelSpec spec;
  spec.place = "bytes";
  for (int byte = 0; byte < 256; ++byte) spec.tokens.emplace_back(1, static_cast<char>(byte));
  AddedToken end;
  end.id = BytesTokenizer::kEndOfText;
  end.content = "<|endoftext|>";
  end.special = true;
  spec.added.push_back(std::move(end));
  spec.bos = spec.eos = BytesTokenizer::kEndOfText;
  return spec;
}

std::string pattern_name(const ByteLevelSpec& spec) {
  if (spec.digits != DigitSplit::None && !spec.merges.empty()) {
    if (spec.digits == DigitSplit::Each && spec.pattern == SplitPattern::Gpt2) return "smollm";
    fail_config("[{}] splits digits from words in a way that llama.cpp has no name for", spec.place);
  }
  switch (spec.pattern) {
    case SplitPattern::Llama3:
      return "llama-bpe";
    case SplitPattern::Qwen2:
      return "qwen2";
    case SplitPattern::None:
      if (!spec.merges.empty())
        fail_config("[{}] does not split texts into words, which llama.cpp has no name for", spec.place);
      break;  // without merges words do not matter
    case SplitPattern::Gpt2:
      break;
  }
  return "gpt-2";
}

// Whether there is a token that no merge makes. Without one, it does not matter whether words that are tokens are merged.
bool has_unmerged_token(const ByteLevelSpec& spec) {
  std::vector<bool> made(spec.tokens.size());
  for (const BpeModel::Merge& merge : spec.merges) made[static_cast<size_t>(merge.result)] = true;
  for (const AddedToken& token : spec.added) {
    if (const auto id = static_cast<size_t>(token.id); id < made.size()) made[id] = true;
  }
  for (size_t id = 0; id < made.size(); ++id) {
    if (spec.tokens[id].size() > 1 && !made[id]) return true;
  }
  return false;
}

// llama.cpp knows these rules by the name of the pattern alone, or not at all.
void warn_of_differences(const ByteLevelSpec& spec, const std::string& pattern) {
  const bool ignores_there = pattern == "llama-bpe";
  if (!spec.merges.empty() && spec.ignore_merges != ignores_there && has_unmerged_token(spec))
    log_warning(
        "[{}] {} words that are tokens, llama.cpp {} for the pattern {}: rare words may get other tokens there",
        spec.place, spec.ignore_merges ? "does not merge" : "merges also",
        ignores_there ? "does not merge them" : "merges them", pattern);
  if (spec.nfc)
    log_warning(
        "[{}] normalises texts (NFC), llama.cpp does not: letters that are written with separate accents get other "
        "tokens there",
        spec.place);
}

std::string add_byte_level(GgufWriter& writer, const ByteLevelSpec& spec, int64_t size) {
  Vocabulary vocabulary(size);
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (!spec.tokens[id].empty())
      vocabulary.set(static_cast<int64_t>(id), to_byte_alphabet(spec.tokens[id]), kNormal);
  }
  for (const auto& [id, text] : spec.decode_only) vocabulary.set(id, text, kNormal);
  vocabulary.set_added(spec);

  std::vector<BpeModel::Merge> merges = spec.merges;
  std::ranges::stable_sort(merges, {}, &BpeModel::Merge::rank);
  std::vector<std::string> texts;
  for (const BpeModel::Merge& merge : merges) {
    texts.push_back(to_byte_alphabet(spec.tokens[static_cast<size_t>(merge.left)]) + " " +
                    to_byte_alphabet(spec.tokens[static_cast<size_t>(merge.right)]));
  }
  const std::string pattern = pattern_name(spec);
  warn_of_differences(spec, pattern);
  writer.add("tokenizer.ggml.model", "gpt2");
  writer.add("tokenizer.ggml.pre", pattern);
  writer.add("tokenizer.ggml.tokens", vocabulary.tokens);
  writer.add("tokenizer.ggml.token_type", vocabulary.types);
  writer.add("tokenizer.ggml.merges", texts);
  if (spec.add_prefix_space) writer.add("tokenizer.ggml.add_space_prefix", true);
  return fmt::format("byte-level BPE ({})", pattern);
}

std::string add_sentencepiece(GgufWriter& writer, const SentencePieceSpec& spec, int64_t size) {
  if (spec.unigram)
    fail_config("[{}] is a Unigram model, which llama.cpp does not read for this family of models",
                spec.place);
  if (spec.leading_space == SentencePieceSpec::LeadingSpace::FirstPart)
    log_warning(
        "[{}] puts a space only in front of a whole text, llama.cpp also behind special tokens: texts behind them may "
        "get other tokens there",
        spec.place);
  Vocabulary vocabulary(size);
  const auto marked = [](std::string_view text) {
    std::string result;
    for (const char c : text) result += c == ' ' ? std::string("\u2581") : std::string(1, c);
    return result;
  };
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (!spec.tokens[id].empty()) vocabulary.set(static_cast<int64_t>(id), marked(spec.tokens[id]), kNormal);
  }
  for (const auto& [id, text] : spec.decode_only) vocabulary.set(id, marked(text), kNormal);
  for (size_t byte = 0; byte < spec.fallback.bytes.size(); ++byte) {
    if (const int32_t id = spec.fallback.bytes[byte]; id >= 0)
      vocabulary.set(id, fmt::format("<0x{:02X}>", byte), kByte);
  }
  vocabulary.set_added(spec);
  if (const int32_t unknown = spec.fallback.unknown; unknown >= 0) {
    vocabulary.types[static_cast<size_t>(unknown)] = kUnknown;
    writer.add_count("tokenizer.ggml.unknown_token_id", unknown);
  }
  // llama.cpp merges the pair whose token has the highest score. Tokens that no merge makes come last.
  std::vector<float> scores(vocabulary.tokens.size(), -1e9f);
  for (const BpeModel::Merge& merge : spec.merges) {
    float& score = scores[static_cast<size_t>(merge.result)];
    score = std::max(score, -static_cast<float>(merge.rank));
  }
  writer.add("tokenizer.ggml.model", "llama");
  writer.add("tokenizer.ggml.pre", "default");
  writer.add("tokenizer.ggml.tokens", vocabulary.tokens);
  writer.add("tokenizer.ggml.scores", scores);
  writer.add("tokenizer.ggml.token_type", vocabulary.types);
  writer.add("tokenizer.ggml.add_space_prefix", spec.leading_space != SentencePieceSpec::LeadingSpace::None);
  return "SentencePiece BPE";
}

}  // namespace

std::string add_gguf_tokenizer(GgufWriter& writer, const GgufTokenizer& tokenizer) {
  const TokenizerSpec spec = tokenizer.name == "bytes" ? TokenizerSpec(bytes_spec())
                                                       : read_tokenizer_spec(local_tokenizer(tokenizer.name));
  const auto* byte_level = std::get_if<ByteLevelSpec>(&spec);
  const auto* pieces = std::get_if<SentencePieceSpec>(&spec);
  const VocabularySpec& common = byte_level ? static_cast<const VocabularySpec&>(*byte_level)
                                            : static_cast<const VocabularySpec&>(*pieces);
  std::string words = byte_level ? add_byte_level(writer, *byte_level, tokenizer.vocab)
                                 : add_sentencepiece(writer, *pieces, tokenizer.vocab);
  const std::optional<int32_t> bos = common.bos ? common.bos : tokenizer.bos;
  std::optional<int32_t> eos = common.eos ? common.eos : tokenizer.eos;
  if (tokenizer.chat_end) eos = tokenizer.chat_end;
  // A config.json may name ids that no token has, also -1 for none. llama.cpp would read beyond its table.
  const auto add_id = [&](const char* key, std::optional<int32_t> id) {
    if (id && *id >= 0 && *id < tokenizer.vocab) writer.add_count(key, *id);
  };
  add_id("tokenizer.ggml.bos_token_id", bos);
  add_id("tokenizer.ggml.eos_token_id", eos);
  add_id("tokenizer.ggml.padding_token_id", tokenizer.pad);
  writer.add("tokenizer.ggml.add_bos_token", bos && !common.prefix.empty() && common.prefix.front() == *bos);
  writer.add("tokenizer.ggml.add_eos_token", eos && !common.suffix.empty() && common.suffix.back() == *eos);
  if (!tokenizer.chat_jinja.empty()) {
    writer.add("tokenizer.chat_template", tokenizer.chat_jinja);
    words += " with the chat template";
  }
  return words;
}

}  // namespace octet
