// Ids that the `tokenizers` library gives (scripts/compare_tokenizers.py --write_golden), for real tokenizer
// files that are not part of this repository.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/tokenizer/tokenizer.h"
#include "support/places.h"

namespace octet {
namespace {

std::filesystem::path shared_data() {
  if (const char* folder = std::getenv("OCTET_SHARED_DATA")) return folder;
  return std::filesystem::path(test::source_path("")) / "../shared/data";
}

class TokenizerGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(TokenizerGolden, SameIdsAsTheLibrary) {
  const std::string name = GetParam();
  const std::filesystem::path file = shared_data() / "tokenizers" / (name + ".json");
  if (!std::filesystem::exists(file))
    GTEST_SKIP() << file << " is not there; OCTET_SHARED_DATA names the folder of shared data";
  const auto tokenizer = load_tokenizer(file.string());
  std::ifstream golden(std::filesystem::path(test::source_path("")) / "tests/golden/tokenizers/cases.json");
  ASSERT_TRUE(golden);
  const nlohmann::json cases = nlohmann::json::parse(golden);
  ASSERT_GT(cases.size(), 50u);
  for (const auto& entry : cases) {
    const auto text = entry["text"].get<std::string>();
    const std::vector<int32_t> ids = tokenizer->encode(text);
    EXPECT_EQ(ids, entry[name].get<std::vector<int32_t>>()) << text;
    if (name != "qwen2.5") {  // whose NFC may have changed the text
      EXPECT_EQ(tokenizer->decode(ids), text);
    }
    EXPECT_EQ(tokenizer->encode(tokenizer->decode(ids)), ids) << text;
  }
  const bool llama = name == "llama3.1";
  EXPECT_EQ(tokenizer->bos(), llama ? std::optional<int32_t>(128000) : std::nullopt);
  EXPECT_EQ(tokenizer->eos(), name == "gpt2" ? 50256 : llama ? 128001 : 151643);
}

INSTANTIATE_TEST_SUITE_P(Files, TokenizerGolden, ::testing::Values("gpt2", "llama3.1", "qwen2.5"),
                         [](const auto& parameter) {
                           const std::string name = parameter.param;
                           return name.substr(0, name.find_first_of('.'));
                         });

}  // namespace
}  // namespace octet
