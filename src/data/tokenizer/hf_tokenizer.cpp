#include "data/tokenizer/hf_tokenizer.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "data/tokenizer/sentencepiece_files.h"
#include "data/tokenizer/tokenizer_json.h"

namespace octet {
namespace {

constexpr const char* kReads =
    "octet reads byte-level BPE as GPT-2, Llama 3, Qwen2.5 and SmolLM define it, and SentencePiece BPE as Llama 2 and Mistral "
    "define it";

class ByteLevelReader final : public TokenizerJsonReader {
 public:
  explicit ByteLevelReader(ByteLevelSpec& spec)
      : TokenizerJsonReader(spec, bytes_of_alphabet, kReads), byte_level_(spec) {}

 private:
  void read_model_options(const Json& model) override {
    if (flag(model, "byte_fallback", false)) unknown("model option", "byte_fallback true with ByteLevel");
  }

  void read_normalizer(const Json& normalizer) override {
    for (const Json* part : sequence(normalizer, "normalizer", "normalizers")) {
      const std::string kind = type(*part, "normalizer");
      if (kind != "NFC") unknown("normalizer", kind);
      byte_level_.nfc = true;
    }
  }

  void read_pre_tokenizer(const Json& pre_tokenizer) override {
    if (pre_tokenizer.is_null()) unknown("pre_tokenizer", "null");
    std::optional<SplitPattern> pattern;
    bool byte_level = false;
    for (const Json* part : sequence(pre_tokenizer, "pre_tokenizer", "pretokenizers")) {
      const std::string kind = type(*part, "pre_tokenizer");
      if (byte_level) unknown("pre_tokenizer", kind + " after ByteLevel");
      if (kind == "Digits") {
        if (pattern || byte_level_.digits != DigitSplit::None)
          unknown("pre_tokenizer", "Digits that is not the first");
        byte_level_.digits = flag(*part, "individual_digits", false) ? DigitSplit::Each : DigitSplit::Runs;
      } else if (kind == "Split") {
        if (pattern) unknown("pre_tokenizer", "a second Split");
        pattern = read_split(*part);
      } else if (kind == "ByteLevel") {
        byte_level = true;
        byte_level_.add_prefix_space = flag(*part, "add_prefix_space", true);
        const bool use_regex = flag(*part, "use_regex", true);
        if (pattern && use_regex) unknown("pre_tokenizer", "Split and ByteLevel with use_regex");
        if (pattern && byte_level_.add_prefix_space)
          unknown("pre_tokenizer", "Split and ByteLevel with add_prefix_space");
        if (byte_level_.digits != DigitSplit::None && byte_level_.add_prefix_space)
          unknown("pre_tokenizer", "Digits and ByteLevel with add_prefix_space");
        if (!pattern) pattern = use_regex ? SplitPattern::Gpt2 : SplitPattern::None;
      } else {
        unknown("pre_tokenizer", kind);
      }
    }
    if (!byte_level) unknown("pre_tokenizer", type(pre_tokenizer, "pre_tokenizer") + " without ByteLevel");
    byte_level_.pattern = *pattern;
  }

  SplitPattern read_split(const Json& split) {
    const Json& pattern = value(split, "pattern");
    const Json& regex = pattern.is_object() ? value(pattern, "Regex") : pattern;
    if (!regex.is_string()) unknown("Split pattern", pattern.dump());
    // The patterns match every character, so keeping only the matches is the same as isolating them.
    const Json& behavior = value(split, "behavior");
    const bool invert = flag(split, "invert", false);
    if (!(behavior == "Isolated" && !invert) && !(behavior == "Removed" && invert))
      unknown("Split behavior", fmt::format("{} with invert {}", behavior.dump(), invert));
    const std::string text = regex.get<std::string>();
    const std::optional<SplitPattern> known = find_split_pattern(text);
    if (!known) unknown("Split pattern", text);
    return *known;
  }

  void read_decoder(const Json& decoder) override {
    if (decoder.is_null()) return;  // the pre-tokenizer has said that tokens are bytes
    for (const Json* part : sequence(decoder, "decoder", "decoders")) {
      const std::string kind = type(*part, "decoder");
      if (kind != "ByteLevel") unknown("decoder", kind);
    }
  }

  ByteLevelSpec& byte_level_;
};

template <class Spec>
void finish(Spec& spec, const std::string& folder) {
  if (!folder.empty()) apply_tokenizer_config(spec, nullptr, folder);
  guess_eos(spec);
}

nlohmann::json parse(std::string_view text, const std::string& place) {
  return parse_json(text, place, {.refuse_duplicate_keys = true});
}

}  // namespace

ByteLevelSpec parse_tokenizer_json(std::string_view text, const std::string& place) {
  ByteLevelSpec spec;
  spec.place = place;
  ByteLevelReader(spec).read(parse(text, place));
  return spec;
}

TokenizerSpec read_json_spec(std::string_view text, const std::string& place, const std::string& folder) {
  const nlohmann::json root = parse(text, place);
  if (is_sentencepiece_json(root)) {
    SentencePieceSpec spec = parse_sentencepiece_json(root, place);
    finish(spec, folder);
    return spec;
  }
  ByteLevelSpec spec;
  spec.place = place;
  ByteLevelReader(spec).read(root);
  finish(spec, folder);
  return spec;
}

std::unique_ptr<Tokenizer> make_json_tokenizer(std::string_view text, const std::string& place,
                                               const std::string& folder) {
  return make_tokenizer_of(read_json_spec(text, place, folder));
}

std::unique_ptr<Tokenizer> make_tokenizer_of(TokenizerSpec spec) {
  if (auto* byte_level = std::get_if<ByteLevelSpec>(&spec))
    return std::make_unique<ByteLevelTokenizer>(std::move(*byte_level));
  return std::make_unique<SentencePieceTokenizer>(std::move(std::get<SentencePieceSpec>(spec)));
}

}  // namespace octet
