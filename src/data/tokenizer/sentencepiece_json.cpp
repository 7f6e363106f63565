// tokenizer.json files that were made from SentencePiece BPE models (Llama 2, TinyLlama, Mistral).
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/tokenizer/sentencepiece_files.h"
#include "data/tokenizer/tokenizer_json.h"

namespace octet {
namespace {

constexpr const char* kReadsPieces =
    "octet reads SentencePiece BPE as Llama 2 and Mistral define it, and the tokenizer.model files of BPE and Unigram";

// Tokens with spaces for marks. A token with a space of its own is never produced: no text has one when it is merged.
std::optional<std::string> bytes_of_marked(std::string_view token) {
  if (token.find(' ') != token.npos) return std::nullopt;
  return with_plain_spaces(token);
}

class SentencePieceReader final : public TokenizerJsonReader {
 public:
  explicit SentencePieceReader(SentencePieceSpec& spec)
      : TokenizerJsonReader(spec, bytes_of_marked, kReadsPieces), pieces_(spec) {}

  void finish() {
    pieces_.fuse_unknown = fuse_unknown_;
    if (!unknown_.empty()) {
      const std::optional<int32_t> id = vocab_.find(unknown_);
      if (!id) fail("[{}] unk_token '{}' is not in the vocabulary", spec_.place, unknown_);
      pieces_.fallback.unknown = *id;
    }
    // Bytes are not found in the text by their names.
    for (int byte = 0; byte < 256; ++byte) {
      const std::optional<int32_t> id = vocab_.find(fmt::format("<0x{:02X}>", byte));
      if (!id) continue;
      if (byte_fallback_) pieces_.fallback.bytes[static_cast<size_t>(byte)] = *id;
      if (!decodes_bytes_) continue;
      spec_.tokens[static_cast<size_t>(*id)].clear();
      spec_.decode_only.emplace_back(*id, std::string(1, static_cast<char>(byte)));
    }
    if (byte_fallback_ && !decodes_bytes_) unknown("decoder", "without ByteFallback, for byte_fallback true");
    pieces_.normalizes_first = replaces_ || prepends_;
    // The library also shows the token as the normalizer changes it.
    for (AddedToken& token : spec_.added) {
      token.shown = with_plain_spaces(token.content);
      if (!token.normalized) continue;
      if (prepends_) token.shown.insert(0, 1, ' ');
      pieces_.searched.push_back(token);
      if (pieces_.normalizes_first) pieces_.searched.back().content = token.shown;
    }
  }

 private:
  void read_model_options(const Json& model) override {
    byte_fallback_ = flag(model, "byte_fallback", false);
    fuse_unknown_ = flag(model, "fuse_unk", false);
    const Json& unk = value(model, "unk_token");
    if (unk.is_string()) unknown_ = unk.get<std::string>();
    if (!unk.is_null() && !unk.is_string())
      fail("[{}] `unk_token` is {}, expected text", spec_.place, unk.dump());
  }

  void read_normalizer(const Json& normalizer) override {
    for (const Json* part : sequence(normalizer, "normalizer", "normalizers")) {
      const std::string kind = type(*part, "normalizer");
      if (kind == "Prepend" && value(*part, "prepend") == kSpaceMark && !prepends_) {
        prepends_ = true;
        pieces_.leading_space = SentencePieceSpec::LeadingSpace::EveryPart;
      } else if (kind == "Replace" && replaces_spaces(*part, " ", kSpaceMark)) {
        replaces_ = true;
      } else {
        unknown("normalizer", part->dump());
      }
    }
  }

  static bool replaces_spaces(const Json& part, std::string_view from, std::string_view to) {
    const Json& pattern = value(part, "pattern");
    return pattern.is_object() && value(pattern, "String") == from && value(part, "content") == to;
  }

