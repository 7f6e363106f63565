#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "base/checked.h"

namespace octet::cpu {

// Work is always cut into the same pieces, whatever the number of threads, so that every sum has a fixed order. Free
// threads take the next piece. The functions must not throw.
class Parallel {
 public:
  explicit Parallel(int threads) : threads_(threads > 0 ? threads : omp_get_max_threads()) {}

  int threads() const { return threads_; }

  // fn(begin, end) for [0, count) cut into pieces of `grain`.
  template <class Function>
  void for_range(int64_t count, int64_t grain, const Function& fn) const {
    for_each(div_up(count, grain),
             [&](int64_t piece, int) { fn(piece * grain, std::min(count, (piece + 1) * grain)); });
  }

  // fn(task, thread) for every task; `thread` is below threads() and picks thread-local workspace.
  template <class Function>
  void for_each(int64_t tasks, const Function& fn) const {
    if (tasks <= 1 || threads_ == 1) {
      for (int64_t task = 0; task < tasks; ++task) fn(task, 0);
      return;
    }
    const int team = static_cast<int>(std::min<int64_t>(threads_, tasks));
#pragma omp parallel for num_threads(team) schedule(dynamic, 1)
    for (int64_t task = 0; task < tasks; ++task) fn(task, omp_get_thread_num());
  }

 private:
  int threads_;
};

// Rows of a matrix cut into at most kMaxChunks pieces for sums over rows: one partial result per piece.
struct RowChunks {
  static constexpr int64_t kMaxChunks = 32;
  static constexpr int64_t kMinRows = 16;

  explicit RowChunks(int64_t rows)
      : total(rows), size(std::max(kMinRows, div_up(rows, kMaxChunks))), count(div_up(rows, size)) {}

  int64_t begin(int64_t chunk) const { return chunk * size; }
  int64_t end(int64_t chunk) const { return std::min(total, (chunk + 1) * size); }

  int64_t total, size, count;
};

}  // namespace octet::cpu
