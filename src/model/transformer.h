#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/block.h"
#include "model/exchange_plan.h"
#include "model/weight_mover.h"

namespace octet {

// The size of a micro-batch and what is kept in memory.
struct RunShape {
  int64_t rows = 1;
  int64_t length = 0;
  bool training = true;
  Checkpointing checkpointing = Checkpointing::None;
  int64_t head_chunk_bytes = int64_t{64} << 20;  // most memory for logits at one time
  bool graphs = false;                           // a micro-step may be recorded by the device and replayed
  bool head_all_rows = false;  // training computes the head also for tokens without a target; for comparison
  // Only without training: forward_loss computes the head only for tokens with a target, with fp32 logits.
  bool scoring = false;
  int64_t tokens() const { return rows * length; }
};

// The dtypes in which the run computes and stores.
struct Numerics {
  Precision precision = Precision::Bf16;
  Fp8Config fp8;
  DType moments = DType::F32;                      // fp32 | bf16 | e4m3
  RemainderKind remainder = RemainderKind::Exact;  // of bf16 matrices
  DType gradients = DType::F32;                    // of matrices
  DType dense() const { return precision == Precision::Fp32 ? DType::F32 : DType::BF16; }
};

constexpr int64_t kAllLayers = std::numeric_limits<int64_t>::max();

// What is trained, and how the parameters are stored.
struct Finetuning {
  AdapterPlan adapters = {};  // if there are any, only they are trained, and the base is frozen
  // The first layers, in FP8: they keep one copy of each weight, and transpose it before they use it in backward. The
  // results have the same bits. The head and the other layers keep two.
  int64_t one_copy_layers = 0;
  // Absent: all parameters are trained or, with adapters, the base is frozen and its matrices are kept only in FP8
  // where their products run in FP8. Ranks share the parameters as `sharding` says.
  StoragePolicy storage = {};
  Sharding sharding = {};
};

// Parameters whose weights and gradients travel between ranks together, and the Linears that read them. See WeightMover.
struct ParameterGroup {
  std::string name;  // "embedding", "layers.3", "head"
  std::vector<Parameter*> parameters;
  std::vector<Linear*> linears;
};

// Memory for what travels between ranks, in addition to the parameters' own.
struct RankBuffers {
  Tensor received;          // u8: gradients that have arrived
  Tensor sent;              // u8: gradients in the dtype in which they travel, unless they have it already
  Tensor partial;           // u8: with groups of ranks, sums over a group (fp32)
  Tensor counts;            // (ranks) int32: targets of a step
  Tensor records;           // (ranks, kRecordValues) fp32: norm, loss and more of a step
  Tensor slots;             // u8 (ranks, bytes of the slots)
  Tensor gather_ring[2];    // u8: whole weights of a layer
  Tensor gradient_ring[2];  // u8: gradients of a layer
  static constexpr int64_t kRecordValues = 16;
};

// One micro-batch on the host, as views; see data/loading/batch.h for their meaning.
struct HostBatch {
  std::span<const int32_t> tokens, targets, positions, document_starts;
};

struct PenaltyOptions {
  PenaltyKind kind = PenaltyKind::None;
  float weight = 0;
};

// Sums over the targets of the micro-batches since they were last cleared.
struct LossSums {
  double loss = 0;
  double penalty = 0;
};

// A decoder-only transformer with hand-written forward and backward over planned memory. The constructor plans;
// allocate() takes the memory. So a Transformer can also tell what a run would need.
class Transformer {
 public:
  Transformer(const ModelConfig& config, const RunShape& shape, const Numerics& numerics, Device& device,
              const Finetuning& finetuning = {});
  Transformer(const Transformer&) = delete;  // the planner and the optimizer point into it

