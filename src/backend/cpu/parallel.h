#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "base/checked.h"
#include "base/thread_pool.h"

namespace octet::cpu {

// Sums are always cut into the same pieces, whatever the number of threads, so that they have a fixed order. Free threads
// take the next piece. The functions must not throw.
class Parallel {
 public:
  explicit Parallel(int threads) : pool_(std::make_shared<ThreadPool>(threads)) {}

  int threads() const { return pool_->threads(); }

  // fn(begin, end) for [0, count) cut into pieces of `grain`.
  template <class Function>
  void for_range(int64_t count, int64_t grain, const Function& fn) const {
    for_each(div_up(count, grain),
             [&](int64_t piece, int) { fn(piece * grain, std::min(count, (piece + 1) * grain)); });
  }

  // fn(task, thread) for every task; `thread` is below threads() and picks thread-local workspace.
  template <class Function>
  void for_each(int64_t tasks, const Function& fn) const {
    pool_->for_each(tasks, fn);
  }

 private:
  std::shared_ptr<ThreadPool> pool_;  // shared by all ops of a device
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
