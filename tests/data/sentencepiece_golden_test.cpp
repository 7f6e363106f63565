// Ids and texts of the libraries `sentencepiece` and `tokenizers` for small models of our own
// (scripts/compare_sentencepiece.py --write_golden).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/tokenizer/stream_decoder.h"
#include "data/tokenizer/tokenizer.h"
#include "support/places.h"

namespace octet {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(test::source_path("")) / "tests/golden/sentencepiece";

class SentencePieceGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(SentencePieceGolden, SameIdsAndTextAsTheLibrary) {
  const auto tokenizer = load_tokenizer((kFolder / GetParam()).string());
  std::ifstream golden(kFolder / "cases.json");
  ASSERT_TRUE(golden);
  const nlohmann::json cases = nlohmann::json::parse(golden)[GetParam()];
  ASSERT_GT(cases.size(), 100u);
  for (const auto& entry : cases) {
    const auto text = entry["text"].get<std::string>();
    const std::vector<int32_t> ids = tokenizer->encode(text);
    EXPECT_EQ(ids, entry["ids"].get<std::vector<int32_t>>()) << text;
    const std::string decoded = tokenizer->decode(ids);
    if (entry.contains("decoded")) {
      EXPECT_EQ(decoded, entry["decoded"].get<std::string>()) << text;
    }
    StreamDecoder stream(*tokenizer);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.push(id);
    EXPECT_EQ(streamed + stream.finish(), repair_utf8(decoded)) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Files, SentencePieceGolden,
                         ::testing::Values("bpe.model", "unigram.model", "llama2.json", "mistral_v03.json"),
                         [](const auto& parameter) {
                           const std::string name = parameter.param;
                           return name.substr(0, name.find('.'));
                         });

}  // namespace
}  // namespace octet
