#include "base/parallel_for.h"

#include <exception>
#include <mutex>

#include "base/checked.h"
#include "base/cpu_threads.h"
#include "base/thread_pool.h"

namespace octet {
namespace {

// Never destroyed. At the end of the process its threads sleep, and a child after fork() has none that could be joined.
// In such a child every loop runs on its caller: no thread comes to help.
ThreadPool& host_pool() {
  static ThreadPool& pool = *new ThreadPool(default_threads().count);
  return pool;
}

}  // namespace

int parallel_threads() {
  return host_pool().threads();
}

void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& fn) {
  if (count <= 0) return;
  if (count <= grain) return fn(0, count);
  std::mutex mutex;
  std::exception_ptr error;
  int64_t error_piece = 0;
  host_pool().for_each(div_up(count, grain), [&](int64_t piece, int) {
    try {
      fn(piece * grain, std::min(count, (piece + 1) * grain));
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error || piece < error_piece) {
        error = std::current_exception();
        error_piece = piece;
      }
    }
  });
  if (error) std::rethrow_exception(error);
}

}  // namespace octet
