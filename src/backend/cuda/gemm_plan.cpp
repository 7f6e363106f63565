#include "backend/cuda/gemm_plan.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "backend/cuda/gemm_check.h"
#include "base/log.h"

namespace octet {
namespace {

constexpr int kCandidates = 24;
constexpr int kSamples = 3;        // of a short product; one that takes kLongMs is timed only once
constexpr float kSampleMs = 1.0f;  // launches are repeated until a sample takes about this long
constexpr int kMaxRepetitions = 16;
constexpr float kLongMs = 2.0f;
constexpr float kBudgetMs = 300.0f;  // of a plan; the library proposes likely winners first
constexpr size_t kFinalists = 5;
constexpr float kClose = 1.05f;
constexpr int kFinalRounds = 6;
// Choices of versions before 2 were timed, but not checked.
constexpr int kCacheVersion = 2;
// Rows and columns of the checked product where the memory is not enough for all of them. K is always whole.
constexpr int64_t kCheckedLines[] = {4096, 512};

struct TimedAlgo {
  cublasLtMatmulAlgo_t algo;
  float ms;
  int repetitions;
};

const CublasLt& lt() {
  return CublasLt::get();
}

LtLayout make_layout(cudaDataType_t type, int64_t rows, int64_t cols, int64_t ld) {
  cublasLtMatrixLayout_t layout = nullptr;
  lt().check(
      lt().MatrixLayoutCreate(&layout, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), ld),
      "matrix layout");
  return LtLayout(layout);
}

template <class T>
void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  lt().check(lt().MatmulDescSetAttribute(desc, attribute, &value, sizeof value), "matmul attribute");
}

template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const T& value) {
  lt().check(lt().MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
             "matmul preference");
}

size_t bytes_of(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_32F:
      return 4;
    case CUDA_R_16BF:
      return 2;
    default:
      return 1;
  }
}

// 0 where an algorithm has no such attribute.
int config_of(const cublasLtMatmulAlgo_t& algo, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  int value = 0;
  size_t written = 0;
  const cublasStatus_t status =
      lt().MatmulAlgoConfigGetAttribute(&algo, attribute, &value, sizeof value, &written);
  return status == CUBLAS_STATUS_SUCCESS ? value : 0;
}

int split_k(const cublasLtMatmulAlgo_t& algo) {
  return config_of(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
}

// NVIDIA's release notes: wrong results from cuBLAS 12.6.3 to at least 13.7.0.
bool known_to_be_wrong(const cublasLtMatmulAlgo_t& algo, int64_t k) {
  const int parts = split_k(algo);
  return config_of(algo, CUBLASLT_ALGO_CONFIG_ID) == 66 && parts > 1 && k % parts != 0;
}

std::string describe_algo(const cublasLtMatmulAlgo_t& algo) {
  return fmt::format("algorithm {} (split-K {})", config_of(algo, CUBLASLT_ALGO_CONFIG_ID), split_k(algo));
}

std::string to_hex(const cublasLtMatmulAlgo_t& algo) {
  std::array<unsigned char, sizeof algo> bytes;
  std::memcpy(bytes.data(), &algo, sizeof algo);
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::optional<cublasLtMatmulAlgo_t> from_hex(const std::string& text) {
  cublasLtMatmulAlgo_t algo;
  if (text.size() != 2 * sizeof algo || text.find_first_not_of("0123456789abcdef") != std::string::npos)
    return {};
  std::array<unsigned char, sizeof algo> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<unsigned char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  std::memcpy(&algo, bytes.data(), sizeof algo);
  return algo;
}

}  // namespace

int alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  int alignment = 256;
  while (address % static_cast<uintptr_t>(alignment) != 0) alignment /= 2;
  return alignment;
}

std::string GemmKey::to_string() const {
  return fmt::format("{}x{}x{} ld{},{},{} {}{} {},{},{} acc{} bias{} scale{},{} dev{} align{},{},{}{}", m, n,
                     k, lda, ldb, ldc, transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N',
                     static_cast<int>(type_a), static_cast<int>(type_b), static_cast<int>(type_c),
                     accumulate ? 1 : 0, bias ? static_cast<int>(*bias) : -1,
                     scale_a ? static_cast<int>(*scale_a) : -1, scale_b ? static_cast<int>(*scale_b) : -1,
                     device_alpha ? 1 : 0, align_a, align_b, align_c, fast_accumulation ? " fast" : "");
}

struct GemmPlanner::Plan {
  LtMatmulDesc desc;
  LtLayout a, b, c;
  std::vector<cublasLtMatmulHeuristicResult_t> candidates;  // until one is chosen
  cublasLtMatmulAlgo_t algo;
  bool chosen = false;
  float ms = 0;
  const void *bias = nullptr, *scale_a = nullptr, *scale_b = nullptr;  // as the descriptor has them
};

