#include "data/loading/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "batch_hash.h"
#include "support/error_of.h"

namespace octet {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kEos = 999;

TokenSource counting(int64_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return TokenSource::from_ids(std::move(ids), "counting", count);
}

Batch next(BatchSource& source) {
  Batch batch;
  source.next(batch);
  return batch;
}

// The first tokens of `count` rows: with counting(), the places the rows were taken from.
std::vector<int32_t> row_starts(BatchSource& source, int64_t count) {
  std::vector<int32_t> starts;
  while (static_cast<int64_t>(starts.size()) < count) {
    const Batch batch = next(source);
    for (int64_t row = 0; row < batch.rows; ++row) {
      starts.push_back(batch.tokens[static_cast<size_t>(row * batch.length)]);
    }
  }
  return starts;
}

TEST(Loader, TargetsAreTheNextTokens) {
  for (auto order : {SampleOrder::RandomCrops, SampleOrder::Sequential, SampleOrder::Shuffled}) {
    Loader loader(counting(1000), {.rows = 3, .length = 8, .order = order, .seed = 5});
    for (int step = 0; step < 100; ++step) {
      const Batch batch = next(loader);
      ASSERT_EQ(batch.tokens.size(), 24u);
      for (size_t i = 0; i < 24; ++i) {
        ASSERT_EQ(batch.targets[i], batch.tokens[i] + 1);
        ASSERT_EQ(batch.tokens[i], batch.tokens[i / 8 * 8] + static_cast<int32_t>(i % 8));
        ASSERT_EQ(batch.positions[i], static_cast<int32_t>(i % 8));
      }
      EXPECT_THAT(batch.document_starts, ElementsAre(0, 8, 16, 24));
      EXPECT_EQ(batch.token_count, 24);
      EXPECT_EQ(batch.target_count, 24);
    }
  }
}

TEST(Loader, SequentialVisitsEachWindowInOrderAndWraps) {
  // 21 tokens: windows at 0, 5, 10, 15; the last target is the last token.
  Loader loader(counting(21), {.rows = 2, .length = 5, .order = SampleOrder::Sequential});
  EXPECT_EQ(loader.samples_per_epoch(), 4);
  EXPECT_EQ(loader.epoch(), 0.0);
  EXPECT_THAT(row_starts(loader, 6), ElementsAre(0, 5, 10, 15, 0, 5));
  EXPECT_EQ(loader.epoch(), 1.5);
  // One token fewer and the fourth window lacks its last target.
  EXPECT_EQ(Loader(counting(20), {.length = 5, .order = SampleOrder::Sequential}).samples_per_epoch(), 3);
}

TEST(Loader, ShuffledIsANewPermutationEachEpoch) {
  for (int64_t windows : {1, 2, 3, 16, 17, 100, 1000}) {
    Loader loader(counting(windows * 3 + 1), {.length = 3, .order = SampleOrder::Shuffled, .seed = 9});
    ASSERT_EQ(loader.samples_per_epoch(), windows);
    std::set<std::vector<int32_t>> orders;
    for (int epoch = 0; epoch < 3; ++epoch) {
      const std::vector<int32_t> starts = row_starts(loader, windows);
      std::vector<int32_t> sorted = starts, expected(starts.size());
      std::sort(sorted.begin(), sorted.end());
      for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<int32_t>(3 * i);
      EXPECT_EQ(sorted, expected);
      EXPECT_TRUE(windows < 16 || starts != expected);
      orders.insert(starts);
    }
    EXPECT_TRUE(windows < 16 || orders.size() == 3) << windows;
  }
}

TEST(Loader, RandomCropsReachBothEndsEvenly) {
  Loader loader(counting(20), {.rows = 100, .length = 10, .seed = 3});
  std::vector<int> hits(10);
  for (int32_t start : row_starts(loader, 10000)) {
    ASSERT_TRUE(start >= 0 && start <= 9);
    ++hits[static_cast<size_t>(start)];
  }
  EXPECT_THAT(hits, Each(AllOf(::testing::Gt(880), ::testing::Lt(1120))));  // 1000 +- 4 standard deviations
  Loader other(counting(20), {.rows = 100, .length = 10, .seed = 4});
  loader.set_state({3, 0});
  EXPECT_NE(hash_of(next(loader)), hash_of(next(other)));
}

TEST(Loader, RestoredStateGivesTheSameBatches) {
  for (auto order : {SampleOrder::RandomCrops, SampleOrder::Sequential, SampleOrder::Shuffled}) {
    const LoaderOptions options = {.rows = 4, .length = 16, .order = order, .seed = 11};
    Loader loader(counting(1000), options);
    for (int step = 0; step < 23; ++step) next(loader);  // into the second epoch
    const LoaderState saved = loader.state();
    EXPECT_EQ(saved, (LoaderState{11, 92, saved.data_hash}));
    EXPECT_NE(saved.data_hash, 0u);
    std::vector<uint64_t> expected;
    for (int step = 0; step < 10; ++step) expected.push_back(hash_of(next(loader)));

    LoaderOptions fresh = options;
    fresh.seed = 12345;  // the state's seed counts
    Loader restored(counting(1000), fresh);
    restored.set_state(saved);
    for (uint64_t hash : expected) EXPECT_EQ(hash_of(next(restored)), hash);
    EXPECT_EQ(restored.state(), loader.state());
    EXPECT_EQ(restored.epoch(), loader.epoch());
  }
}

TEST(Loader, RanksTogetherAreTheSingleRankOrder) {
  for (auto order : {SampleOrder::RandomCrops, SampleOrder::Sequential, SampleOrder::Shuffled}) {
    LoaderOptions options = {.rows = 6, .length = 8, .order = order, .seed = 2};
    Loader single(counting(500), options);
    options.rows = 2;
    options.ranks = 3;
    std::vector<std::unique_ptr<Loader>> ranks;
    for (options.rank = 0; options.rank < 3; ++options.rank) {
      ranks.push_back(std::make_unique<Loader>(counting(500), options));
    }
    for (int step = 0; step < 30; ++step) {
      const Batch whole = next(single);
      for (size_t rank = 0; rank < 3; ++rank) {
        const Batch part = next(*ranks[rank]);
        for (size_t row = 0; row < 2; ++row) {
          const size_t sample = row * 3 + rank;
          ASSERT_TRUE(std::equal(part.tokens.begin() + static_cast<long>(row * 8),
                                 part.tokens.begin() + static_cast<long>(row * 8 + 8),
                                 whole.tokens.begin() + static_cast<long>(sample * 8)));
        }
        EXPECT_EQ(ranks[rank]->state(), single.state());
      }
    }
    // A run may go on with another number of ranks: the state does not speak of them.
    Loader resumed(counting(500), {.rows = 6, .length = 8, .order = order});
    resumed.set_state(ranks[1]->state());
    EXPECT_EQ(hash_of(next(resumed)), hash_of(next(single)));
  }
}

TEST(Loader, DocumentsAreSplitAfterEos) {
  const auto source =
      TokenSource::from_ids({1, 2, kEos, 3, 4, 5, kEos, 6, kEos, kEos, 7, 8, 9}, "documents", 1000);
  Loader loader(
      source,
      {.rows = 2, .length = 6, .order = SampleOrder::Sequential, .eos = kEos, .respect_documents = true});
  const Batch batch = next(loader);
  EXPECT_THAT(batch.tokens, ElementsAre(1, 2, kEos, 3, 4, 5, kEos, 6, kEos, kEos, 7, 8));
  EXPECT_THAT(batch.targets, ElementsAre(2, kEos, kIgnoreTarget, 4, 5, kEos, kIgnoreTarget, kEos,
                                         kIgnoreTarget, kIgnoreTarget, 8, 9));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 0, 1, 2, 0, 0, 1, 0, 0, 1));
  EXPECT_THAT(batch.document_starts, ElementsAre(0, 3, 6, 7, 9, 10, 12));
  EXPECT_EQ(batch.target_count, 8);

  Loader plain(source, {.rows = 2, .length = 6, .order = SampleOrder::Sequential, .eos = kEos});
  EXPECT_THAT(next(plain).targets, ElementsAre(2, kEos, 3, 4, 5, kEos, 6, kEos, kEos, 7, 8, 9));
}

