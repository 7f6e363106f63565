#include "backend/cuda/attention.h"

#ifndef OCTET_WITH_CUDNN

namespace octet {

std::unique_ptr<AttentionEngine> make_cudnn_attention(CudaOps&, std::string& reason) {
  reason = "the program was built without cuDNN (see OCTET_CUDNN_FRONTEND)";
  return nullptr;
}

}  // namespace octet

#else

#include <algorithm>
#include <bit>
#include <map>

#include "backend/cuda/attention_cudnn_memory.h"
#include "backend/cuda/attention_cudnn_plan.h"
#include "backend/cuda/attention_ragged.h"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/cudnn_library.h"
#include "backend/cuda/tuning_cache.h"
#include "base/log.h"

namespace octet {
namespace {

struct HandleDelete {
  void operator()(cudnnHandle_t handle) const { cudnnDestroy(handle); }
};
using Handle = std::unique_ptr<std::remove_pointer_t<cudnnHandle_t>, HandleDelete>;

constexpr size_t kFixedGraphReplay = 91501;  // see dense()
constexpr size_t kPackedVersion = 91002;     // earlier ones have known errors with packed documents
constexpr int64_t kLeastPacked = 1024;  // tokens; below this, making a plan takes more time than it saves
constexpr int64_t kTailRows = 128;      // that cuDNN reads after the last token
// cuDNN starts blocks as if all documents were as long as the longest. If so few of these places hold tokens,
// starting the blocks costs more than using octet's own kernels.
constexpr int64_t kMostPadding = 16;
// Free memory depends on other programs and on the shapes seen before. A resumed run must not depend on either.
constexpr const char* kNotPlanned = "deterministic runs use no more workspace than was planned";

struct PlanPair {
  PlanPair(const CudnnShape& shape, bool deterministic)
      : forward(shape, CudnnPass::Forward, deterministic),
        backward(shape, CudnnPass::Backward, deterministic) {}
  CudnnPlan forward, backward;
  std::string reason;  // why there is no plan
};

class CudnnAttention final : public AttentionEngine {
 public:
  explicit CudnnAttention(CudaOps& ops)
      : ops_(ops),
        memory_(ops),
        cache_(ops.options().tuning_cache, ops.gpu_name(), "cudnn", std::to_string(cudnn_version())) {
    cudnnHandle_t handle = nullptr;
    check_status(cudnnCreate(&handle), "cudnnCreate");
    handle_.reset(handle);
    check_status(cudnnSetStream(handle, ops.stream()), "cudnnSetStream");
  }

  std::string refuses(const AttentionCase& attention) override {
    if (attention.dtype != DType::BF16) return "cuDNN is used only for bf16";
    if (attention.documents.count == 0) return "there are no documents";
    if (attention.shape.head_dim % 8 != 0) {
      return fmt::format("heads of width {} are not a multiple of 8", attention.shape.head_dim);
    }
    const bool deterministic = ops_.options().deterministic;
    if (!dense(attention)) {
      if (deterministic) return kNotPlanned;
      if (cudnn_version() < kPackedVersion) {
        return fmt::format("packed documents need cuDNN {}, this is {}", kPackedVersion, cudnn_version());
      }
      if (attention.tokens < kLeastPacked) {
        return fmt::format("{} tokens of packed documents are not worth a plan", attention.tokens);
      }
      if (attention.shape.head_dim % 16 != 0) {
        return fmt::format("heads of width {} are not a multiple of 16, which packed documents need",
                           attention.shape.head_dim);
      }
    }
    const CudnnShape shape = shape_of(attention);
    if (shape.packed && shape.documents * shape.length > kMostPadding * shape.tokens) {
      return fmt::format("{} documents of up to {} tokens are too uneven", attention.documents.count,
                         attention.documents.max_length);
    }
    if (!deterministic && !plans_.contains(shape) && plans_.size() >= kMostPlans)
      return "too many different shapes have been seen";
    return plans(shape).reason;
  }

