#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <ctime>
#include <future>
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

TEST(ThreadPool, ALoopInsideALoopRunsOnItsCaller) {
  ThreadPool pool(3);
  std::atomic<int> sum = 0;
  pool.for_each(4, [&](int64_t, int) {
    pool.for_each(5, [&](int64_t, int thread) {
      EXPECT_EQ(thread, 0);
      ++sum;
    });
  });
  EXPECT_EQ(sum, 4 * 5);
}

TEST(ThreadPool, LoopsOfTwoCallersAtOnceAreBothWhole) {
  ThreadPool pool(3);
  std::atomic<int> sum = 0;
  const auto many = [&] {
    for (int repeat = 0; repeat < 100; ++repeat) {
      pool.for_each(4, [&](int64_t, int) { pool.for_each(5, [&](int64_t, int) { ++sum; }); });
    }
  };
  std::thread other(many);
  many();
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

// A helper that gets no core holds nobody up: the caller does its work. A signal handler that does not return keeps the
// helper from running here.
TEST(ThreadPool, ALateHelperIsNotWaitedFor) {
  static std::atomic<bool> is_held, may_go;
  is_held = may_go = false;
  ThreadPool pool(2);
  pthread_t helper{};
  std::atomic<int> begun = 0;
  pool.for_each(2, [&](int64_t, int thread) {
    if (thread == 1) helper = pthread_self();
    ++begun;
    while (begun < 2) std::this_thread::yield();
  });
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) {
    is_held = true;
    while (!may_go) usleep(1000);
  };
  sigaction(SIGUSR1, &action, &before);
  pthread_kill(helper, SIGUSR1);
  while (!is_held) std::this_thread::yield();
  auto loops = std::async(std::launch::async, [&] {
    std::atomic<int> done = 0;
    for (int i = 0; i < 100; ++i) pool.for_each(8, [&](int64_t, int) { ++done; });
    return done.load();
  });
  EXPECT_EQ(loops.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  may_go = true;
  EXPECT_EQ(loops.get(), 800);
  sigaction(SIGUSR1, &before, nullptr);
}

}  // namespace
}  // namespace octet
