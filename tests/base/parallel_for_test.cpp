#include "base/parallel_for.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace octet {
namespace {

// How often each index below `count` is in a piece. Fails for a piece that is empty or larger than `grain`.
std::vector<int> visits(int64_t count, int64_t grain) {
  std::vector<std::atomic<int>> visited(static_cast<size_t>(count));
  parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    EXPECT_LT(begin, end);
    EXPECT_LE(end - begin, grain);
    for (int64_t i = begin; i < end; ++i) ++visited[static_cast<size_t>(i)];
  });
  return {visited.begin(), visited.end()};
}

TEST(ParallelFor, CoversEveryIndexOnce) {
  for (const int64_t count : {0, 1, 2, 7, 64, 1000}) {
    for (const int64_t grain : {1, 2, 3, 64, 2000})
      EXPECT_EQ(visits(count, grain), std::vector<int>(static_cast<size_t>(count), 1))
          << count << ' ' << grain;
  }
}

TEST(ParallelFor, OnePieceStaysOnTheCallingThread) {
  const std::thread::id caller = std::this_thread::get_id();
  for (const int64_t count : {1, 99, 100}) {
    int calls = 0;
    parallel_for(count, 100, [&](int64_t begin, int64_t end) {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      EXPECT_EQ(begin, 0);
      EXPECT_EQ(end, count);
      ++calls;
    });
    EXPECT_EQ(calls, 1);
  }
}

// Each piece waits until the other has begun: both must run at the same time.
TEST(ParallelFor, PiecesRunAtTheSameTime) {
  if (parallel_threads() == 1) GTEST_SKIP() << "needs two cores";
  std::atomic<int> begun = 0;
  parallel_for(2, 1, [&](int64_t, int64_t) {
    ++begun;
    while (begun < 2) std::this_thread::yield();
  });
}

TEST(ParallelFor, ThrowsTheErrorOfTheFirstPieceAfterAllHaveRun) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::atomic<int> pieces = 0;
    std::string message;
    try {
      parallel_for(100, 10, [&](int64_t begin, int64_t) {
        ++pieces;
        if (begin >= 30) throw std::runtime_error(std::to_string(begin));
      });
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
    EXPECT_EQ(message, "30");
    EXPECT_EQ(pieces, 10);
  }
  EXPECT_THROW(parallel_for(5, 10, [](int64_t, int64_t) { throw std::runtime_error("one piece"); }),
               std::runtime_error);
  EXPECT_EQ(visits(50, 5), std::vector<int>(50, 1));  // the pool is free again
}

TEST(ParallelFor, NestedAndConcurrentLoops) {
  std::atomic<int64_t> sum = 0;
  const auto nested = [&] {
    for (int repeat = 0; repeat < 100; ++repeat) {
      parallel_for(8, 2, [&](int64_t begin, int64_t end) {
        parallel_for(10, 3,
                     [&](int64_t inner, int64_t inner_end) { sum += (end - begin) * (inner_end - inner); });
      });
    }
  };
  std::vector<std::jthread> others;
  for (int i = 0; i < 3; ++i) others.emplace_back(nested);
  nested();
  others.clear();
  EXPECT_EQ(sum, 4 * 100 * 8 * 10);
}

// A child has none of the pool's threads.
TEST(ParallelFor, WorksInAChildAfterFork) {
  ASSERT_EQ(visits(100, 1), std::vector<int>(100, 1));
  const pid_t child = fork();
  if (child == 0) _exit(visits(100, 1) == std::vector<int>(100, 1) ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(ParallelFor, RowsPerPiece) {
  EXPECT_EQ(rows_per_piece(1), kElementsPerPiece);
  EXPECT_EQ(rows_per_piece(kElementsPerPiece / 4), 4);
  EXPECT_EQ(rows_per_piece(10 * kElementsPerPiece), 1);
  EXPECT_EQ(rows_per_piece(0), kElementsPerPiece);
}

}  // namespace
}  // namespace octet