  void forward(const AttentionCase& attention, const AttentionForward& call) override {
    const CudnnShape shape = shape_of(attention);
    CudnnPlan& plan = plans(shape).forward;
    memory_.begin_forward();
    Scratch scratch = ops_.scratch("attention_forward");
    CudnnTensors tensors = {{CudnnTensor::O, call.out}, {CudnnTensor::Stats, call.lse}};
    add_packed(tensors, attention, const_cast<void*>(call.qkv), CudnnTensor::Q, CudnnTensor::K,
               CudnnTensor::V);
    if (shape.packed) add_documents(tensors, scratch, attention, call.out, attention.shape.out_width());
    run(plan, tensors, scratch);
  }

  void backward(const AttentionCase& attention, const AttentionBackward& call) override {
    const CudnnShape shape = shape_of(attention);
    CudnnPlan& plan = plans(shape).backward;
    Scratch scratch = ops_.scratch("attention_backward");
    CudnnTensors tensors = {{CudnnTensor::O, const_cast<void*>(call.out)},
                            {CudnnTensor::DO, const_cast<void*>(call.dout)},
                            {CudnnTensor::Stats, const_cast<float*>(call.lse)}};
    add_packed(tensors, attention, const_cast<void*>(call.qkv), CudnnTensor::Q, CudnnTensor::K,
               CudnnTensor::V);
    add_packed(tensors, attention, call.dqkv, CudnnTensor::DQ, CudnnTensor::DK, CudnnTensor::DV);
    if (!shape.packed) return run(plan, tensors, scratch);

    const RaggedTables tables =
        add_documents(tensors, scratch, attention, call.dqkv, attention.shape.qkv_width());
    std::byte* memory = memory_.take_clean(&plan, packed_backward_bytes(shape, plan));
    const KvRows rows{memory, memory + kv_bytes(shape)};
    const KvRows gradients{memory + 2 * kv_bytes(shape), memory + 3 * kv_bytes(shape)};
    memory += 4 * kv_bytes(shape);
    if (shape.kv_apart()) {
      take_kv_rows(ops_, attention, rows, call.qkv);
      tensors[CudnnTensor::K] = rows.k;
      tensors[CudnnTensor::V] = rows.v;
      tensors[CudnnTensor::DK] = gradients.k;
      tensors[CudnnTensor::DV] = gradients.v;
      tensors[CudnnTensor::StartsK] = tensors[CudnnTensor::StartsV] = tables.kv_starts;
    }
    if (undecided(plan)) decide(plan, tensors, memory, plan.deciding_bytes());
    plan.run(handle_.get(), tensors, memory);
    if (shape.kv_apart()) put_kv_rows(ops_, attention, call.dqkv, gradients);
  }

 private:
  // A plan takes a second or more to make. So a run with ever new shapes uses octet's own kernels.
  static constexpr size_t kMostPlans = 64;
  static constexpr int kMostCandidates = 3;
  static constexpr int64_t kMostWorkspace = int64_t{4}
                                            << 30;  // of packed documents; the model needs the rest

  static void check_status(cudnnStatus_t status, const char* what) {
    require(status == CUDNN_STATUS_SUCCESS, "[cuda] {}: cuDNN says {}", what, cudnnGetErrorString(status));
  }

  // Whether cuDNN may be told that all documents have one length. For other lengths than these, backward reads
  // outside its tensors when replayed as a CUDA graph, unless they are passed as packed documents.
  static bool dense(const AttentionCase& attention) {
    return attention.equal_documents() &&
           (attention.documents.max_length % 128 == 0 || cudnn_version() >= kFixedGraphReplay);
  }

