#include "ops/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "base/philox.h"
#include "ops/device.h"
#include "support/plain_choice.h"

namespace octet {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One choice each from the same logits.
std::vector<int32_t> choose(std::vector<float> logits, std::vector<TokenChoice> choices) {
  const auto device = make_cpu_device(2);
  const auto rows = std::ssize(choices), vocab = std::ssize(logits);
  std::vector<float> all;
  for (int64_t row = 0; row < rows; ++row) all.insert(all.end(), logits.begin(), logits.end());
  std::vector<int32_t> ids(choices.size());
  device->ops().choose_tokens({ids.data(), DType::I32, {rows}}, {all.data(), DType::F32, {rows, vocab}},
                              vocab, {choices.data(), DType::U8, {rows * int64_t{sizeof(TokenChoice)}}});
  return ids;
}

// The share of the random numbers that gives each id.
std::map<int32_t, double> shares(const std::vector<float>& logits, const TokenChoice& choice) {
  constexpr int kDraws = 20000;
  std::vector<TokenChoice> choices(kDraws, choice);
  for (int i = 0; i < kDraws; ++i)
    choices[static_cast<size_t>(i)].uniform = (static_cast<float>(i) + 0.5f) / kDraws;
  std::map<int32_t, double> result;
  for (const int32_t id : choose(logits, choices)) result[id] += 1.0 / kDraws;
  return result;
}

TEST(TokenWeight, IsThePowerOfE) {
  for (const float temperature : {0.05f, 0.8f, 1.0f, 17.0f}) {
    const TokenWeight weight(5.0f, temperature);
    EXPECT_EQ(weight(5.0f), uint64_t{1} << 40);
    for (float logit = -30.0f; logit < 5.0f; logit += 0.0137f) {
      const double exact = 0x1p40 * std::exp((static_cast<double>(logit) - 5.0) / double{temperature});
      // The quotient is rounded twice in fp32, and the weight to a whole number.
      EXPECT_NEAR(static_cast<double>(weight(logit)), exact, 4e-6 * exact + 1.0) << logit;
    }
    EXPECT_EQ(weight(-kInfinity), 0u);
  }
}

TEST(ChooseTokens, GreedyTakesTheLargestAndTheLowestIndexOfATie) {
  EXPECT_EQ(choose({1, 3, 3, 2}, {{.temperature = 0, .uniform = 0.9f}})[0], 1);
  EXPECT_EQ(choose({-kInfinity, -0.0f, 0.0f}, {{.temperature = 0}})[0], 1);
}

TEST(ChooseTokens, DrawsFromTheSoftmax) {
  // e^0 : e^1 : e^2 at temperature 1; at temperature 0.5 the squares of these.
  auto at_one = shares({0, 1, 2}, {.temperature = 1});
  EXPECT_NEAR(at_one[0], 0.0900, 1e-3);
  EXPECT_NEAR(at_one[1], 0.2447, 1e-3);
  EXPECT_NEAR(at_one[2], 0.6652, 1e-3);
  EXPECT_NEAR(shares({0, 1, 2}, {.temperature = 0.5})[2], 0.8668, 1e-3);
}

TEST(ChooseTokens, TopKKeepsTheLikeliest) {
  auto two = shares({2, 0, 1, -5}, {.temperature = 1, .top_k = 2});
  EXPECT_EQ(two.size(), 2u);
  EXPECT_NEAR(two[0], 0.7311, 1e-3);
  EXPECT_NEAR(two[2], 0.2689, 1e-3);
  EXPECT_EQ(shares({2, 0, 1}, {.temperature = 1, .top_k = 100}).size(), 3u);
  // Of equal logits the first ones.
  EXPECT_THAT(shares({1, 0, 1, 1}, {.temperature = 1, .top_k = 2}),
              testing::ElementsAre(testing::Key(0), testing::Key(2)));
}

TEST(ChooseTokens, TopPKeepsTheSmallestSetThatReachesIt) {
  // Probabilities 0.665, 0.245, 0.090.
  const auto kept = [](double top_p) { return shares({2, 1, 0}, {.top_p = top_p, .temperature = 1}).size(); };
  EXPECT_EQ(kept(0.6), 1u);
  EXPECT_EQ(kept(0.67), 2u);
  EXPECT_EQ(kept(0.95), 3u);
  EXPECT_EQ(kept(0), 1u);  // never none
  // A set that reaches it exactly is enough.
  EXPECT_EQ(shares({1, 1, 1, 1}, {.top_p = 0.5, .temperature = 1}).size(), 2u);
}

TEST(ChooseTokens, TopPCountsTheProbabilitiesThatTopKLeaves) {
  // Of 0.665, 0.245 and 0.090 the first two have 0.731 and 0.269.
  EXPECT_EQ(shares({2, 1, 0}, {.top_p = 0.72, .temperature = 1}).size(), 2u);
  EXPECT_EQ(shares({2, 1, 0}, {.top_p = 0.72, .temperature = 1, .top_k = 2}).size(), 1u);
}

TEST(ChooseTokens, GivesNoIdWithoutProbabilities) {
  for (const float temperature : {0.0f, 1.0f}) {
    EXPECT_EQ(choose({1, NAN}, {{.temperature = temperature}})[0], kNanLogits);
    EXPECT_EQ(choose({NAN, 1}, {{.temperature = temperature}})[0], kNanLogits);
    EXPECT_EQ(choose({-kInfinity, -kInfinity}, {{.temperature = temperature}})[0], kNoLogits);
  }
}

// All combinations, each with other logits, also many equal ones.
TEST(ChooseTokens, IsThePlainChoice) {
  const Philox random(11);
  uint64_t drawn = 0;
  for (const double step : {0.0, 0.5}) {
    for (const float temperature : {0.3f, 1.0f, 4.0f}) {
      for (const int32_t top_k : {0, 1, 2, 30, 299, 300, 500}) {
        for (const double top_p : {1.0, 0.99, 0.6, 0.05}) {
          std::vector<float> logits(300);
          for (float& x : logits) {
            x = 2 * random.normal(drawn++);
            if (step > 0) x = static_cast<float>(std::round(double{x} / step) * step);
          }
          const TokenChoice choice{
              .top_p = top_p, .temperature = temperature, .uniform = random.uniform(drawn++), .top_k = top_k};
          EXPECT_EQ(choose(logits, {choice})[0],
                    test::plain_choice(std::vector<double>(logits.begin(), logits.end()), choice))
              << temperature << " " << top_k << " " << top_p;
        }
      }
    }
  }
}

TEST(ChooseTokens, TheShareOfATokenIsItsProbability) {
  const std::vector<float> logits = {0.3f, -1.0f, 2.0f, 0.3f, -3.0f, 1.2f, 0.0f, -0.4f};
  constexpr size_t kDraws = 40000;
  std::vector<TokenChoice> choices(kDraws, {.temperature = 1.3f});
  for (size_t i = 0; i < kDraws; ++i) choices[i].uniform = Philox(2, i % 4).uniform(i / 4);
  std::vector<double> counts(logits.size());
  for (const int32_t id : choose(logits, choices)) ++counts[static_cast<size_t>(id)];
  double total = 0, chi_square = 0;
  for (const float x : logits) total += std::exp(double{x} / 1.3);
  for (size_t i = 0; i < logits.size(); ++i) {
    const double expected = kDraws * std::exp(double{logits[i]} / 1.3) / total;
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_LT(chi_square, 18.5);  // seven degrees of freedom: 1 %
}

}  // namespace
}  // namespace octet