TEST(Loader, EosAtTheEndOfARowMakesNoEmptyDocument) {
  const auto source = TokenSource::from_ids({1, kEos, 2, kEos, 3}, "documents", 1000);
  Loader loader(
      source,
      {.rows = 2, .length = 2, .order = SampleOrder::Sequential, .eos = kEos, .respect_documents = true});
  EXPECT_THAT(next(loader).document_starts, ElementsAre(0, 2, 4));
}

TEST(Loader, AlignedCropsStartDocuments) {
  std::vector<int32_t> ids;
  for (int32_t document = 0; document < 50; ++document) {
    ids.push_back(500);  // begins each document
    for (int32_t i = 0; i < document % 7; ++i) ids.push_back(i);
    ids.push_back(kEos);
  }
  const auto source = TokenSource::from_ids(ids, "documents", 1000);
  Loader loader(source, {.rows = 500, .length = 10, .eos = kEos, .align_to_documents = true});
  const std::vector<int32_t> starts = row_starts(loader, 500);
  // Only crops drawn too near the end of the data, behind the last start that leaves room, stay where they were.
  EXPECT_GT(std::count(starts.begin(), starts.end(), 500), 475);
  Loader unaligned(source, {.rows = 500, .length = 10, .eos = kEos});
  const std::vector<int32_t> drawn = row_starts(unaligned, 500);
  EXPECT_LT(std::count(drawn.begin(), drawn.end(), 500), 250);

  // Documents longer than a row: nothing to align to, still a valid crop.
  Loader long_documents(counting(1000), {.rows = 50, .length = 10, .eos = 999, .align_to_documents = true});
  const Batch batch = next(long_documents);
  EXPECT_EQ(batch.tokens[9], batch.tokens[0] + 9);
}