  // Packed documents share plans: their number and the longest length are rounded up.
  static CudnnShape shape_of(const AttentionCase& attention) {
    CudnnShape shape = {.documents = attention.documents.count,
                        .length = attention.documents.max_length,
                        .heads = attention.shape.heads,
                        .kv_heads = attention.shape.kv_heads,
                        .depth = attention.shape.head_dim,
                        .scale = attention.shape.scale,
                        .window = attention.shape.window};
    if (dense(attention)) return shape;
    const auto power_of_two = [](int64_t least, int64_t value) {
      return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(least, value))));
    };
    shape.packed = true;
    shape.documents = power_of_two(8, shape.documents);
    shape.length = power_of_two(256, shape.length);
    shape.tokens = round_up(attention.tokens, 1024) + kTailRows;
    return shape;
  }

  // The three parts of a (N, (H + 2K) * D) buffer.
  static void add_packed(CudnnTensors& tensors, const AttentionCase& attention, void* buffer, CudnnTensor q,
                         CudnnTensor k, CudnnTensor v) {
    auto* start = static_cast<uint16_t*>(buffer);
    const int64_t depth = attention.shape.head_dim;
    uint16_t* keys = start + attention.shape.heads * depth;
    tensors[q] = start;
    tensors[k] = keys;
    tensors[v] = keys + attention.shape.kv_heads * depth;
  }

  // Lengths and starts; clears the rows of `result` outside the documents.
  RaggedTables add_documents(CudnnTensors& tensors, Scratch& scratch, const AttentionCase& attention,
                             void* result, int64_t width) {
    const RaggedTables tables = take_ragged_tables(scratch, shape_of(attention).documents);
    fill_ragged_tables(ops_, tables, attention, result, width);
    tensors[CudnnTensor::LengthsQ] = tensors[CudnnTensor::LengthsKv] = tables.lengths;
    tensors[CudnnTensor::StartsQ] = tensors[CudnnTensor::StartsK] = tensors[CudnnTensor::StartsV] =
        tables.qkv_starts;
    tensors[CudnnTensor::StartsO] = tables.out_starts;
    tensors[CudnnTensor::StartsStats] = tables.stats_starts;
    return tables;
  }

  PlanPair& plans(const CudnnShape& shape) {
    const auto [entry, added] = plans_.try_emplace(shape, shape, ops_.options().deterministic);
    PlanPair& pair = entry->second;
    if (!added) return pair;
    // Both or none: one engine cannot read the statistics of the other.
    try {
      pair.reason = build(pair.forward, shape, kMostCandidates);
      // For packed documents cuDNN has only one plan; more plans would also keep their workspace.
      if (pair.reason.empty()) pair.reason = build(pair.backward, shape, shape.packed ? 1 : kMostCandidates);
      if (pair.reason.empty()) reserve(shape, pair);
    } catch (const std::exception& error) {
      pair.reason = error.what();
    }
    if (!pair.reason.empty()) {
      pair.reason =
          fmt::format("cuDNN {} has no plan for {}: {}", cudnn_version(), shape.to_string(), pair.reason);
    }
    return pair;
  }

  // Empty, or why there is no plan. The fastest of several is found by timing at the first run. Not in deterministic
  // runs, because their results must not depend on timing.
  std::string build(CudnnPlan& plan, const CudnnShape& shape, int candidates) {
    const bool tune = !ops_.options().deterministic;
    const std::string wanted = tune ? cache_.find(plan.tuning_key()).value_or("") : "";
    std::string reason = plan.build(handle_.get(), wanted, tune ? candidates : 1);
    if (reason.empty() && shape.packed && plan.workspace_bytes() > kMostWorkspace) {
      reason = fmt::format("it needs {} MiB of workspace, more than {}", plan.workspace_bytes() >> 20,
                           kMostWorkspace >> 20);
    }
    return reason;
  }

  // Reserved now, so that running the op allocates nothing.
  void reserve(const CudnnShape& shape, PlanPair& pair) {
    Scratch scratch = ops_.scratch("attention");
    if (shape.packed) take_ragged_tables(scratch, shape.documents);
    const int64_t forward = own_bytes(pair.forward, scratch);
    const int64_t backward =
        shape.packed ? packed_backward_bytes(shape, pair.backward) : own_bytes(pair.backward, scratch);
    const int64_t bytes = std::max(forward, backward);
    if (bytes > 0) reserve_own(bytes, shape.packed ? packed_capacity(shape) : bytes);
  }
  void reserve_own(int64_t bytes, int64_t capacity) {
    require(!ops_.options().deterministic, "{}", kNotPlanned);
    memory_.reserve(bytes, capacity);
  }

  void run(CudnnPlan& plan, const CudnnTensors& tensors, const Scratch& scratch) {
    if (undecided(plan)) {
      DeviceMemory more;
      int64_t bytes = plan.deciding_bytes();
      std::byte* memory = nullptr;
      if (bytes <= scratch.left()) {
        memory = Scratch(scratch).take<std::byte>(bytes);
      } else if (void* allocated = nullptr;
                 cudaMalloc(&allocated, static_cast<size_t>(bytes)) == cudaSuccess) {
        more.reset(allocated);
        memory = static_cast<std::byte*>(allocated);
      } else {
        cudaGetLastError();  // then only plans that need no more than the first are timed
        bytes = plan.workspace_bytes();
        memory = workspace(plan, scratch);
      }
      decide(plan, tensors, memory, bytes);
    }
    plan.run(handle_.get(), tensors, workspace(plan, scratch));
  }

  bool undecided(const CudnnPlan& plan) const { return !plan.decided() && !is_capturing(ops_.stream()); }

  void decide(CudnnPlan& plan, const CudnnTensors& tensors, void* memory, int64_t bytes) {
    plan.decide(handle_.get(), ops_.stream(), tensors, memory, bytes);
    cache_.add(plan.tuning_key(), plan.name(), plan.ms());
    log_info("[cuda] {}: cuDNN's plan {} takes {:.3f} ms; kept in {}", plan.tuning_key(), plan.name(),
             plan.ms(), cache_.place());
  }

  // From the workspace of the ops, or the engine's own memory if that is too small.
  std::byte* workspace(const CudnnPlan& plan, Scratch scratch) {
    const int64_t own = own_bytes(plan, scratch);
    if (own == 0) return scratch.take<std::byte>(plan.workspace_bytes());
    // Already reserved, unless the fastest plan needs more than the first, or the workspace has changed.
    reserve_own(own, own);
    return memory_.take(&plan, own);
  }
  static int64_t own_bytes(const CudnnPlan& plan, const Scratch& scratch) {
    return plan.workspace_bytes() <= scratch.left() ? 0 : plan.workspace_bytes();
  }

  static int64_t kv_bytes(const CudnnShape& shape) {
    return shape.kv_apart() ? round_up(shape.tokens * shape.kv_heads * shape.depth * 2, 256) : 0;
  }
  static int64_t packed_backward_bytes(const CudnnShape& shape, const CudnnPlan& plan) {
    return 4 * kv_bytes(shape) + plan.deciding_bytes();
  }

  // Memory for backward of packed documents, for any number and length of documents: the frontend's rows (dq in rows
  // of qkv, dk and dv of all query heads if these share keys, a sum per head; all sized as fp32) plus what cuDNN
  // adds. Reserved at once, so that a later batch with more documents allocates nothing.
  static int64_t packed_capacity(const CudnnShape& shape) {
    constexpr int64_t kCudnnPart = int64_t{32} << 20;
    const int64_t out_width = shape.heads * shape.depth,
                  qkv_width = out_width + 2 * shape.kv_heads * shape.depth;
    const int64_t row = qkv_width + (shape.kv_apart() ? 2 * out_width : 0) + shape.heads;
    return 4 * kv_bytes(shape) + shape.tokens * row * 4 + kCudnnPart;
  }

  CudaOps& ops_;
  CudnnMemory memory_;
  TuningCache cache_;  // of plan names
  Handle handle_;
  std::map<CudnnShape, PlanPair> plans_;
};

}  // namespace

std::unique_ptr<AttentionEngine> make_cudnn_attention(CudaOps& ops, std::string& reason) {
  reason = open_cudnn();
  if (!reason.empty()) return nullptr;
  try {
    return std::make_unique<CudnnAttention>(ops);
  } catch (const Error& error) {  // for example a library whose parts do not match
    reason = error.what();
    return nullptr;
  }
}

}  // namespace octet

#endif  // OCTET_WITH_CUDNN