GemmPlanner::GemmPlanner(cudaStream_t stream, std::string gpu, std::string cache_file, bool tune)
    : stream_(stream),
      tune_(tune),
      cache_(std::move(cache_file), std::move(gpu), "cublaslt",
             fmt::format("{} checked{}", lt().GetVersion(), kCacheVersion)) {
  cublasLtHandle_t handle = nullptr;
  lt().check(lt().Create(&handle), "cublasLtCreate");
  handle_.reset(handle);
}

GemmPlanner::~GemmPlanner() = default;

std::unique_ptr<GemmPlanner::Plan> GemmPlanner::describe(const GemmKey& key) {
  auto plan = std::make_unique<Plan>();
  cublasLtMatmulDesc_t desc = nullptr;
  lt().check(lt().MatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "matmul descriptor");
  plan->desc.reset(desc);
  set(desc, CUBLASLT_MATMUL_DESC_TRANSA, key.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(desc, CUBLASLT_MATMUL_DESC_TRANSB, key.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (key.device_alpha) set(desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_DEVICE);
  if (key.fast_accumulation) set(desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
  if (key.bias) {
    set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, *key.bias);
  }
  if (key.scale_a) set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, static_cast<int32_t>(*key.scale_a));
  if (key.scale_b) set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, static_cast<int32_t>(*key.scale_b));
  // The heuristic only checks whether there are pointers, so supported() works before any call.
  const void* somewhere = reinterpret_cast<const void*>(uintptr_t{256});
  if (key.bias) set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, somewhere);
  if (key.scale_a) set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, somewhere);
  if (key.scale_b) set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, somewhere);

  plan->a =
      make_layout(key.type_a, key.transpose_a ? key.k : key.m, key.transpose_a ? key.m : key.k, key.lda);
  plan->b =
      make_layout(key.type_b, key.transpose_b ? key.n : key.k, key.transpose_b ? key.k : key.n, key.ldb);
  plan->c = make_layout(key.type_c, key.m, key.n, key.ldc);
  return plan;
}

GemmPlanner::Plan& GemmPlanner::find(const GemmKey& key, int64_t workspace_bytes) {
  auto& slot = plans_[key];
  if (slot) return *slot;
  auto plan = describe(key);
  cublasLtMatmulDesc_t desc = plan->desc.get();
  cublasLtMatmulPreference_t preference_handle = nullptr;
  lt().check(lt().MatmulPreferenceCreate(&preference_handle), "matmul preference");
  const LtPreference preference(preference_handle);
  set(preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes));
  set(preference.get(), CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(key.align_a));
  set(preference.get(), CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(key.align_b));
  set(preference.get(), CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(key.align_c));
  set(preference.get(), CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(key.align_c));
  const auto propose = [&](uint32_t reductions) {
    set(preference.get(), CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
    plan->candidates.resize(kCandidates);
    int found = 0;
    const cublasStatus_t status = lt().MatmulAlgoGetHeuristic(
        handle_.get(), desc, plan->a.get(), plan->b.get(), plan->c.get(), plan->c.get(), preference.get(),
        static_cast<int>(plan->candidates.size()), plan->candidates.data(), &found);
    plan->candidates.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(found) : 0);
    std::erase_if(plan->candidates, [&](const cublasLtMatmulHeuristicResult_t& candidate) {
      return candidate.state != CUBLAS_STATUS_SUCCESS ||
             candidate.workspaceSize > static_cast<size_t>(workspace_bytes) ||
             known_to_be_wrong(candidate.algo, key.k);
    });
  };
  // In-place reductions add in the order in which the blocks arrive, so they are not deterministic.
  propose(static_cast<uint32_t>(tune_ ? CUBLASLT_REDUCTION_SCHEME_MASK
                                      : CUBLASLT_REDUCTION_SCHEME_MASK & ~CUBLASLT_REDUCTION_SCHEME_INPLACE));
  // For long sums, sometimes only wrong algorithms are proposed.
  if (plan->candidates.empty()) propose(static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));

  if (const auto known = cache_.find(key.to_string()); tune_ && known && !plan->candidates.empty()) {
    cublasLtMatmulHeuristicResult_t check = {};
    const auto algo = from_hex(*known);
    if (algo &&
        lt().MatmulAlgoCheck(handle_.get(), desc, plan->a.get(), plan->b.get(), plan->c.get(), plan->c.get(),
                             &*algo, &check) == CUBLAS_STATUS_SUCCESS &&
        check.workspaceSize <= static_cast<size_t>(workspace_bytes)) {
      plan->algo = *algo;
      plan->chosen = true;
    }
  }
  slot = std::move(plan);
  return *slot;
}

