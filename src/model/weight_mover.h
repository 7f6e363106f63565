#pragma once

#include "ops/ops.h"

namespace octet {

enum class Sweep : uint8_t { Forward, Backward };

// Brings weights to where products read them, and takes gradients to where they are added up and read by the optimizer.
// A Transformer without one has everything in place. Today there is one for ranks (RankSync); another one may keep
// weights, gradients or moments in the memory of the host.
//
// Weights move by group (ParameterGroup): 0 is the embedding, l + 1 is layer l, the last one is the final norm and the
// head. All calls come from one thread. They queue work and do not wait for the device.
class WeightMover {
 public:
  virtual ~WeightMover() = default;

  // ---- in a pass; what these queue is never part of a recording ----
  // `last`: gradients that are kept over the micro-batches of a step may leave in its backward sweep.
  virtual void begin_micro_batch(bool first, bool last) = 0;
  // Until release, queued work may read the group's weights and, in a backward sweep, write its gradients. A forward
  // sweep goes up through the groups, a backward sweep down, so that the mover can fetch the next one ahead. The views in
  // Parameter and Linear keep their addresses: recordings contain them.
  // Layers are acquired once per sweep. The embedding and the head may share their weight: they are acquired in the
  // forward sweep and released at the end of the pass, after their part of the backward sweep if there is one.
  virtual void acquire(int64_t group, Sweep sweep) = 0;
  // Work queued later does not read the weights. After a backward sweep, the group's gradients of this micro-batch are
  // complete and may leave. Gradients of the vectors of a layer are not only written while it is acquired: the layer
  // above also writes them.
  virtual void release(int64_t group, Sweep sweep) = 0;

  // ---- between passes ----
  // AdamW of everything that this process updates, group by group, and the way of the new weights to where products read
  // them. `norm` is (2) as grad_norm has it.
  virtual void update(Tensor norm, const AdamWOptions& options, float weight_decay, float loraplus_ratio) = 0;
  // Own rows of weights, or their codes, were written from outside: the same way for them.
  virtual void publish() = 0;
  // Waits, on the device, for gathers in flight. Work queued later sees all weights that are kept whole, and their FP8 copies.
  virtual void settle() = 0;

  // ---- what ranks must agree on; without ranks there is nothing to do ----
  virtual void merge_slots() {}                         // the ScaleSlots of all ranks become equal
  virtual float largest(float value) { return value; }  // of this number over all ranks
};

}  // namespace octet
