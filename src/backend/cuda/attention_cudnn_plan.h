#pragma once

#include <cudnn.h>

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace octet {

// The tensors of cuDNN's attention, and where they are.
enum class CudnnTensor : int64_t {
  Q = 1,
  K,
  V,
  O,
  Stats,
  DO,
  DQ,
  DK,
  DV,
  // Lengths and starts of packed documents, see RaggedTables.
  LengthsQ,
  LengthsKv,
  StartsQ,
  StartsK,
  StartsV,
  StartsO,
  StartsStats
};
using CudnnTensors = std::unordered_map<CudnnTensor, void*>;

// The key of a plan. q, k, v and their gradients lie in rows of (H + 2K) * D (but see kv_apart), o and do in rows of
// H * D.
struct CudnnShape {
  int64_t documents = 0, length = 0;  // exact, or upper limits if packed
  bool packed = false;                // the documents have different lengths
  int64_t tokens = 0;                 // upper limit if packed
  int64_t heads = 0, kv_heads = 0, depth = 0;
  float scale = 0;
  int64_t window = 0;  // as in AttentionShape

  auto operator<=>(const CudnnShape&) const = default;
  // If heads share keys, backward first computes dk and dv for all query heads, with rows that many times wider than
  // those of dk and dv. Then dk and dv have their own rows of K * D, so that the workspace stays small. So do k and
  // v, because cuDNN uses the starts of k and v for their gradients, whatever starts those are given.
  bool kv_apart() const { return packed && heads != kv_heads; }
  std::string to_string() const;
  std::string window_text() const { return window > 0 ? ", window " + std::to_string(window) : ""; }
};

enum class CudnnPass { Forward, Backward };

// One attention pass for one shape: cuDNN's graph and the plans it proposes. One of them is used.
class CudnnPlan {
 public:
  CudnnPlan(const CudnnShape& shape, CudnnPass pass, bool deterministic);
  ~CudnnPlan();

  // Equal for problems that share a fastest plan: the number of packed documents does not matter.
  std::string tuning_key() const;
  // Builds the plan named `wanted` if cuDNN proposes it, otherwise the first `most` proposals. Returns empty, or why
  // there is none.
  std::string build(cudnnHandle_t handle, const std::string& wanted, int most);
  bool decided() const { return candidates_.size() == 1; }
  int64_t workspace_bytes() const { return candidates_.front().workspace; }  // of run()
  int64_t deciding_bytes() const;                                            // of any of the plans built
  // Keeps the fastest of the built plans that fit `workspace`. They run on `stream`, the handle's, and write what
  // run() would.
  void decide(cudnnHandle_t handle, cudaStream_t stream, const CudnnTensors& tensors, void* workspace,
              int64_t workspace_bytes);
  void run(cudnnHandle_t handle, const CudnnTensors& tensors, void* workspace);

  const std::string& name() const { return candidates_.front().name; }
  float ms() const { return candidates_.front().ms; }  // 0 unless timed

 private:
  struct Graph;
  struct Candidate {
    int64_t index = 0;  // among cuDNN's proposals
    std::string name;
    int64_t workspace = 0;
    float ms = 0;
  };
  std::string describe(cudnnHandle_t handle);
  std::string add_candidate(int64_t index);
  std::string execute(cudnnHandle_t handle, const Candidate& candidate, const CudnnTensors& tensors,
                      void* workspace);

  CudnnShape shape_;
  CudnnPass pass_;
  bool deterministic_;
  std::unique_ptr<Graph> graph_;
  int64_t likely_ = 0;                 // number of proposals before cuDNN's fallback ones
  std::vector<Candidate> candidates_;  // the one in use first
};

}  // namespace octet