  const ModelConfig& config() const { return config_; }
  const RunShape& shape() const { return shape_; }
  const Numerics& numerics() const { return numerics_; }
  const MemoryPlan& plan() const { return planner_.plan(); }
  ParameterSet& parameters() { return parameters_; }
  const ParameterSet& parameters() const { return parameters_; }
  ScaleTable& scales() { return scales_; }
  // Every Linear with its site and choice, in the order of the forward pass.
  const std::vector<Linear*>& linears() const { return linears_; }
  const std::vector<Block>& blocks() const { return blocks_; }
  // The residual stream after the last block; valid from a forward pass until backward begins.
  Tensor final_residual() const { return final_residual_; }

  const Finetuning& finetuning() const { return finetuning_; }
  bool has_adapters() const { return !finetuning_.adapters.empty(); }
  // Layers that keep one FP8 copy of weights, see Finetuning::one_copy_layers. With ranks that share the weights, all do.
  int64_t transposing_layers() const;
  // What the backward pass of a micro-batch reads and writes only to save memory: transposes of weights with one copy, and
  // the sum of the head's gradients once more for every chunk but the first.
  int64_t bytes_moved_to_save_memory() const;

  // One allocation of plan().peak_bytes(), and the constant tables.
  void allocate();
  // Random weights, as ParameterSet::initialise has them, also for Linears that have only FP8 copies. Without `base`,
  // the weights of the base are skipped, because they are loaded; adapters and moments are always initialised.
  void initialise(uint64_t seed, bool base = true);
  // Writes a weight that has only FP8 copies, some rows at a time; see Weight::fill. Overwrites
  // activations.
  void fill_weight(Weight& weight, const Weight::StageRows& stage);
  int64_t allocated_bytes() const { return allocated_bytes_; }
  // Call after weights were written from outside (initialise, import, resume). Makes their FP8 copies; the delayed
  // recipe uses the scales in scales(). A resumed run restores scales() first.
  void weights_changed();
  // With ranks that send FP8 codes: makes the codes of this rank's rows. With ScaleFrom::Slot by the scales in scales();
  // otherwise the ranks agree on new ones first.
  void quantize_parts(ScaleFrom scale);
  // The optimizer cannot write codes of this rank's rows, because the ranks must agree on their scales first.
  bool parts_need_scales() const;

  // Called from now on, and null for none. With RunShape::graphs, a micro-step is then recorded in pieces, and the mover
  // is called between them.
  void set_mover(WeightMover* mover) { mover_ = mover; }
  WeightMover* mover() const { return mover_; }
  const std::vector<ParameterGroup>& groups() const { return groups_; }
  const RankBuffers& rank_buffers() const { return ranks_; }
  int64_t exchange_capacity() const { return exchange_capacity_; }  // of exchange_rounds
  const Sharding& sharding() const { return finetuning_.sharding; }
  void* memory() const { return memory_.get(); }

  // Copies a micro-batch of exactly shape().tokens() tokens to the device. `gradient_scale` is 1 / (targets of the
  // whole step), for forward_backward; absent: gradient_scale() has it already. `dropout_seed` must differ between
  // micro-batches.
  void load(const HostBatch& batch, std::optional<float> gradient_scale = 0.0f, uint64_t dropout_seed = 0);
  Tensor gradient_scale() const { return gradient_scale_; }  // (1) fp32

  // Forward and backward of the loaded micro-batch. The first micro-batch of a step overwrites the gradients; later
  // ones add to them.
  void forward_backward(const PenaltyOptions& penalty, bool first, bool fp8_stats);
  // Only forward and loss; does not change the training state.
  void forward_loss(const PenaltyOptions& penalty, bool fp8);
  // After forward_loss: how many targets of the micro-batch were the likeliest token; waits for the device.
  int64_t correct_targets() const;
  // After forward_loss: the loss of every target, in the order of the tokens that have one; waits for the device.
  std::vector<float> target_losses() const;
  void clear_sums() { device_.zero(sums_); }
  LossSums sums() const;                      // waits for the device
  Tensor loss_sums() const { return sums_; }  // the same on the device, (2) fp32

