#include "generate/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "support/model_fixture.h"

namespace octet {
namespace {

using testing::ElementsAre;

TEST(SampleLogits, GreedyTakesTheLargestAndTheLowestIndexOfATie) {
  EXPECT_EQ(sample_logits({1, 3, 3, 2}, {.temperature = 0}, 0.9), 1);
}

// The share of `u` that gives each index.
std::map<int32_t, double> shares(const std::vector<float>& logits, const SampleOptions& options) {
  std::map<int32_t, double> result;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) result[sample_logits(logits, options, (i + 0.5) / kDraws)] += 1.0 / kDraws;
  return result;
}

TEST(SampleLogits, DrawsFromTheSoftmax) {
  // e^0 : e^1 : e^2 at temperature 1; at temperature 0.5 the squares of these.
  auto at_one = shares({0, 1, 2}, {.temperature = 1});
  EXPECT_NEAR(at_one[0], 0.0900, 1e-3);
  EXPECT_NEAR(at_one[1], 0.2447, 1e-3);
  EXPECT_NEAR(at_one[2], 0.6652, 1e-3);
  auto at_half = shares({0, 1, 2}, {.temperature = 0.5});
  EXPECT_NEAR(at_half[2], 0.8668, 1e-3);
}

TEST(SampleLogits, TopKKeepsTheLikeliest) {
  auto two = shares({2, 0, 1, -5}, {.temperature = 1, .top_k = 2});
  EXPECT_EQ(two.size(), 2u);
  EXPECT_NEAR(two[0], 0.7311, 1e-3);
  EXPECT_NEAR(two[2], 0.2689, 1e-3);
  EXPECT_EQ(shares({2, 0, 1}, {.temperature = 1, .top_k = 100}).size(), 3u);
}

TEST(SampleLogits, TopPKeepsTheSmallestSetThatReachesIt) {
  // Probabilities 0.665, 0.245, 0.090.
  EXPECT_EQ(shares({2, 1, 0}, {.temperature = 1, .top_p = 0.6}).size(), 1u);
  EXPECT_EQ(shares({2, 1, 0}, {.temperature = 1, .top_p = 0.67}).size(), 2u);
  EXPECT_EQ(shares({2, 1, 0}, {.temperature = 1, .top_p = 0.95}).size(), 3u);
  EXPECT_EQ(shares({2, 1, 0}, {.temperature = 1, .top_p = 0}).size(), 1u);  // never none
}

TEST(SampleLogits, NumbersThatAreNoneAreAnError) {
  EXPECT_THROW(sample_logits({1, NAN}, {.temperature = 0}, 0), Error);
}

struct GenerateIds : testing::Test {
  Decoder& decoder(int64_t sequences, int64_t capacity) {
    model_decoder = std::make_unique<Decoder>(test::two_layers("llama-tiny"),
                                              DecoderShape{sequences, capacity, 16}, DType::F32, *device);
    model_decoder->allocate();
    model_decoder->parameters().initialise(*device, 9);
    return *model_decoder;
  }
  std::unique_ptr<Device> device = make_cpu_device(2);
  std::unique_ptr<Decoder> model_decoder;
  const SampleOptions greedy{.max_tokens = 12, .temperature = 0};
  const SampleOptions drawn{.max_tokens = 12, .temperature = 1, .seed = 5};
};

TEST_F(GenerateIds, AreTheSameForTheSameSeedAndOthersForAnother) {
  const std::vector<std::vector<int32_t>> prompt = {{1, 2, 3}};
  const auto first = generate_ids(decoder(1, 32), prompt, drawn, {}, {});
  EXPECT_EQ(first[0].size(), 12u);
  EXPECT_EQ(generate_ids(decoder(1, 32), prompt, drawn, {}, {}), first);
  SampleOptions other = drawn;
  other.seed = 6;
  EXPECT_NE(generate_ids(decoder(1, 32), prompt, other, {}, {}), first);
}

TEST_F(GenerateIds, GreedyRowsDoNotDependOnTheirNeighbours) {
  const std::vector<std::vector<int32_t>> prompts = {{7, 8}, {100}, {9, 4, 200, 17, 3}};
  const auto together = generate_ids(decoder(3, 32), prompts, greedy, {}, {});
  for (size_t i = 0; i < prompts.size(); ++i)
    EXPECT_EQ(generate_ids(decoder(1, 32), {prompts[i]}, greedy, {}, {})[0], together[i]) << i;
}

TEST_F(GenerateIds, EndAtAnEndIdWhichIsGiven) {
  const std::vector<std::vector<int32_t>> prompts = {{7, 8}, {100}};
  const auto all = generate_ids(decoder(2, 32), prompts, drawn, {}, {});
  const std::vector<int32_t> end = {all[0][4]};
  const auto ended = generate_ids(decoder(2, 32), prompts, drawn, end, {});
  const auto first = std::find(all[0].begin(), all[0].end(), end[0]);
  EXPECT_EQ(ended[0], std::vector<int32_t>(all[0].begin(), first + 1));
}

TEST_F(GenerateIds, AFullSequenceEndsOrForgets) {
  const auto ended = generate_ids(decoder(1, 8), {{1, 2, 3}}, greedy, {}, {});
  EXPECT_EQ(ended[0].size(), 6u);  // the last one is made of a full sequence
  const auto slid = generate_ids(decoder(1, 8), {{1, 2, 3}}, greedy, {}, {.slide = true});
  EXPECT_EQ(slid[0].size(), 12u);
  EXPECT_TRUE(std::equal(ended[0].begin(), ended[0].end(), slid[0].begin()));
}

TEST_F(GenerateIds, TheCallerMayEndARow) {
  std::vector<int32_t> seen;
  const auto on_token = [&](size_t, int32_t id) {
    seen.push_back(id);
    return seen.size() < 3;
  };
  const auto ids = generate_ids(decoder(1, 32), {{1, 2, 3}}, greedy, {}, {.on_token = on_token});
  EXPECT_EQ(ids[0], seen);
  EXPECT_EQ(seen.size(), 3u);
}

}  // namespace
}  // namespace octet
