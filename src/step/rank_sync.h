#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "dist/ranks.h"
#include "model/transformer.h"

namespace octet {

// A rank's message to the others in every step. All ranks see all of these, so they decide alike.
struct StepNote {
  int32_t targets = 0, tokens = 0;  // of this rank in this step
  int32_t stop_signal = 0;          // 0: none
  int32_t save_failures = 0;        // in a row
  float compute_ms = 0;             // of the step before
  float energy_joules = 0;    // that the GPU of this rank has used since the note before; NaN: not known
  uint64_t weights_hash = 0;  // of the weights before this step; 0: not checked
};
struct RankRecord {
  float norm = 0, loss = 0, penalty = 0;  // of this rank alone
  StepNote note;
};

// Keeps a model that ranks share in step. Gradients are exchanged and added while backward continues; new weights are
// gathered while the optimizer and the next forward pass run. Every collective is queued by one thread, in the same order
// on all ranks, and none is recorded in a graph.
//
// Queues: computation; `gather`, for weights; `reduce`, for gradients and their sums. Small collectives are queued with
// the computation.
class RankSync final : public WeightMover {
 public:
  // After Transformer::allocate(). Becomes the model's mover; the model must outlive it.
  RankSync(Transformer& model, Device& device, Ranks& ranks);
  ~RankSync() override;
  RankSync(const RankSync&) = delete;  // the model points at it

  // ---- one step, in this order ----
  // The model's gradient_scale() becomes 1 / (targets of all ranks).
  void begin_step(const StepNote& note);
  // Before forward_backward of each micro-batch.
  void begin_micro_batch(bool first, bool last) override;
  void acquire(int64_t group, Sweep sweep) override;
  void release(int64_t group, Sweep sweep) override;
  // After the last micro-batch: norm (2) as grad_norm has it, over all ranks; NaN on all of them if one rank's loss is
  // not finite. The slots of the scales become equal.
  void finish_gradients(Tensor norm, float max_norm);
  // AdamW of this rank's parts, and the gathering of the result.
  void update(Tensor norm, const AdamWOptions& options, float weight_decay, float loraplus_ratio) override;
  // The records of all ranks in this step; waits for the device.
  std::vector<RankRecord> records();

  // ---- between steps ----
  void publish() override;
  void settle() override;
  // amax becomes the largest of all ranks. Does nothing without FP8.
  void merge_slots() override;
  float largest(float value) override;
  // A hash of all weights that every rank has whole; waits for the device.
  uint64_t weights_hash();
  // (parts * part_rows, ...) = the parts of all ranks, queued with the computation. For checkpoints.
  void gather(Tensor parts, Tensor part, std::string_view what);
  Ranks& ranks() { return ranks_; }
  // Milliseconds of compute in the last step, without collectives. 0 on GPUs, where the host cannot measure it.
  double compute_ms() const { return compute_ms_; }
  std::string description() const { return world_->description(); }

 private:
  struct Group;  // of parameters, with what its collectives need

  void make_communicators();
  void all_gather(Communicator& group, Queue& queue, std::span<const GatherItem> items,
                  std::string_view what);
  void exchange(Communicator& group, std::span<const ExchangeItem> items, std::string_view what);
  void make_groups();
  // A round of gradients, in this order.
  struct Source {
    const std::byte* data;
    int64_t part_bytes;  // from one part to the next
  };
  Source source_of(const ExchangePiece& piece);
  void add_to_sum(const ExchangePiece& piece, const Tensor& received);
  void sum_alone(const ExchangeRound& round);
  void exchange_in_group(const ExchangeRound& round, const std::string& name);
  void exchange_between_groups(const ExchangeRound& round, const std::string& name);
  void gather_sums(const ExchangeRound& round, const std::string& name);
  void gather_kept(size_t group, bool frozen);
  void fetch(size_t group);
  void use(size_t group);
  bool is_fetched(size_t group) const;
  Tensor part_update(const Parameter& p) const;

  Transformer& model_;
  Device& device_;
  Ranks& ranks_;
  const Sharding sharding_;
  std::shared_ptr<void> memory_;  // outlives the groups below, whose work may use it
  // Among the ranks of a group, and between groups (null if there is one group).
  std::unique_ptr<Communicator> gather_, reduce_, gather_across_, reduce_across_;
  std::unique_ptr<Communicator> world_;
  std::unique_ptr<Queue> gather_queue_, reduce_queue_;
  std::unique_ptr<Ops> gather_ops_, reduce_ops_;
  std::unique_ptr<Event> computed_, reduced_;
  std::unique_ptr<Event> ring_free_[2];  // gradients of the layer that last used it have been sent
  std::unique_ptr<Event> fetched_[2];
  int64_t resident_[2] = {-1, -1};  // the group in the gather ring
  std::vector<Group> groups_;
  std::vector<Tensor> updates_;  // gradients of this rank's parts, after the sum over ranks
  Tensor local_norm_;            // (2) fp32
  Tensor hash_;                  // u8 (8)
  bool first_ = true, last_ = true;
  Clock::time_point step_start_;
  double waited_ms_ = 0, compute_ms_ = 0;
};

}  // namespace octet