  // Logits (unpadded, fp32) of the loaded micro-batch at the given token indices, computed dense; waits for the device.
  std::vector<std::vector<float>> logits_at(const std::vector<int64_t>& tokens);

  // The parameters as the optimizer takes them, decay already resolved. `loraplus_ratio`: learning rate of the
  // adapters' B over that of their A.
  std::vector<AdamWParameter> optimizer_view(float weight_decay, float loraplus_ratio = 1);
  // The same for some of them.
  std::vector<AdamWParameter> optimizer_view(std::span<Parameter* const> parameters, float weight_decay,
                                             float loraplus_ratio);

 private:
  Ops& ops() const { return device_.ops(); }

  void plan_parameters();
  void plan_transposed_weight();
  void plan_adapter_scratch();
  void make_groups();
  void plan_rings();
  void plan_rank_buffers();
  void plan_staging();
  // Lifetimes of buffers that all layers need: in forward and backward, and only in backward.
  Lifetime up_and_down() const { return {time_.forward(0), time_.end()}; }
  Lifetime down() const { return {time_.head(), time_.end()}; }
  void plan_bytes(Tensor& view, const std::string& name, int64_t bytes, Lifetime lifetime);
  void plan_fp8_scratch();
  void plan_layers();
  template <class Part>
  void plan_part(Part Block::*part, typename Part::Activations Block::*activations,
                 typename Part::Activations& shared, std::span<QuantizedBuffers> shared_inputs);
  void plan_head();
  void plan_gradients();
  void plan_workspace();

  LayerPass pass(bool fp8) const;
  void forward_body(const LayerPass& pass);
  void block_forward(size_t index, const LayerPass& pass);
  // The rows that the head computes, and what belongs to them.
  struct HeadRows {
    int64_t count;
    Tensor input, gradient;      // (count, C)
    Tensor targets;              // (count) int32
    Tensor loss, penalty;        // (N) fp32: the first `count` are theirs
    bool needs_scatter = false;  // gradient, loss and penalty must still be brought to their places
  };
  void choose_head_rows(std::span<const int32_t> targets);
  bool gathers_head_rows(bool backward) const {
    return (backward || shape_.scoring) && head_count_ < shape_.tokens();
  }
  HeadRows gather_head_rows(bool backward);
  void scatter_head_rows(const HeadRows& rows);
  // Whether the FP8 product for the head's weight reads the head's input without its mean. Adapters of the head would read
  // the same input; a head that has them does not train today.
  bool centres_head_input() const {
    return head_.operands.input_needed_colwise() && !head_.operands.has_adapter();
  }
  void centre_head_input(const Operand& x, float mean_factor, Quantized& copy, bool has_scale);
  // Whether the mean of the gradient of the head's input is computed without FP8.
  bool keeps_mean_of_head_gradient() const {
    return head_.spec.choice[Product::Dgrad].fp8 && head_.weight.has_dense() && !head_.operands.has_adapter();
  }
  void keep_mean_of_head_gradient(const HeadRows& rows);
  // Whether rounding errors of a row of the logits' gradient are taken back. They are known only with a delayed scale, so not
  // in a pass that calibrates.
  bool corrects_row_sums() {
    const Quantized* gradient = head_.gradient({}, false).fp8;
    return gradient && gradient->keeps_scale() && head_.weight.has_dense();
  }
  void correct_row_sums(const HeadRows& rows);
  void head_loss(bool backward, const PenaltyOptions& penalty, bool first, bool fp8);
  void backward_body(bool first);
  void block_backward(size_t index, const LayerPass& pass, bool first);
  // The Linear that reads the gradient of the residual stream before block `index`; null at the bottom.
  Linear* linear_below(size_t index) { return index == 0 ? nullptr : &blocks_[index - 1].mlp.down; }
  void segment(std::string_view name, const std::function<void()>& work);
  void acquire(size_t group, Sweep sweep) const {
    if (mover_) mover_->acquire(static_cast<int64_t>(group), sweep);
  }
  void release(size_t group, Sweep sweep) const {
    if (mover_) mover_->release(static_cast<int64_t>(group), sweep);
  }
  // Around a pass that must not change the training state.
  void begin_evaluation();
  void end_evaluation();
  size_t last_group() const { return blocks_.size() + 1; }
  // With what a part adds: differs between micro-steps in which any argument of any op of the part differs. The head does
  // not read the documents, and the other parts do not read the number of its rows, so that few recordings are made.
  std::string common_signature(bool first, bool fp8_stats) const;

