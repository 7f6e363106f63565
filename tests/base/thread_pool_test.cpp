#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <ctime>
#include <set>
#include <thread>

namespace octet {
namespace {

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

TEST(ThreadPool, EveryTaskRunsOnceWhateverTheThreads) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (const int64_t tasks : {0, 1, 2, 7, 100}) {
      for (int repeat = 0; repeat < 200; ++repeat) {
        std::vector<std::atomic<int>> count(static_cast<size_t>(tasks));
        std::vector<std::atomic<int>> inside(static_cast<size_t>(threads));
        std::atomic<bool> shared = false;
        pool.for_each(tasks, [&](int64_t task, int thread) {
          if (inside[static_cast<size_t>(thread)]++ != 0) shared = true;
          ++count[static_cast<size_t>(task)];
          --inside[static_cast<size_t>(thread)];
        });
        for (const auto& times : count) ASSERT_EQ(times, 1) << threads << " threads, " << tasks << " tasks";
        ASSERT_FALSE(shared) << "two tasks at the same time with the same thread number";
      }
    }
  }
}

// Each task waits until the other has begun: both must run at the same time.
TEST(ThreadPool, TasksRunAtTheSameTime) {
  ThreadPool pool(2);
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::atomic<int> begun = 0;
    pool.for_each(2, [&](int64_t, int) {
      ++begun;
      while (begun < 2) std::this_thread::yield();
    });
    // Long enough for the helper to fall asleep: it must be woken again.
    if (repeat % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

TEST(ThreadPool, ALoopInsideALoopOrBesideAnotherRunsOnItsCaller) {
  ThreadPool pool(3);
  std::atomic<int> sum = 0;
  const auto twice = [&] {
    for (int repeat = 0; repeat < 100; ++repeat) {
      pool.for_each(4, [&](int64_t, int) {
        pool.for_each(5, [&](int64_t, int thread) {
          EXPECT_EQ(thread, 0);
          ++sum;
        });
      });
    }
  };
  std::thread other(twice);
  twice();
  other.join();
  EXPECT_EQ(sum, 2 * 100 * 4 * 5);
}

// What made octet slow beside another program: threads without work that kept their cores.
TEST(ThreadPool, ThreadsWithoutWorkSleep) {
  ThreadPool pool(4);
  pool.for_each(100, [](int64_t, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(cpu_seconds() - before, 0.03);
}

// A helper that gets no core holds nobody up: the caller does the work. Pools of far more threads than cores show it.
TEST(ThreadPool, LateHelpersAreNotWaitedFor) {
  ThreadPool pool(64);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 2000; ++i) pool.for_each(64, [](int64_t, int) {});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

}  // namespace
}  // namespace octet
