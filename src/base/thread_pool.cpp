#include "base/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <system_error>

namespace octet {
namespace {

using Clock = std::chrono::steady_clock;

// Longer than the time between two loops of a step, shorter than anything that another program would notice.
constexpr std::chrono::microseconds kSpinTime{100};

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Whether the condition becomes true within kSpinTime. Spins meanwhile.
template <class Condition>
bool comes_soon(const Condition& condition) {
  const auto limit = Clock::now() + kSpinTime;
  do {
    for (int i = 0; i < 16; ++i) {
      if (condition()) return true;
      relax();
    }
  } while (Clock::now() < limit);
  return false;
}

}  // namespace

ThreadPool::ThreadPool(int threads) : threads_(std::max(threads, 1)) {}

ThreadPool::~ThreadPool() {
  ends_ = true;
  ++loops_;
  loops_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

bool ThreadPool::try_begin() {
  return !taken_.exchange(true, std::memory_order_acquire);
}

void ThreadPool::run(int64_t tasks, Call call, const void* function) {
  try {
    while (static_cast<int>(workers_.size()) + 1 < threads_) {
      const int thread = static_cast<int>(workers_.size()) + 1;
      workers_.emplace_back([this, thread] { serve(thread); });
    }
  } catch (const std::system_error&) {
    // The system gives no more threads: those that there are do the work.
  }
  tasks_ = tasks;
  call_ = call;
  function_ = function;
  next_.store(0, std::memory_order_relaxed);
  gate_.store(kOpen, std::memory_order_release);
  ++loops_;
  const auto helpers = std::min<int64_t>(tasks - 1, sleepers_);
  for (int64_t i = 0; i < helpers; ++i) loops_.notify_one();
  take_tasks(0);
  // Who has not come by now is not needed any more.
  gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
  if (!comes_soon([&] { return gate_.load(std::memory_order_acquire) == 0; })) {
    for (uint32_t inside = 0; (inside = gate_.load(std::memory_order_acquire)) != 0;) gate_.wait(inside);
  }
  taken_.store(false, std::memory_order_release);
}

void ThreadPool::take_tasks(int thread) {
  for (int64_t task = 0; (task = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;)
    call_(function_, task, thread);
}

bool ThreadPool::enter() {
  uint32_t gate = gate_.load(std::memory_order_relaxed);
  while ((gate & kOpen) != 0) {
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire, std::memory_order_relaxed))
      return true;
  }
  return false;
}

void ThreadPool::leave() {
  if (gate_.fetch_sub(1, std::memory_order_acq_rel) == 1) gate_.notify_one();
}

void ThreadPool::serve(int thread) {
  uint32_t seen = 0;
  while (!ends_) {
    const auto changed = [&] { return loops_.load(std::memory_order_acquire) != seen; };
    if (!comes_soon(changed)) {
      ++sleepers_;
      loops_.wait(seen);
      --sleepers_;
      if (!changed()) continue;
    }
    seen = loops_.load(std::memory_order_acquire);
    if (!enter()) continue;
    take_tasks(thread);
    leave();
  }
}

}  // namespace octet
