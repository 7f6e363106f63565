#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/exchange_plan.h"
#include "model/head.h"
#include "model/weight_mover.h"

namespace octet {

constexpr int64_t kAllLayers = std::numeric_limits<int64_t>::max();

// Which parameters are trained, and how all are stored.
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
  Tensor received;             // u8: gradients that have arrived
  Tensor sent;                 // u8: gradients in the dtype in which they travel, unless they have it already
  Tensor partial;              // u8: with groups of ranks, sums over a group (fp32)
  Tensor counts;               // (ranks) int32: targets of a step
  Tensor records;              // (ranks, kRecordValues) fp32: norm, loss and more of a step
  Tensor slots;                // u8 (ranks, bytes of the slots)
  Tensor gather_ring[2];       // u8: whole weights of a layer
  Tensor gradient_ring[2];     // u8: gradients of a layer
  int64_t round_capacity = 0;  // of exchange_rounds
  static constexpr int64_t kRecordValues = 16;
};

// The embedding of tokens and, if the model has one, of positions.
struct Embedding {
  Parameter* tokens = nullptr;
  Parameter* positions = nullptr;
  Tensor position_weight() const { return positions ? positions->weight : Tensor{}; }
  Tensor position_gradient() const { return positions ? positions->gradient : Tensor{}; }
  bool is_trained() const { return tokens->storage.trainable || (positions && positions->storage.trainable); }
};

// The norm after the last layer, and what it keeps for backward.
struct FinalNorm {
  Norm norm;
  Tensor residual;   // (N, C)
  Tensor mean, inv;  // (N) fp32
};

// All Linears in the order of the forward pass, the head last, and their precision.
struct LinearChoices {
  std::vector<LinearSite> sites;
  std::vector<LinearChoice> choices;
};

// Memory of the plan, once it is allocated.
struct ModelMemory {
  std::shared_ptr<void> device, host;
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
  Tensor final_residual() const { return final_.residual; }

  const Finetuning& finetuning() const { return finetuning_; }
  bool has_adapters() const { return !finetuning_.adapters.empty(); }
  // Layers that keep one FP8 copy of weights, see Finetuning::one_copy_layers. With ranks that share the weights, all do.
  int64_t transposing_layers() const;
  // Bytes that the backward pass of a micro-batch reads and writes only to save memory: transposes of weights with one copy, and
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
  int64_t allocated_bytes() const { return memory_.device ? plan().peak_bytes() : 0; }
  // Call after weights were written from outside (initialise, import, resume). Makes their FP8 copies; the delayed
  // recipe uses the scales in scales(). A resumed run restores scales() first.
  void weights_changed();
  // The same after scales() were restored as well: they have seen these weights before.
  void weights_restored();
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
  int64_t exchange_capacity() const { return ranks_.round_capacity; }  // of exchange_rounds
  const Sharding& sharding() const { return finetuning_.sharding; }
  void* memory() const { return memory_.device.get(); }

  // Copies a micro-batch of exactly shape().tokens() tokens to the device. `gradient_scale` is 1 / (targets of the
  // whole step), for forward_backward; absent: gradient_scale() has it already. `dropout_seed` must differ between
  // micro-batches.
  void load(const HostBatch& batch, std::optional<float> gradient_scale = 0.0f, uint64_t dropout_seed = 0);
  Tensor gradient_scale() const { return inputs_.gradient_scale; }  // (1) fp32

  // Forward and backward of the loaded micro-batch. The first micro-batch of a step overwrites the gradients; later
  // ones add to them. With `weigh`, the head runs twice: first for the losses of the rows, which `weigh` makes weights of,
  // and then for gradients. In between the host waits for the device.
  void forward_backward(const PenaltyOptions& penalty, bool first, bool fp8_stats,
                        const WeighRows& weigh = {});
  // Only forward and loss; does not change the training state.
  void forward_loss(const PenaltyOptions& penalty, bool fp8);
  // A forward pass for the losses that `weigh` would get: (N) from fp32 logits, 0 without a target. Does not change the
  // training state, but the loaded micro-batch stays. For a frozen reference. Waits for the device.
  std::vector<float> row_losses(bool fp8);
  // After forward_loss: how many targets of the micro-batch were the likeliest token; waits for the device.
  int64_t correct_targets() const { return head_.correct_targets(); }
  // After forward_loss: the loss of every target, in the order of the tokens that have one; waits for the device.
  std::vector<float> target_losses() const { return head_.target_losses(); }
  void clear_sums() { device_.zero(head_.sums()); }
  LossSums sums() const;                             // waits for the device
  Tensor loss_sums() const { return head_.sums(); }  // the same on the device, (2) fp32

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
  Timeline time() const { return {config_.layers}; }
  // Lifetimes of buffers that all layers need: in forward and backward, and only in backward.
  Lifetime up_and_down() const { return {time().forward(0), time().end()}; }
  Lifetime down() const { return {time().head(), time().end()}; }
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
  template <class Use>
  void evaluate(bool fp8, const Use& use);
  void forward_body(const LayerPass& pass);
  void block_forward(size_t index, const LayerPass& pass);
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
  size_t last_group() const { return blocks_.size() + 1; }
  // The beginning of a recording's key; each part adds its own. If any argument of a recorded op changes, the key must change.
  // The head does not read the documents, and the other parts do not read the number of its rows, so few recordings are made.
  std::string common_signature(bool first, bool fp8_stats) const;

  ModelConfig config_;
  RunShape shape_;
  Numerics numerics_;
  Device& device_;
  Finetuning finetuning_;
  KeepPolicy keep_;
  LinearChoices precision_;
  BufferPlanner planner_;
  ParameterSet parameters_;
  ScaleTable scales_;
  ModelMemory memory_;
  int64_t number_ = 0;  // unique among all Transformers of the process

  Embedding embedding_;
  std::vector<Block> blocks_;
  FinalNorm final_;
  Head head_;
  std::vector<Linear*> linears_;
  BatchInputs inputs_;
  Tensor rope_table_;  // (length, D) fp32
  SharedBuffers shared_;
  Tensor staging_;  // bytes, before the first step
  Tensor workspace_;

  WeightMover* mover_ = nullptr;
  std::string segments_;  // the signature of the micro-step that is recorded in pieces; else empty
  std::vector<ParameterGroup> groups_;
  RankBuffers ranks_;
};

}  // namespace octet