bool GemmPlanner::supported(const GemmKey& key, int64_t workspace_bytes) {
  const Plan& plan = find(key, workspace_bytes);
  return plan.chosen || !plan.candidates.empty();
}

cublasStatus_t GemmPlanner::launch(const GemmKey& key, Plan& plan, const cublasLtMatmulAlgo_t& algo,
                                   const GemmCall& call, void* c, void* workspace, int64_t workspace_bytes) {
  // A plan serves every layer of the same shape: only the pointers inside the descriptor differ between
  // calls.
  const auto point = [&](const void*& known, const void* now, cublasLtMatmulDescAttributes_t attribute) {
    if (known == now) return;
    set(plan.desc.get(), attribute, now);
    known = now;
  };
  if (key.bias) point(plan.bias, call.bias, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
  if (key.scale_a) point(plan.scale_a, call.scale_a, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
  if (key.scale_b) point(plan.scale_b, call.scale_b, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
  const float one = 1.0f, zero = 0.0f;
  const float* alpha = key.device_alpha ? call.alpha_beta : &call.alpha;
  const float* beta = key.device_alpha ? call.alpha_beta + 1 : key.accumulate ? &one : &zero;
  return lt().Matmul(handle_.get(), plan.desc.get(), alpha, call.a, plan.a.get(), call.b, plan.b.get(), beta,
                     c, plan.c.get(), c, plan.c.get(), &algo, workspace, static_cast<size_t>(workspace_bytes),
                     stream_);
}

std::vector<GemmPlanner::Algo> GemmPlanner::by_speed(const GemmKey& key, Plan& plan, const GemmCall& call,
                                                     void* workspace, int64_t workspace_bytes) {
  // Repeated launches must not add to C several times, so they write to separate memory.
  DeviceMemory own;
  void* c = call.c;
  if (key.accumulate) {
    const size_t bytes = static_cast<size_t>(key.ldc * key.n) * bytes_of(key.type_c);
    void* memory = nullptr;
    if (cudaMalloc(&memory, bytes) != cudaSuccess) {
      cudaGetLastError();
      log_warning("[gemm] {}: no {} MB free to time the algorithms; the first proposal is used",
                  key.to_string(), bytes >> 20);
      return {};
    }
    own.reset(memory);
    c = memory;
    cuda_check(cudaMemsetAsync(c, 0, bytes, stream_), "gemm tuning");
  }
  if (!tuned_any_) {
    tuned_any_ = true;
    log_info("[gemm] timing the algorithms of new products; the fastest are kept in {}", cache_.place());
  }
  CudaEvent begin, end;
  float spent_ms = 0;
  const auto sample = [&](const cublasLtMatmulAlgo_t& algo, int repetitions) {
    cuda_check(cudaEventRecord(begin.get(), stream_), "gemm tuning");
    for (int i = 0; i < repetitions; ++i) launch(key, plan, algo, call, c, workspace, workspace_bytes);
    cuda_check(cudaEventRecord(end.get(), stream_), "gemm tuning");
    cuda_check(cudaEventSynchronize(end.get()), "gemm tuning");
    float ms = 0;
    cuda_check(cudaEventElapsedTime(&ms, begin.get(), end.get()), "gemm tuning");
    spent_ms += ms;
    return ms / static_cast<float>(repetitions);
  };
  std::vector<TimedAlgo> timed;  // the fastest first
  cublasStatus_t last = CUBLAS_STATUS_NOT_SUPPORTED;
  for (const auto& candidate : plan.candidates) {
    if (!timed.empty() && spent_ms > kBudgetMs) break;
    last = launch(key, plan, candidate.algo, call, c, workspace, workspace_bytes);
    if (last != CUBLAS_STATUS_SUCCESS) continue;
    const float first = sample(candidate.algo, 1);
    if (!timed.empty() && first > 2 * timed.front().ms) continue;  // clearly slower: no need to look closer
    const int repetitions =
        std::clamp(static_cast<int>(kSampleMs / std::max(first, 1e-4f)), 1, kMaxRepetitions);
    float best = first;
    for (int i = 0; i < (first > kLongMs ? 1 : kSamples); ++i) {
      best = std::min(best, sample(candidate.algo, repetitions));
    }
    const TimedAlgo entry{candidate.algo, best, repetitions};
    timed.insert(std::ranges::upper_bound(timed, best, {}, &TimedAlgo::ms), entry);
  }
  if (timed.empty()) lt().check(last, ("gemm " + key.to_string() + ": every proposed algorithm").c_str());

  // Clocks drop while the GPU is busy, so the first algorithms tried look better than they are. Close ones are timed
  // again in turns.
  size_t close = 1;
  while (close < std::min(timed.size(), kFinalists) && timed[close].ms <= kClose * timed.front().ms) ++close;
  const auto finalists = std::span(timed).first(close);
  if (close > 1) {
    for (TimedAlgo& entry : finalists) entry.ms = 0;
    for (int round = 0; round < kFinalRounds; ++round) {
      for (TimedAlgo& entry : finalists) entry.ms += sample(entry.algo, entry.repetitions) / kFinalRounds;
    }
    std::ranges::stable_sort(finalists, {}, &TimedAlgo::ms);
  }
  plan.ms = timed.front().ms;
  std::vector<Algo> algos;
  for (const TimedAlgo& entry : timed) algos.push_back(entry.algo);
  return algos;
}

std::optional<GemmPlanner::Algo> GemmPlanner::first_right(const GemmKey& key, const std::vector<Algo>& algos,
                                                          void* workspace, int64_t workspace_bytes,
                                                          bool& whole) {
  GemmKey checked = key;
  std::unique_ptr<GemmCheck> check = GemmCheck::make(checked, stream_);
  for (const int64_t lines : kCheckedLines) {
    if (check) break;
    checked.m = std::min(key.m, lines);
    checked.n = std::min(key.n, lines);
    if (!key.transpose_a) checked.lda = checked.m;
    if (key.transpose_b) checked.ldb = checked.n;
    checked.ldc = checked.m;
    check = GemmCheck::make(checked, stream_);
  }
  whole = check && checked == key;
  if (!check) {
    log_warning("[gemm] {}: no memory free to check the algorithms; one that splits no sum is used",
                key.to_string());
    const auto unsplit = std::ranges::find_if(algos, [](const Algo& algo) { return split_k(algo) <= 1; });
    return unsplit == algos.end() ? std::nullopt : std::optional(*unsplit);
  }
  const std::unique_ptr<Plan> plan = describe(checked);
  for (const Algo& algo : algos) {
    check->prepare();
    if (launch(checked, *plan, algo, check->call(), check->call().c, workspace, workspace_bytes) !=
        CUBLAS_STATUS_SUCCESS)
      continue;
    const int64_t wrong = check->wrong_elements();
    if (wrong == 0) return algo;
    log_warning("[gemm] {}: {} computes {} of {} elements wrong; it is not used", key.to_string(),
                describe_algo(algo), wrong, checked.m * checked.n);
  }
  return std::nullopt;
}

bool GemmPlanner::choose(const GemmKey& key, Plan& plan, const GemmCall& call, void* workspace,
                         int64_t workspace_bytes) {
  std::vector<Algo> algos;
  if (tune_) algos = by_speed(key, plan, call, workspace, workspace_bytes);
  const bool timed = !algos.empty();
  if (!timed) {
    for (const auto& candidate : plan.candidates) algos.push_back(candidate.algo);
  }
  bool whole = false;
  const std::optional<Algo> right = first_right(key, algos, workspace, workspace_bytes, whole);
  if (!right) return false;
  plan.algo = *right;
  if (timed && whole) cache_.add(key.to_string(), to_hex(plan.algo), plan.ms);
  return true;
}

void GemmPlanner::run(const GemmKey& key, const GemmCall& call, void* workspace, int64_t workspace_bytes) {
  Plan& plan = find(key, workspace_bytes);
  const auto run_by = [&](const Algo& algo) {
    return launch(key, plan, algo, call, call.c, workspace, workspace_bytes);
  };
  cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
  if (plan.chosen) {
    status = run_by(plan.algo);
    if (status == CUBLAS_STATUS_SUCCESS) return;
    // A choice from an earlier run, perhaps with another driver, is followed by other candidates.
    if (plan.candidates.empty()) lt().check(status, ("gemm " + key.to_string()).c_str());
    log_warning("[gemm] {}: the cached algorithm does not run; another one is chosen", key.to_string());
    plan.chosen = false;
  }
  require(!plan.candidates.empty(), "[gemm] {}: cuBLASLt has no algorithm for this product", key.to_string());
  if (is_capturing(stream_)) {
    // Nothing can be checked now: the first proposal that splits no sum and that the library can run.
    for (const auto& candidate : plan.candidates) {
      if (split_k(candidate.algo) > 1) continue;
      plan.algo = candidate.algo;
      status = run_by(plan.algo);
      if (status == CUBLAS_STATUS_SUCCESS) break;
    }
  } else {
    require(choose(key, plan, call, workspace, workspace_bytes),
            "[gemm] {}: no algorithm of cuBLASLt {} computes this product without an error", key.to_string(),
            lt().GetVersion());
    status = run_by(plan.algo);
  }
  if (status != CUBLAS_STATUS_SUCCESS) lt().check(status, ("gemm " + key.to_string()).c_str());
  plan.chosen = true;
  plan.candidates = {};
}

}  // namespace octet
