#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace octet {

// Threads that help with loops. Made for machines that other programs use as well: a loop never waits for a thread that
// the system has not let run, because the caller takes whatever work is left; and a thread without work sleeps after a
// short while instead of spinning.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // including the caller; the others start with the first loop
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // fn(task, thread) for all tasks from 0; returns when all are done. `thread` is below threads(), and no two tasks run at
  // the same time with the same one. fn must not throw. A loop inside a loop, or while another thread uses the pool,
  // runs on the caller alone, as thread 0 of that caller.
  template <class Function>
  void for_each(int64_t tasks, const Function& fn) {
    if (tasks > 1 && threads_ > 1 && try_begin()) {
      const auto call = [](const void* function, int64_t task, int thread) {
        (*static_cast<const Function*>(function))(task, thread);
      };
      run(tasks, call, &fn);
      return;
    }
    for (int64_t task = 0; task < tasks; ++task) fn(task, 0);
  }

 private:
  using Call = void (*)(const void* function, int64_t task, int thread);

  bool try_begin();  // whether the caller has the pool now; run() gives it back
  void run(int64_t tasks, Call call, const void* function);
  void take_tasks(int thread);
  void serve(int thread);  // what a thread of the pool does all its life
  bool enter();
  void leave();

  static constexpr uint32_t kOpen = uint32_t{1} << 31;

  const int threads_;
  std::vector<std::thread> workers_;
  std::atomic<bool> taken_ = false;  // by a caller
  // The loop. Only changed while the gate is closed and nobody is inside.
  int64_t tasks_ = 0;
  Call call_ = nullptr;
  const void* function_ = nullptr;
  alignas(64) std::atomic<int64_t> next_ = 0;    // the first task that nobody has taken
  alignas(64) std::atomic<uint32_t> gate_ = 0;   // the number of workers inside the loop, and kOpen
  alignas(64) std::atomic<uint32_t> loops_ = 0;  // begun so far; workers wait for a change
  std::atomic<int> sleepers_ = 0;
  std::atomic<bool> ends_ = false;
};

}  // namespace octet
