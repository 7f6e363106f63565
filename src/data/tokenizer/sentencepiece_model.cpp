// SentencePiece's own files: the protobuf model, and llama2.c's list of its tokens.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "data/tokenizer/protobuf_reader.h"
#include "data/tokenizer/sentencepiece_files.h"
#include "data/tokenizer/tokenizer_parts.h"
#include "data/tokenizer/unicode.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

enum class PieceType { Normal = 1, Unknown = 2, Control = 3, UserDefined = 4, Unused = 5, Byte = 6 };
enum class ModelType { Unigram = 1, Bpe = 2, Word = 3, Char = 4 };

struct Piece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::Normal;
};

// The fields of the file that matter, with the defaults of the format.
struct ModelFile {
  std::vector<Piece> pieces;
  ModelType type = ModelType::Unigram;
  bool byte_fallback = false, space_is_suffix = false;
  std::string bos = "<s>", eos = "</s>";
  std::string_view charsmap, denormalizer_charsmap;
  bool add_dummy_prefix = true, remove_extra_spaces = true, escape_spaces = true;
};

Piece read_piece(std::string_view message, const std::string& place) {
  Piece piece;
  ProtobufReader fields(message, place);
  while (fields.next()) {
    if (fields.field() == 1) piece.text = fields.bytes();
    if (fields.field() == 2) piece.score = fields.float32();
    if (fields.field() == 3) {
      const int32_t type = fields.int32();
      if (type < 1 || type > 6) fail("[{}] type {}, expected 1 to 6", place, type);
      piece.type = static_cast<PieceType>(type);
    }
  }
  if (piece.text.empty()) fail("[{}] has no text", place);
  if (std::isnan(piece.score)) fail("[{}] has no number as its score", place);
  return piece;
}

void read_trainer(std::string_view message, const std::string& place, ModelFile& file) {
  ProtobufReader fields(message, place);
  while (fields.next()) {
    if (fields.field() == 3) file.type = static_cast<ModelType>(fields.int32());
    if (fields.field() == 24) file.space_is_suffix = fields.boolean();
    if (fields.field() == 35) file.byte_fallback = fields.boolean();
    if (fields.field() == 46) file.bos = fields.bytes();
    if (fields.field() == 47) file.eos = fields.bytes();
  }
}

void read_normalizer(std::string_view message, const std::string& place, ModelFile& file) {
  ProtobufReader fields(message, place);
  while (fields.next()) {
    if (fields.field() == 2) file.charsmap = fields.bytes();
    if (fields.field() == 3) file.add_dummy_prefix = fields.boolean();
    if (fields.field() == 4) file.remove_extra_spaces = fields.boolean();
    if (fields.field() == 5) file.escape_spaces = fields.boolean();
  }
}

ModelFile read_model_file(std::string_view bytes, const std::string& place) {
  constexpr size_t kMaxPieces = size_t{1} << 22;
  ModelFile file;
  ProtobufReader fields(bytes, place);
  while (fields.next()) {
    if (fields.field() == 1) {
      if (file.pieces.size() >= kMaxPieces) fail("[{}] more than {} pieces", place, kMaxPieces);
      file.pieces.push_back(
          read_piece(fields.bytes(), fmt::format("{} piece {}", place, file.pieces.size())));
    }
    if (fields.field() == 2) read_trainer(fields.bytes(), place, file);
    if (fields.field() == 3) read_normalizer(fields.bytes(), place, file);
    if (fields.field() == 5) {
      ModelFile denormalizer;
      read_normalizer(fields.bytes(), place, denormalizer);
      file.denormalizer_charsmap = denormalizer.charsmap;
    }
  }
  const auto refuse = [&](bool is_set, const char* what) {
    if (is_set)
      fail("[{}] {} is not supported; octet reads SentencePiece models of type BPE and Unigram", place, what);
  };
  require(!file.pieces.empty(), "[{}] holds no pieces; expected a SentencePiece model", place);
  refuse(file.type == ModelType::Word, "model type WORD");
  refuse(file.type == ModelType::Char, "model type CHAR");
  refuse(file.type != ModelType::Unigram && file.type != ModelType::Bpe, "the model type");
  refuse(file.space_is_suffix, "treat_whitespace_as_suffix");
  refuse(!file.escape_spaces, "escape_whitespaces false");
  refuse(!file.denormalizer_charsmap.empty(), "a denormalizer");
  return file;
}

void add_special(SentencePieceSpec& spec, int32_t id, const std::string& text) {
  AddedToken token;
  token.id = id;
  token.content = text;
  token.special = true;
  spec.added.push_back(std::move(token));
}