  ModelConfig config_;
  RunShape shape_;
  Numerics numerics_;
  Device& device_;
  Finetuning finetuning_;
  KeepPolicy keep_;
  Timeline time_;
  int64_t head_rows_ = 0;          // rows of a chunk of the head
  std::vector<LinearSite> sites_;  // of all Linears in the order of the forward pass, and their precision
  std::vector<LinearChoice> choices_;
  BufferPlanner planner_;
  ParameterSet parameters_;
  ScaleTable scales_;
  std::shared_ptr<void> memory_, host_memory_;
  int64_t allocated_bytes_ = 0;
  int64_t number_ = 0;  // unique among all Transformers of the process

  Parameter* wte_ = nullptr;
  Parameter* wpe_ = nullptr;
  std::vector<Block> blocks_;
  Norm final_norm_;
  Linear head_;
  std::vector<Linear*> linears_;
  SharedBuffers shared_;
  WeightMover* mover_ = nullptr;
  std::string segments_;  // the signature of the micro-step that is recorded in pieces; else empty
  std::vector<ParameterGroup> groups_;
  RankBuffers ranks_;
  int64_t exchange_capacity_ = 0;

  Tensor tokens_, targets_, positions_, document_starts_;  // (N), (N), (N), (N + 1) int32
  Tensor gradient_scale_;                                  // (1) fp32
  Tensor target_share_;  // (1) fp32: 1 / rows with a target; with keeps_mean_of_head_gradient()
  Tensor dropout_seed_;  // (2) int32
  // In training and scoring, the head computes only rows with a target, and a few others that make their number round:
  // the indices of these rows, those with a target first, and their targets. The number is shape_.tokens() if all rows
  // are computed in place.
  Tensor target_rows_, gathered_targets_;    // (N) int32
  Tensor head_input_;                        // (N, C) the gathered rows, for scoring
  Tensor gathered_loss_, gathered_penalty_;  // (N) fp32, for training
  int64_t head_count_ = 0;
  int64_t target_count_ = 0;  // rows with a target: the first ones of head_rows_host_
  std::vector<int32_t> head_rows_host_, head_targets_host_;
  std::vector<int32_t> padded_starts_;
  Documents documents_;
  Tensor rope_table_;              // (length, D) fp32
  Tensor final_residual_;          // (N, C)
  Tensor final_mean_, final_inv_;  // (N) fp32
  Tensor final_normed_;            // (N, C)
  Tensor dfinal_normed_;           // (N, C)
  Tensor logits_;                  // (head_rows, padded vocab)
  Tensor correction_;              // (N) fp32: see Ops::cross_entropy; absent if the head has no FP8 gradient
  Tensor head_input_sums_;         // (C) fp32: over the rows of the head's input; with centres_head_input()
  Tensor logit_gradient_sums_;     // (padded vocab) fp32: over the rows of the logits' gradient; if either
  Tensor head_gradient_error_;     // (2, C) fp32: of the sum over rows, and a row's share of it;
                                   // with keeps_mean_of_head_gradient()
  Tensor loss_, penalty_;          // (N) fp32
  Tensor correct_;                 // (N) int32: 1 where the likeliest token was the target
  Tensor sums_;                    // (2) fp32: loss, penalty
  Tensor staging_;                 // bytes, before the first step
  Tensor workspace_;
};

}  // namespace octet