  void read_pre_tokenizer(const Json& pre_tokenizer) override {
    bool is_marked = replaces_;
    for (const Json* part : sequence(pre_tokenizer, "pre_tokenizer", "pretokenizers")) {
      const std::string kind = type(*part, "pre_tokenizer");
      const Json& pattern = value(*part, "pattern");
      // No text has spaces after they are replaced: this split never finds one.
      if (kind == "Split" && is_marked && pattern.is_object() && value(pattern, "String") == " ") continue;
      if (kind != "Metaspace" || value(*part, "replacement") != kSpaceMark)
        unknown("pre_tokenizer", part->dump());
      read_metaspace(*part);
      is_marked = true;
    }
    if (!is_marked) unknown("pre_tokenizer", "null without a normalizer that replaces spaces");
  }

  void read_metaspace(const Json& part) {
    using enum SentencePieceSpec::LeadingSpace;
    const Json& scheme = value(part, "prepend_scheme");
    const bool prepends = flag(part, "add_prefix_space", true);  // in older files instead of a scheme
    const bool is_always = scheme.is_null() ? prepends : scheme == "always";
    if (!scheme.is_null() && !is_always && scheme != "first" && scheme != "never")
      unknown("prepend_scheme", scheme.dump());
    pieces_.split_at_spaces = flag(part, "split", true);
    if (!is_always && scheme != "first") return;
    if (prepends_ || replaces_) unknown("pre_tokenizer", "Metaspace with a normalizer");
    pieces_.leading_space = is_always ? EveryPart : FirstPart;
    pieces_.unless_space = true;
  }

  void read_decoder(const Json& decoder) override {
    if (decoder.is_null()) unknown("decoder", "null");
    bool replaces = false;
    for (const Json* part : sequence(decoder, "decoder", "decoders")) {
      const std::string kind = type(*part, "decoder");
      if (kind == "Replace" && replaces_spaces(*part, kSpaceMark, " ")) {
        replaces = true;
      } else if (kind == "ByteFallback") {
        decodes_bytes_ = true;
      } else if (kind == "Strip" && value(*part, "content") == " " && value(*part, "start") == 1 &&
                 value(*part, "stop") == 0) {
        pieces_.strips_decoded_space = true;
      } else if (kind != "Fuse") {
        unknown("decoder", part->dump());
      }
    }
    if (!replaces) unknown("decoder", decoder.dump());
  }

  SentencePieceSpec& pieces_;
  std::string unknown_;
  bool byte_fallback_ = false, fuse_unknown_ = false, prepends_ = false, replaces_ = false,
       decodes_bytes_ = false;
};

// Whether a component, or one of the elements of a Sequence, has this type.
bool has_type(const nlohmann::json& root, const char* name, const char* elements, std::string_view type) {
  const auto component = root.find(name);
  if (component == root.end() || !component->is_object()) return false;
  const auto is_type = [&](const nlohmann::json& item) {
    return item.is_object() && item.contains("type") && item["type"] == type;
  };
  if (is_type(*component)) return true;
  const auto items = component->find(elements);
  return items != component->end() && items->is_array() && std::any_of(items->begin(), items->end(), is_type);
}

}  // namespace

bool is_sentencepiece_json(const nlohmann::json& root) {
  if (!root.is_object() || has_type(root, "pre_tokenizer", "pretokenizers", "ByteLevel")) return false;
  const auto model = root.find("model");
  const bool falls_back = model != root.end() && model->is_object() && model->contains("byte_fallback") &&
                          (*model)["byte_fallback"] == true;
  return falls_back || has_type(root, "pre_tokenizer", "pretokenizers", "Metaspace") ||
         has_type(root, "normalizer", "normalizers", "Replace");
}

SentencePieceSpec parse_sentencepiece_json(const nlohmann::json& root, const std::string& place) {
  SentencePieceSpec spec;
  spec.place = place;
  SentencePieceReader reader(spec);
  reader.read(root);
  reader.finish();
  return spec;
}

}  // namespace octet
