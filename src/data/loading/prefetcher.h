#pragma once

#include <memory>

#include "data/loading/loader.h"

namespace octet {

// Prepares up to `depth` batches of `source` on a thread of its own and hands them out in the same order.
// An exception of `source` is thrown by the next() that would have given that batch, and by every later one until
// set_state(). One thread at a time may call it.
class Prefetcher final : public BatchSource {
 public:
  explicit Prefetcher(std::unique_ptr<BatchSource> source, int depth = 2);
  ~Prefetcher() override;
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // `batch` is swapped for the prepared one; its memory is reused.
  void next(Batch& batch) override;
  LoaderState state() const override;
  void set_state(const LoaderState& state) override;  // drops what was prepared
  double epoch() const override;

 private:
  struct Queue;
  std::unique_ptr<Queue> queue_;
};

}  // namespace octet
