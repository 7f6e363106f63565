#pragma once

#include <compare>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/cublaslt.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/tuning_cache.h"

namespace octet {

// One product in cuBLAS's own terms, column-major: C (m, n) = op(A) (m, k) op(B) (k, n). It has everything that
// decides which algorithms can run and which is fastest.
struct GemmKey {
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0;
  bool transpose_a = false, transpose_b = false;
  cudaDataType_t type_a = CUDA_R_16BF, type_b = CUDA_R_16BF, type_c = CUDA_R_16BF;
  bool accumulate = false;
  std::optional<cudaDataType_t> bias;  // its type, when there is one: (m), added to every column
  // Scale modes of FP8 operands.
  std::optional<cublasLtMatmulMatrixScale_t> scale_a, scale_b;
  bool fast_accumulation = false;
  bool device_alpha = false;                        // alpha and beta are read from device memory
  int align_a = 256, align_b = 256, align_c = 256;  // of the pointers, in bytes

  auto operator<=>(const GemmKey&) const = default;
  std::string to_string() const;
};

struct GemmCall {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;
  const void* scale_a = nullptr;  // device
  const void* scale_b = nullptr;
  float alpha = 1;                    // without device_alpha; plans do not depend on it
  const float* alpha_beta = nullptr;  // device: {alpha, beta}, for device_alpha
};

// Plans of all products of a run. At the first use of a key, every algorithm that cuBLASLt proposes is timed on the
// real operands, and the fastest is kept that also computes a known product without an error (gemm_check.h): some versions
// of the library have algorithms that leave out a part of the sum. The choice is written to a file, so that later runs on
// the same GPU with the same library start at once.
class GemmPlanner {
 public:
  // `tune` false: cuBLASLt's first proposal that passes the check is taken, which does not depend on timing.
  GemmPlanner(cudaStream_t stream, std::string gpu, std::string cache_file, bool tune);
  ~GemmPlanner();

  // Whether cuBLASLt has an algorithm at all.
  bool supported(const GemmKey& key, int64_t workspace_bytes);
  void run(const GemmKey& key, const GemmCall& call, void* workspace, int64_t workspace_bytes);

 private:
  struct Plan;
  using Algo = cublasLtMatmulAlgo_t;
  static std::unique_ptr<Plan> describe(const GemmKey& key);
  Plan& find(const GemmKey& key, int64_t workspace_bytes);
  // Fills the plan's choice from its candidates. False if none of them runs and is right.
  bool choose(const GemmKey& key, Plan& plan, const GemmCall& call, void* workspace, int64_t workspace_bytes);
  // The candidates that run, the fastest first. Empty if there is no memory to time them.
  std::vector<Algo> by_speed(const GemmKey& key, Plan& plan, const GemmCall& call, void* workspace,
                             int64_t workspace_bytes);
  // The first that computes its product rightly. `whole` says afterwards whether all of its rows and columns were checked.
  std::optional<Algo> first_right(const GemmKey& key, const std::vector<Algo>& algos, void* workspace,
                                  int64_t workspace_bytes, bool& whole);
  cublasStatus_t launch(const GemmKey& key, Plan& plan, const Algo& algo, const GemmCall& call, void* c,
                        void* workspace, int64_t workspace_bytes);

  cudaStream_t stream_;
  bool tune_;
  bool tuned_any_ = false;
  TuningCache cache_;  // of algorithms in hex
  LtHandle handle_;
  std::map<GemmKey, std::unique_ptr<Plan>> plans_;
};

// The largest power of two up to 256 that divides the address.
int alignment_of(const void* pointer);

}  // namespace octet
