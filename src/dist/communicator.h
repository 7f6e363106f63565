#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ops/device.h"
#include "tensor/tensor.h"

namespace octet {

// One tensor that every rank of a group gets whole. `whole` has size() equal parts along its first axis, and part r
// comes from rank r. `mine` is this rank's part: that part of `whole` itself (in place), or memory that does not
// overlap `whole`.
struct GatherItem {
  Tensor whole, mine;
};

// One tensor whose parts go to different ranks. Part r of `received`, which has size() equal parts, comes from rank r.
// The part that goes to rank r begins `stride` bytes times r after `sent` and has the bytes of one part. The parts of
// `sent` may lie further apart than they are large. `received` and `sent` do not overlap.
struct ExchangeItem {
  Tensor received;
  const void* sent = nullptr;
  int64_t stride = 0;
};

// A group of ranks that move memory between their devices. Nothing is added up here: sums are ops
// (Ops::sum_parts), in the order of the ranks. So results depend neither on the engine nor on the network.
//
// All members call the same functions in the same order, with the same number of items and the same sizes. A call
// queues its work on `queue` and returns. On the CPU, where work is done when it is queued, it returns when the
// data is there. The items of one call run as one collective. One communicator is used on one queue, by one thread.
// `what` names the call in messages about ranks that hang or died: "gather layers.3".
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string description() const = 0;  // "4 x NCCL 2.28.3", "4 threads", "4 x Gloo"

  virtual void all_gather(Queue& queue, std::span<const GatherItem> items, std::string_view what) = 0;
  virtual void exchange(Queue& queue, std::span<const ExchangeItem> items, std::string_view what) = 0;

  // Tells the engine about memory that collectives use, once, before the first of them. It may do nothing.
  virtual void register_memory(void* memory, int64_t bytes) {
    static_cast<void>(memory);
    static_cast<void>(bytes);
  }
};

}  // namespace octet
