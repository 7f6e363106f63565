#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/device.h"
#include "precision/fp8_config.h"
#include "tensor/plan.h"

namespace octet {

// The state of FP8 scaling of a whole model: a slot for every quantised tensor, by name, and for those with delayed
// scaling the amax histories. The slots and histories live in the device's memory; nothing here waits for the device unless
// it says so.
class ScaleTable {
 public:
  explicit ScaleTable(Fp8Config config) : config_(std::move(config)) {}
  ScaleTable(const ScaleTable&) = delete;  // quantised tensors point to its pass

  // Registers a tensor ("layers.0.mlp.up.input"); returns its index. All are registered before plan(), those with delayed
  // scaling last.
  int add(std::string name, const QuantizeRule& rule);
  // The same for a tensor that must stay where it is: initialise() binds it to its slot, its statistics and the table's
  // pass. share() does so for another form of a tensor that was added.
  int add(std::string name, Quantized& tensor);
  void share(int index, Quantized& tensor) { bound_.push_back({index, &tensor}); }
  void plan(BufferPlanner& planner);
  // After the planner is bound: binds the tensors and writes the initial state (all scales 1, histories empty).
  void initialise(Device& device);

  const Fp8Config& config() const { return config_; }
  bool is_delayed(int index) const { return index >= first_delayed_; }
  bool any_delayed() const { return first_delayed_ < count(); }
  int64_t count() const { return static_cast<int64_t>(entries_.size()); }
  const std::string& name(int64_t index) const { return entries_[static_cast<size_t>(index)].name; }
  Tensor slots() const { return slots_; }  // u8 (count * sizeof(ScaleSlot)); absent without entries
  Tensor delayed_slots() const {           // those with delayed scaling
    const int64_t bytes = (count() - first_delayed_) * static_cast<int64_t>(sizeof(ScaleSlot));
    return any_delayed() ? Tensor{slot(static_cast<int>(first_delayed_)), DType::U8, {bytes}} : Tensor{};
  }
  ScaleSlot* slot(int index) const { return static_cast<ScaleSlot*>(slots_.data) + index; }
  QuantStats* stats(int index) const { return static_cast<QuantStats*>(stats_.data) + index; }

  // Begins a pass over the model: training, evaluation, or copies of new weights. What it decides holds until the next
  // one begins, for the optimizer, too.
  void begin_pass(bool statistics) {
    pass_ = {calibrating_ ? ScaleFrom::Values : ScaleFrom::Rule, statistics};
  }

  // Until the first micro-batch is done, tensors with delayed scaling have current scaling, because there is no history.
  bool calibrating() const { return calibrating_; }
  void end_calibration() { calibrating_ = false; }

  // At the end of optimizer step `step` (1-based): the update of delayed scales, when the interval says so. `norm` (2)
  // fp32 of grad_norm may be absent; a step whose norm is not finite does not change scales and histories.
  void end_step(Device& device, int64_t step, Tensor norm = {});

  // Evaluation must not change the training state.
  void push_slots(Device& device) {
    if (slots_) device.copy(slots_backup_, slots_);
  }
  void pop_slots(Device& device) {
    if (slots_) device.copy(slots_, slots_backup_);
  }

  void clear_stats(Device& device) {
    if (stats_) device.zero(stats_);
  }

  // One tensor's view for a human: waits for the device.
  struct Report {
    std::string name;
    DType format;  // of the rowwise copy
    double amax = 0, scale = 0;
    double saturated_share = 0, flushed_share = 0;
    double sqnr_db = 0;  // 10 log10(signal / noise); +inf when there is no noise
    double elements = 0;
  };
  std::vector<Report> reports(Device& device) const;

  // Everything needed to resume bit for bit, as bytes with a header that names recipe, format and tensors. restore()
  // throws Error naming the first difference, and changes nothing, if the table was made for another recipe or
  // format, other tensors or another history length. The FP8 copies of weights are not part of it: call
  // Transformer::weights_changed() afterwards, which rewrites them with the restored scales.
  std::vector<std::byte> save(Device& device) const;
  void restore(Device& device, const std::vector<std::byte>& state);

 private:
  struct Entry {
    std::string name;
    const QuantizeRule rule;
  };
  struct Bound {
    int index;
    Quantized* tensor;
  };
  DelayedScaling delayed() const;
  // With delayed scaling of the head alone, its settings are those of the head.
  int64_t history_length() const { return config_.of_head().history_length; }

  Fp8Config config_;
  std::vector<Entry> entries_;
  std::vector<Bound> bound_;
  int64_t first_delayed_ = 0;  // these are the last ones
  bool calibrating_ = true;
  QuantizePass pass_{.statistics = false};
  Tensor slots_;         // u8 (count * sizeof(ScaleSlot))
  Tensor slots_backup_;  // likewise
  Tensor stats_;         // u8 (count * sizeof(QuantStats))
  Tensor history_;       // fp32 (delayed ones, history_length)
  Tensor formats_;       // u8 (delayed ones, 2)
};

}  // namespace octet