TEST(Loader, RefusesShortDataAndBadOptions) {
  EXPECT_THAT(error_of([] { Loader(counting(8), {.length = 8}); }),
              AllOf(HasSubstr("8 tokens"), HasSubstr("counting"), HasSubstr("= 9")));
  EXPECT_EQ(Loader(counting(9), {.length = 8}).samples_per_epoch(), 1);
  EXPECT_THAT(error_of([] { Loader(counting(9), {.length = 0}); }), HasSubstr("max_seq_length 0"));
  EXPECT_THAT(error_of([] { Loader(counting(9), {.rows = 0, .length = 4}); }), HasSubstr("rows per batch 0"));
  EXPECT_THAT(error_of([] { Loader(counting(9), {.length = 4, .rank = 2, .ranks = 2}); }),
              HasSubstr("rank 2 of 2"));
  EXPECT_THAT(error_of([] { Loader(counting(9), {.length = 4, .respect_documents = true}); }),
              HasSubstr("no end-of-text"));
  EXPECT_THAT(error_of([] { Loader(counting(9), {.rows = int64_t{1} << 30, .length = 4}); }),
              HasSubstr("2^31"));
  Loader loader(counting(9), {.length = 4});
  EXPECT_THAT(error_of([&] { loader.set_state({0, -1}); }), HasSubstr("-1"));
}

TEST(Loader, APlaceInOtherDataIsNoticed) {
  std::string said;
  const LogSink previous = set_log_sink([&](LogLevel, std::string_view line) { said += line; });
  const LoaderOptions options = {.length = 8, .order = SampleOrder::Shuffled, .seed = 1};
  Loader saved(counting(1000), options);
  next(saved);
  const auto warns = [&](TokenSource source, const LoaderOptions& other) {
    said.clear();
    Loader loader(std::move(source), other);
    loader.set_state(saved.state());
    EXPECT_EQ(loader.state().next_sample, 1);
    return said.find("comes from other data") != said.npos;
  };
  EXPECT_FALSE(warns(counting(1000), {.rows = 3, .length = 8, .order = SampleOrder::Shuffled, .ranks = 2}));
  EXPECT_TRUE(warns(counting(1001), options));
  std::vector<int32_t> same_length(1000, 5);
  EXPECT_TRUE(warns(TokenSource::from_ids(same_length, "fives", 1000), options));
  EXPECT_TRUE(warns(counting(1000), {.length = 9, .order = SampleOrder::Shuffled}));
  EXPECT_TRUE(warns(counting(1000), {.length = 8, .order = SampleOrder::Sequential}));
  set_log_sink(previous);
}

}  // namespace
}  // namespace octet
