#include "data/loading/mixed_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/log.h"
#include "batch_hash.h"
#include "data/loading/packed_loader.h"
#include "document_support.h"
#include "support/error_of.h"

namespace octet {
namespace {

using ::testing::HasSubstr;

TEST(MixSchedule, WeightsAreSharesOfTheSamplesFromTheStart) {
  const std::vector<double> weights = {5, 3, 1.5, 0.5};
  const MixSchedule schedule({10, 1000, 77, 3}, weights, true);
  std::vector<int64_t> given(weights.size());
  for (int64_t i = 0; i < 200'000; ++i) {
    const MixSchedule::Place place = schedule.find(i, 1);
    // A part hands out its samples one after another, from pass to pass.
    ASSERT_EQ(place.sample, given[place.part]++) << i;
    for (size_t p = 0; p < weights.size(); ++p) {
      ASSERT_NEAR(static_cast<double>(given[p]), weights[p] / 10 * static_cast<double>(i + 1),
                  2.5 + 1e-4 * static_cast<double>(i))
          << i;
    }
  }
  for (size_t p = 0; p < weights.size(); ++p) EXPECT_NEAR(schedule.share(p), weights[p] / 10, 1e-4);
  EXPECT_EQ(schedule.samples_per_epoch(), 1090);
}

TEST(MixSchedule, AVerySmallWeightStillGetsATurn) {
  const std::vector<double> weights = {1, 1e-9};
  const MixSchedule schedule({10, 10}, weights, true);
  int64_t of_second = 0;
  for (int64_t i = 0; i < 1 << 16; ++i) of_second += schedule.find(i, 1).part == 1;
  EXPECT_EQ(of_second, 1);
}

TEST(MixSchedule, WithoutWeightsEverySampleComesOncePerEpoch) {
  for (const bool shuffle : {true, false}) {
    const MixSchedule schedule({7, 30, 1}, {}, shuffle);
    EXPECT_EQ(schedule.samples_per_epoch(), 38);
    std::vector<std::vector<std::pair<size_t, int64_t>>> epochs(3);
    for (int64_t i = 0; i < 3 * 38; ++i) {
      const auto [part, sample] = schedule.find(i, 9);
      epochs[static_cast<size_t>(i / 38)].emplace_back(part, sample);
    }
    const std::vector<int64_t> counts = {7, 30, 1};
    for (size_t e = 0; e < epochs.size(); ++e) {
      std::set<std::pair<size_t, int64_t>> expected;
      for (size_t p = 0; p < counts.size(); ++p) {
        for (int64_t s = 0; s < counts[p]; ++s) expected.emplace(p, static_cast<int64_t>(e) * counts[p] + s);
      }
      EXPECT_EQ(std::set(epochs[e].begin(), epochs[e].end()), expected);
      EXPECT_EQ(std::ranges::is_sorted(epochs[e]), !shuffle);
    }
  }
}

TEST(MixSchedule, ImpossibleMixesAreRefused) {
  EXPECT_THAT(error_of([] { MixSchedule({3, 0}, {}, true); }), HasSubstr("has 0 sequences"));
  EXPECT_THAT(error_of([] { MixSchedule({3, 4}, std::vector{1.0}, true); }), HasSubstr("1 weights for 2"));
  EXPECT_THAT(error_of([] { MixSchedule({3, 4}, std::vector{1.0, 0.0}, true); }), HasSubstr("weight 0"));
  EXPECT_THAT(error_of([] { MixSchedule({3, 4}, std::vector{1.0, -2.0}, true); }), HasSubstr("weight -2"));
}

// Packed documents of tokens below 10,000, and a stream of tokens from 10,000 on.
struct Mix {
  static std::unique_ptr<MixedLoader> make(std::vector<double> weights, int64_t rows, int rank = 0,
                                           int ranks = 1, uint64_t seed = 4) {
    std::vector<std::unique_ptr<SampleLoader>> parts;
    parts.push_back(std::make_unique<PackedLoader>(
        source_of(many_documents(60, 20)), PackedLoaderOptions{.rows = rows, .length = 16, .seed = seed}));
    std::vector<int32_t> ids(1000);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = 10'000 + static_cast<int32_t>(i);
    parts.push_back(std::make_unique<Loader>(
        TokenSource::from_ids(ids, "ids", 1 << 20),
        LoaderOptions{.rows = rows, .length = 16, .order = SampleOrder::Shuffled, .seed = seed}));
    return std::make_unique<MixedLoader>(
        std::move(parts), weights, true,
        BatchShape{.rows = rows, .length = 16, .seed = seed, .rank = rank, .ranks = ranks});
  }
};

TEST(MixedLoader, TakesTheSharesOfTheWeights) {
  const auto loader = Mix::make({1, 3}, 5);
  int64_t rows = 0, of_stream = 0;
  Batch batch;
  for (int i = 0; i < 400; ++i) {
    loader->next(batch);
    ASSERT_EQ(batch.document_starts.back(), 80);
    for (size_t row = 0; row < 5; ++row, ++rows) of_stream += batch.tokens[16 * row] >= 10'000;
  }
  EXPECT_NEAR(static_cast<double>(of_stream) / static_cast<double>(rows), 0.75, 0.01);
  EXPECT_NEAR(loader->epoch(), 2000.0 / static_cast<double>(loader->samples_per_epoch()), 1e-9);
}

TEST(MixedLoader, ContinuesFromAnyPlaceAndOnAnyNumberOfRanks) {
  for (const std::vector<double>& weights : {std::vector<double>{}, std::vector<double>{2, 1}}) {
    const auto whole = Mix::make(weights, 4);
    std::vector<Batch> batches(60);
    std::vector<LoaderState> states;
    for (Batch& batch : batches) {
      states.push_back(whole->state());
      whole->next(batch);
    }
    const auto resumed = Mix::make(weights, 4, 0, 1, 77);  // the state has the seed, too
    resumed->set_state(states[37]);
    const auto first = Mix::make(weights, 2, 0, 2), second = Mix::make(weights, 2, 1, 2);
    Batch batch, halves[2];
    for (size_t i = 37; i < batches.size(); ++i) {
      resumed->next(batch);
      ASSERT_EQ(hash_of(batch), hash_of(batches[i])) << i;
    }
    for (size_t i = 0; i < batches.size(); ++i) {
      first->next(halves[0]);
      second->next(halves[1]);
      for (size_t row = 0; row < 4; ++row) {
        for (size_t at = 0; at < 16; ++at) {
          ASSERT_EQ(halves[row % 2].tokens[row / 2 * 16 + at], batches[i].tokens[row * 16 + at]);
        }
      }
    }
    EXPECT_EQ(first->state(), whole->state());
  }
}

TEST(MixedLoader, OtherWeightsAreOtherData) {
  const auto hash = [](std::vector<double> weights) {
    return Mix::make(std::move(weights), 1)->state().data_hash;
  };
  EXPECT_EQ(hash({1, 3}), hash({2, 6}));
  EXPECT_NE(hash({1, 3}), hash({3, 1}));
  EXPECT_NE(hash({1, 3}), hash({}));
}

}  // namespace
}  // namespace octet
