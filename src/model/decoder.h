#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "model/transformer.h"
#include "ops/sampling.h"

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
  // The same, but the device chooses the token after each continuation, as its choice says, and the ids alone come to the
  // host. kNanLogits or kNoLogits where there is no choice. A decoder with weights of its own has its passes recorded
  // (Device::repeat): a token is one launch.
  std::vector<int32_t> choose(std::span<const Continuation> continuations,
                              std::span<const TokenChoice> choices);

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
  // Rows of a pass whose logits are computed together. Behind the first `count` are fillers, so that there are few sizes.
  struct HeadRows {
    Tensor rows;  // (padded count) int32, -1: filler
    int64_t count = 0;
  };
  struct Pass {
    Tensor tokens, sequences, positions;  // (n) int32, with fillers
    int64_t longest = 0;                  // positions that its queries may read
    std::vector<HeadRows> wanted;
    int64_t chosen() const {
      int64_t count = 0;
      for (const HeadRows& rows : wanted) count += rows.count;
      return count;
    }
  };
  std::vector<Token> append(std::span<const Continuation> continuations, bool every_token);
  // Calls use(pass) for as few passes as `chunk` allows.
  template <class Use>
  void run(std::span<const Token> tokens, const Use& use);
  Pass send(std::span<const Token> tokens);
  void layers(const Pass& pass);
  Tensor head(const HeadRows& wanted);  // (count, padded vocab)

  static inline std::atomic<uint64_t> decoders_{0};
  const uint64_t serial_ = decoders_++;  // in the names of its recordings
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
  Tensor inputs_;                     // int32: the tensors of a Pass, which come from the host in one copy
  Tensor mean_, inv_;                 // (chunk) fp32
  Tensor residual_, delta_, normed_;  // (chunk, C)
  Tensor qkv_;                        // (chunk, (H + 2K) * D)
  Tensor attended_;                   // (chunk, H * D)
  Tensor up_, act_;                   // (chunk, F or 2F), (chunk, F)
  int64_t head_rows_ = 0;
  Tensor head_in_;     // (head_rows, C)
  Tensor logits_;      // (head_rows, padded vocab) fp32
  Tensor choices_;     // u8 (sequences * sizeof(TokenChoice))
  Tensor chosen_;      // (sequences) int32
  Tensor rope_table_;  // (capacity, D) fp32
  Tensor workspace_;
};

}  // namespace octet
