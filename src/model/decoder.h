#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "model/transformer.h"

namespace octet {

struct DecoderShape {
  int64_t sequences = 1;  // continued in parallel
  int64_t capacity = 0;   // most tokens per sequence, prompt plus continuation
  int64_t chunk = 128;    // most tokens in one pass: longer prompts take several
};

// Only the forward pass, for generating text. Keys and values of earlier tokens stay in a cache, so a new token costs
// one pass over itself. The constructor plans; allocate() takes the memory.
class Decoder {
 public:
  // With weights of its own, dense in fp32 or bf16.
  Decoder(const ModelConfig& config, const DecoderShape& shape, DType dtype, Device& device);
  // With the weights and adapters of a model in training. Linears that have only FP8 copies run in FP8; the others are
  // dense. The scales of the model in training are the same afterwards.
  Decoder(Transformer& trained, const DecoderShape& shape, Device& device);
  Decoder(const Decoder&) = delete;  // the planner points into it

  const ModelConfig& config() const { return config_; }
  const DecoderShape& shape() const { return shape_; }
  const MemoryPlan& plan() const { return planner_.plan(); }
  ParameterSet& parameters() { return parameters_; }
  void allocate();

  // Cached tokens of a sequence.
  int64_t length(int64_t sequence) const { return lengths_[static_cast<size_t>(sequence)]; }
  void clear(int64_t sequence) { rewind(sequence, 0); }
  // Keeps the first `length` tokens of a sequence, at most those that it has.
  void rewind(int64_t sequence, int64_t length) {
    int64_t& now = lengths_[static_cast<size_t>(sequence)];
    now = std::min(now, length);
  }

  struct Continuation {
    int64_t sequence = 0;
    std::span<const int32_t> ids;  // at least one
  };
  using Logits = std::vector<float>;  // of the unpadded vocabulary
  // Appends the ids of every continuation to its sequence, in as few passes as `chunk` allows. Returns the logits
  // after the last id of every continuation, or with `every_token` after every id, in the order of the continuations.
  // No sequence may occur twice. Waits for the device.
  std::vector<Logits> read(std::span<const Continuation> continuations, bool every_token = false);

 private:
  struct Layer {
    AttentionPart attention;
    MlpPart mlp;
    KvCache cache;  // (sequences, capacity, K * D)
  };
  struct Token {
    int32_t id, sequence, position;
    bool wanted;  // its logits are requested
  };

  Decoder(const ModelConfig& config, const DecoderShape& shape, DType dtype, Device& device,
          Transformer* trained);
  Ops& ops() const { return device_.ops(); }
  int64_t padded_tokens(int64_t tokens, int64_t most) const;
  void make_linears();
  void plan_linears();
  void plan_buffers();
  template <class Use>
  void for_linears(Use&& use);
  void pass(std::span<const Token> tokens, std::vector<Logits>& logits);
  void head(std::span<const int64_t> rows, Tensor normed, std::vector<Logits>& logits);

  ModelConfig config_;
  DecoderShape shape_;
  DType dtype_;
  Device& device_;
  Transformer* trained_;  // null: the weights are its own
  BufferPlanner planner_;
  std::unique_ptr<ParameterSet> own_parameters_;
  ParameterSet& parameters_;
  std::shared_ptr<void> memory_;
  std::vector<int64_t> lengths_;

  Parameter* wte_ = nullptr;
  Parameter* wpe_ = nullptr;
  std::vector<Layer> layers_;
  Norm final_norm_;
  Linear head_;
  QuantizedScratch fp8_;     // of Linears that have only FP8 copies
  bool runs_fp8_ = false;    // there are such Linears
  AdapterScratch adapters_;  // no dropout

  // For up to `chunk` tokens; a pass uses the first rows.
  Tensor tokens_, sequences_, positions_;  // (chunk) int32
  Tensor mean_, inv_;                      // (chunk) fp32
  Tensor residual_, delta_, normed_;       // (chunk, C)
  Tensor qkv_;                             // (chunk, (H + 2K) * D)
  Tensor attended_;                        // (chunk, H * D)
  Tensor up_, act_;                        // (chunk, F or 2F), (chunk, F)
  int64_t head_rows_ = 0;
  Tensor head_in_;     // (head_rows, C)
  Tensor logits_;      // (head_rows, padded vocab) fp32
  Tensor rope_table_;  // (capacity, D) fp32
  Tensor workspace_;
};

}  // namespace octet