void set_unigram(SentencePieceSpec& spec, const std::vector<Piece>& pieces) {
  constexpr float kUnknownPenalty = 10;
  float lowest = std::numeric_limits<float>::max();
  float highest = std::numeric_limits<float>::min();  // as in the library: not the lowest, but the smallest
  for (const Piece& piece : pieces) {
    if (piece.type != PieceType::Normal) continue;
    lowest = std::min(lowest, piece.score);
    highest = std::max(highest, piece.score);
  }
  SentencePieceSpec::Unigram unigram;
  unigram.unknown_score = lowest - kUnknownPenalty;
  for (const Piece& piece : pieces) {
    const auto length = static_cast<float>(piece.text.size());
    const bool is_bonus = piece.type == PieceType::UserDefined;
    unigram.scores.push_back(is_bonus ? static_cast<float>(length * highest - 0.1) : piece.score);
  }
  spec.unigram = std::move(unigram);
}

// Adds the tokens of tokenizer_config.json and added_tokens.json to the model's own.
void add_tokens_of_folder(SentencePieceSpec& spec, const std::string& folder) {
  SentencePieceSpec listed;
  listed.place = spec.place;
  listed.added = {};
  VocabReader reader(listed);
  apply_tokenizer_config(listed, &reader, folder);
  const std::string path = (fs::path(folder) / "added_tokens.json").string();
  if (listed.added.empty() && fs::exists(path)) {
    const nlohmann::json tokens = read_json_file(path);
    if (!tokens.is_object()) fail("[{}] is not an object of tokens and ids", path);
    for (const auto& item : tokens.items()) {
      const int32_t id = checked_token_id(item.value(), path, fmt::format("token '{}'", item.key()));
      reader.add_added(id, {{"content", item.key()}, {"special", false}});
    }
  }
  for (AddedToken& token : listed.added) {
    token.normalized = false;
    const auto known = std::ranges::find(spec.added, token.id, &AddedToken::id);
    const auto index = static_cast<size_t>(token.id);
    const std::string* text = known != spec.added.end() ? &known->content : nullptr;
    if (!text && index < spec.tokens.size() && !spec.tokens[index].empty()) text = &spec.tokens[index];
    if (text && *text != with_plain_spaces(token.content) && *text != token.content)
      fail("[{}] token {} is '{}', but '{}' in the added tokens of its folder", spec.place, token.id, *text,
           token.content);
    if (known == spec.added.end()) {
      spec.added.push_back(std::move(token));
    } else if (!known->normalized) {
      *known = std::move(token);
    }
  }
}

}  // namespace

int byte_of_token(std::string_view token) {
  int byte = -1;
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  const auto parsed = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  return parsed.ec == std::errc() && parsed.ptr == token.data() + 5 ? byte : -1;
}

void add_merges_by_score(SentencePieceSpec& spec, const std::vector<float>& scores) {
  std::vector<float> order;
  std::unordered_map<std::string_view, int32_t> ids;
  ids.reserve(spec.tokens.size());
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (spec.tokens[id].empty()) continue;
    const auto [other, fresh] = ids.emplace(spec.tokens[id], static_cast<int32_t>(id));
    if (!fresh) fail("[{}] tokens {} and {} are both '{}'", spec.place, other->second, id, spec.tokens[id]);
    order.push_back(scores[id]);
  }
  std::sort(order.begin(), order.end(), std::greater<>());
  order.erase(std::unique(order.begin(), order.end()), order.end());
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    const std::string_view token = spec.tokens[id];
    if (token.empty()) continue;
    const auto rank =
        std::lower_bound(order.begin(), order.end(), scores[id], std::greater<>()) - order.begin();
    for (size_t cut = 1; cut < token.size(); ++cut) {
      if ((static_cast<unsigned char>(token[cut]) & 0xC0) == 0x80) continue;  // inside a character
      const auto left = ids.find(token.substr(0, cut));
      if (left == ids.end()) continue;
      const auto right = ids.find(token.substr(cut));
      if (right == ids.end()) continue;
      spec.merges.push_back(
          {left->second, right->second, static_cast<int32_t>(id), static_cast<uint32_t>(rank)});
    }
  }
}

