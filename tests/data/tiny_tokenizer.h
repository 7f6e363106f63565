#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octet {

// Bytes as they stand in a vocabulary: GPT-2's byte alphabet, written from its definition.
inline std::string byte_alphabet(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const unsigned byte = static_cast<unsigned char>(c);
    unsigned point = byte;
    if (byte <= 0x20) point = 0x100 + byte;
    if (byte >= 0x7F && byte <= 0xA0) point = 0x121 + byte - 0x7F;
    if (byte == 0xAD) point = 0x143;
    if (point < 0x80) {
      text += static_cast<char>(point);
    } else {
      text += static_cast<char>(0xC0 | point >> 6);
      text += static_cast<char>(0x80 | (point & 0x3F));
    }
  }
  return text;
}

using BytePairs = std::vector<std::pair<std::string, std::string>>;

// A tokenizer.json: token i is byte i for i < 256, then come the results of the merges (given as plain bytes)
// in their order; GPT-2's pattern, nothing added.
inline nlohmann::json tiny_tokenizer(const BytePairs& merges) {
  nlohmann::json vocab = nlohmann::json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[byte_alphabet(std::string(1, static_cast<char>(byte)))] = byte;
  nlohmann::json list = nlohmann::json::array();
  int next = 256;
  for (const auto& [left, right] : merges) {
    const std::string result = byte_alphabet(left + right);
    if (!vocab.contains(result)) vocab[result] = next++;
    list.push_back(byte_alphabet(left) + " " + byte_alphabet(right));
  }
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", nlohmann::json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}}};
}

inline nlohmann::json added_token(int id, const std::string& content,
                                  const std::vector<std::string>& flags = {}) {
  nlohmann::json token = {{"id", id}, {"content", content}};
  for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized", "special"})
    token[flag] = std::find(flags.begin(), flags.end(), flag) != flags.end();
  return token;
}

constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

inline nlohmann::json split_pre_tokenizer(const std::string& regex) {
  return {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}},
            {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
}

}  // namespace octet