SentencePieceSpec parse_sentencepiece_model(std::string_view bytes, const std::string& place) {
  const ModelFile file = read_model_file(bytes, place);
  const bool is_bpe = file.type == ModelType::Bpe;
  SentencePieceSpec spec;
  spec.place = place;
  spec.tokens.resize(file.pieces.size());
  std::vector<float> scores(file.pieces.size());
  std::vector<AddedToken> user_defined;
  for (size_t i = 0; i < file.pieces.size(); ++i) {
    const Piece& piece = file.pieces[i];
    const auto id = static_cast<int32_t>(i);
    scores[i] = piece.score;
    switch (piece.type) {
      case PieceType::Normal:
        spec.tokens[i] = with_plain_spaces(piece.text);
        break;
      case PieceType::Unknown:
        if (spec.fallback.unknown >= 0) fail("[{}] piece {} is a second unknown token", place, i);
        spec.fallback.unknown = id;
        add_special(spec, id, piece.text);
        break;
      case PieceType::Control:
        add_special(spec, id, piece.text);
        if (piece.text == file.bos) spec.bos = id;
        if (piece.text == file.eos) spec.eos = id;
        break;
      case PieceType::UserDefined: {
        AddedToken token;
        token.id = id;
        token.content = piece.text;
        user_defined.push_back(token);
        token.content = with_plain_spaces(piece.text);
        token.normalized = true;
        if (is_bpe) {
          spec.searched.push_back(token);
          spec.added.push_back(token);
        } else {
          spec.tokens[i] = token.content;
        }
        break;
      }
      case PieceType::Byte: {
        const int byte = byte_of_token(piece.text);
        if (byte < 0)
          fail("[{}] piece {} is a byte named '{}', expected <0x00> to <0xFF>", place, i, piece.text);
        if (file.byte_fallback) spec.fallback.bytes[static_cast<size_t>(byte)] = id;
        spec.decode_only.emplace_back(id, std::string(1, static_cast<char>(byte)));
        break;
      }
      case PieceType::Unused:
        fail("[{}] piece {} ('{}') is of type UNUSED, which is not supported", place, i, piece.text);
    }
  }
  if (is_bpe) {
    add_merges_by_score(spec, scores);
  } else {
    set_unigram(spec, file.pieces);
  }
  spec.normalizer.chars = CharsMap(file.charsmap, place);
  spec.normalizer.remove_extra_spaces = file.remove_extra_spaces;
  spec.normalizer.kept = AddedTokenMatcher(std::move(user_defined));
  using enum SentencePieceSpec::LeadingSpace;
  spec.leading_space = file.add_dummy_prefix ? EveryPart : None;
  spec.strips_decoded_space = file.add_dummy_prefix || file.remove_extra_spaces;
  if (spec.bos) spec.prefix = {*spec.bos};
  return spec;
}

SentencePieceSpec read_sentencepiece_model(const std::string& path) {
  const std::string bytes = read_text_file(path);
  SentencePieceSpec spec = parse_sentencepiece_model(bytes, path);
  const std::string folder = fs::path(path).parent_path().string();
  add_tokens_of_folder(spec, folder);
  apply_tokenizer_config(spec, nullptr, folder);
  const std::string config_path = (fs::path(folder) / "tokenizer_config.json").string();
  const nlohmann::json config =
      fs::exists(config_path) ? read_json_file(config_path) : nlohmann::json::object();
  const auto flag = [&](const char* key, bool otherwise) {
    const auto found = config.find(key);
    if (found == config.end() || found->is_null()) return otherwise;
    if (!found->is_boolean())
      fail("[{}] `{}` is {}, expected true or false", config_path, key, found->dump());
    return found->get<bool>();
  };
  using enum SentencePieceSpec::LeadingSpace;
  if (!flag("add_prefix_space", true)) spec.leading_space = None;
  if (spec.leading_space == EveryPart && !flag("legacy", true)) spec.leading_space = FirstPart;
  spec.prefix.clear();
  if (spec.bos && flag("add_bos_token", true)) spec.prefix = {*spec.bos};
  if (spec.eos && flag("add_eos_token", false)) spec.suffix = {*spec.eos};
  return spec;
}

SentencePieceSpec read_llama2c_vocabulary(const std::string& path) {
  const std::string file = read_text_file(path);
  std::string_view rest = file;
  const auto read = [&](auto& value) {
    if (rest.size() < sizeof(value))
      fail("[{}] ends at byte {} inside a token; expected a vocabulary of llama2.c", path, file.size());
    std::memcpy(&value, rest.data(), sizeof(value));
    rest.remove_prefix(sizeof(value));
  };
  SentencePieceSpec spec;
  spec.place = path;
  std::vector<float> scores;
  int32_t longest = 0;
  read(longest);
  while (!rest.empty()) {
    float score = 0;
    int32_t length = 0;
    read(score);
    read(length);
    const auto id = static_cast<int32_t>(spec.tokens.size());
    if (length < 1 || length > longest + 16 || static_cast<size_t>(length) > rest.size() || std::isnan(score))
      fail("[{}] token {} has {} bytes, expected 1 to {}; expected a vocabulary of llama2.c", path, id,
           length, std::min<size_t>(static_cast<size_t>(std::max(longest, 0)), rest.size()));
    std::string text(rest.substr(0, static_cast<size_t>(length)));
    rest.remove_prefix(static_cast<size_t>(length));
    scores.push_back(score);
    spec.tokens.emplace_back();
    if (id < 3) {  // unknown, bos and eos; the latter two are written with line ends around them
      std::erase(text, '\n');
      add_special(spec, id, text);
    } else if (const int byte = byte_of_token(text); byte >= 0) {
      spec.fallback.bytes[static_cast<size_t>(byte)] = id;
      spec.decode_only.emplace_back(id, std::string(1, static_cast<char>(byte)));
    } else {
      spec.tokens.back() = with_plain_spaces(text);
    }
  }
  require(spec.tokens.size() > 3, "[{}] holds {} tokens; expected a vocabulary of llama2.c", path,
          spec.tokens.size());
  add_merges_by_score(spec, scores);
  spec.fallback.unknown = 0;
  spec.bos = 1;
  spec.eos = 2;
  spec.prefix = {1};
  spec.leading_space = SentencePieceSpec::LeadingSpace::EveryPart;
  spec.strips_decoded_space = true;
  return spec;
}

}  // namespace octet
