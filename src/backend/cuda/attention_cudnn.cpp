#include "backend/cuda/attention.h"

#ifndef OCTET_WITH_CUDNN

namespace octet {

std::unique_ptr<AttentionEngine> make_cudnn_attention(CudaBackend&, std::string& reason) {
  reason = "the program was built without cuDNN (see OCTET_CUDNN_FRONTEND)";
  return nullptr;
}

}  // namespace octet

#else

#include <cudnn_frontend.h>

#include <map>
#include <unordered_map>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cudnn_library.h"
#include "base/log.h"

namespace octet {
namespace {

namespace fe = cudnn_frontend;
using GraphTensor = std::shared_ptr<fe::graph::Tensor_attributes>;

// Names of the tensors of a graph.
enum Id : int64_t { kQ = 1, kK, kV, kO, kStats, kDO, kDQ, kDK, kDV };

struct HandleDelete {
  void operator()(cudnnHandle_t handle) const { cudnnDestroy(handle); }
};
using Handle = std::unique_ptr<std::remove_pointer_t<cudnnHandle_t>, HandleDelete>;

// B documents of S tokens.
struct PlanKey {
  int64_t b, s, heads, kv_heads, depth;
  float scale;
  auto operator<=>(const PlanKey&) const = default;
};

struct Plan {
  fe::graph::Graph graph;
  int64_t workspace = 0;
};

struct PlanPair {
  Plan forward, backward;
  std::string reason;  // why there is no plan
};

// Where the tensors of a packed (N, (H + 2K) * D) buffer lie, and others of (N, H * D).
class GraphBuilder {
 public:
  GraphBuilder(fe::graph::Graph& graph, const PlanKey& key) : graph_(graph), key_(key) {
    graph.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }
  GraphTensor packed_input(const char* name, Id id, int64_t heads) {
    return input(name, id, heads, qkv_width());
  }
  GraphTensor input(const char* name, Id id, int64_t heads, int64_t width) {
    return graph_.tensor(fe::graph::Tensor_attributes()
                             .set_name(name)
                             .set_uid(id)
                             .set_dim({key_.b, heads, key_.s, key_.depth})
                             .set_stride({key_.s * width, key_.depth, width, 1}));
  }
  void output(const GraphTensor& tensor, Id id, int64_t heads, int64_t width) {
    tensor->set_output(true)
        .set_uid(id)
        .set_dim({key_.b, heads, key_.s, key_.depth})
        .set_stride({key_.s * width, key_.depth, width, 1});
  }
  // Dense (B, H, S, 1): the strides of an (H, N) layout are not known to be honoured by every cuDNN engine.
  std::vector<int64_t> stats_dim() const { return {key_.b, key_.heads, key_.s, 1}; }
  std::vector<int64_t> stats_stride() const { return {key_.heads * key_.s, key_.s, 1, 1}; }
  int64_t qkv_width() const { return (key_.heads + 2 * key_.kv_heads) * key_.depth; }
  int64_t out_width() const { return key_.heads * key_.depth; }

 private:
  fe::graph::Graph& graph_;
  const PlanKey& key_;
};

void describe_forward(fe::graph::Graph& graph, const PlanKey& key) {
  GraphBuilder builder(graph, key);
  const GraphTensor q = builder.packed_input("q", kQ, key.heads);
  const GraphTensor k = builder.packed_input("k", kK, key.kv_heads);
  const GraphTensor v = builder.packed_input("v", kV, key.kv_heads);
  auto options = fe::graph::SDPA_attributes()
                     .set_name("attention")
                     .set_generate_stats(true)
                     .set_attn_scale(key.scale)
                     .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                     .set_diagonal_band_right_bound(0);
  const auto results = graph.sdpa(q, k, v, options);
  builder.output(results[0], kO, key.heads, builder.out_width());
  results[1]
      ->set_output(true)
      .set_uid(kStats)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim(builder.stats_dim())
      .set_stride(builder.stats_stride());
}

void describe_backward(fe::graph::Graph& graph, const PlanKey& key, bool deterministic) {
  GraphBuilder builder(graph, key);
  const GraphTensor q = builder.packed_input("q", kQ, key.heads);
  const GraphTensor k = builder.packed_input("k", kK, key.kv_heads);
  const GraphTensor v = builder.packed_input("v", kV, key.kv_heads);
  const GraphTensor o = builder.input("o", kO, key.heads, builder.out_width());
  const GraphTensor d = builder.input("do", kDO, key.heads, builder.out_width());
  const GraphTensor stats = graph.tensor(fe::graph::Tensor_attributes()
                                             .set_name("stats")
                                             .set_uid(kStats)
                                             .set_data_type(fe::DataType_t::FLOAT)
                                             .set_dim(builder.stats_dim())
                                             .set_stride(builder.stats_stride()));
  auto options = fe::graph::SDPA_backward_attributes()
                     .set_name("attention_backward")
                     .set_attn_scale(key.scale)
                     .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                     .set_diagonal_band_right_bound(0);
  if (deterministic) options.set_deterministic_algorithm(true);
  const auto results = graph.sdpa_backward(q, k, v, o, d, stats, options);
  builder.output(results[0], kDQ, key.heads, builder.qkv_width());
  builder.output(results[1], kDK, key.kv_heads, builder.qkv_width());
  builder.output(results[2], kDV, key.kv_heads, builder.qkv_width());
}

class CudnnAttention final : public AttentionEngine {
 public:
  explicit CudnnAttention(CudaBackend& backend) : backend_(backend) {
    cudnnHandle_t handle = nullptr;
    check_status(cudnnCreate(&handle), "cudnnCreate");
    handle_.reset(handle);
    check_status(cudnnSetStream(handle, backend.stream()), "cudnnSetStream");
  }

  std::string refuses(const AttentionCase& attention) override {
    if (attention.dtype != DType::BF16) return "it is used for bf16 only";
    if (!attention.equal_documents()) return "the documents have different lengths";
    if (attention.shape.head_dim % 8 != 0) {
      return fmt::format("heads of width {} are not a multiple of 8", attention.shape.head_dim);
    }
    // Backward reads outside its tensors when replayed as a CUDA graph; fixed in 9.15.1.
    if (attention.documents.max_length % 128 != 0 && cudnn_version() < 91501) {
      return fmt::format("cuDNN {} needs lengths that are multiples of 128, not {}", cudnn_version(),
                         attention.documents.max_length);
    }
    const PlanKey key = key_of(attention);
    if (!plans_.contains(key) && plans_.size() >= kMostPlans)
      return "too many different shapes have been seen";
    return plans(key).reason;
  }

  void forward(const AttentionCase& attention, const AttentionForward& call) override {
    std::unordered_map<int64_t, void*> tensors = packed(attention, const_cast<void*>(call.qkv), kQ, kK, kV);
    tensors[kO] = call.out;
    tensors[kStats] = call.lse;
    execute(plans(key_of(attention)).forward, tensors, "attention_forward");
  }

  void backward(const AttentionCase& attention, const AttentionBackward& call) override {
    std::unordered_map<int64_t, void*> tensors = packed(attention, const_cast<void*>(call.qkv), kQ, kK, kV);
    tensors.merge(packed(attention, call.dqkv, kDQ, kDK, kDV));
    tensors[kO] = const_cast<void*>(call.out);
    tensors[kDO] = const_cast<void*>(call.dout);
    tensors[kStats] = const_cast<float*>(call.lse);
    execute(plans(key_of(attention)).backward, tensors, "attention_backward");
  }

 private:
  // Plans take a second or more to make: a run that keeps changing its shape is left to the own kernels.
  static constexpr size_t kMostPlans = 64;

  static void check_status(cudnnStatus_t status, const char* what) {
    require(status == CUDNN_STATUS_SUCCESS, "[cuda] {}: cuDNN says {}", what, cudnnGetErrorString(status));
  }

  static PlanKey key_of(const AttentionCase& attention) {
    return {attention.documents.count, attention.documents.max_length, attention.shape.heads,
            attention.shape.kv_heads,  attention.shape.head_dim,       attention.shape.scale};
  }

  // Pointers to the three parts of a (N, (H + 2K) * D) buffer.
  static std::unordered_map<int64_t, void*> packed(const AttentionCase& attention, void* buffer, Id q, Id k,
                                                   Id v) {
    auto* start = static_cast<uint16_t*>(buffer);
    const int64_t depth = attention.shape.head_dim;
    uint16_t* keys = start + attention.shape.heads * depth;
    return {{q, start}, {k, keys}, {v, keys + attention.shape.kv_heads * depth}};
  }

  PlanPair& plans(const PlanKey& key) {
    const auto [entry, added] = plans_.try_emplace(key);
    PlanPair& pair = entry->second;
    if (!added) return pair;
    // Both or none: the statistics of one engine mean nothing to the other.
    try {
      describe_forward(pair.forward.graph, key);
      pair.reason = build(pair.forward);
      if (pair.reason.empty()) {
        describe_backward(pair.backward.graph, key, backend_.options().deterministic);
        pair.reason = build(pair.backward);
      }
    } catch (const std::exception& error) {
      pair.reason = error.what();
    }
    if (!pair.reason.empty()) {
      pair.reason =
          fmt::format("cuDNN {} has no plan for {} x {} tokens, {}/{} heads of {}: {}", cudnn_version(),
                      key.b, key.s, key.heads, key.kv_heads, key.depth, pair.reason);
      log_warning("[cuda] attention: own kernels are used: {}", pair.reason);
    }
    return pair;
  }

  // Empty, or why cuDNN has no plan.
  std::string build(Plan& plan) {
    auto status = plan.graph.build(handle_.get(), {fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
    if (status.is_bad()) return status.get_message();
    auto size_status = plan.graph.get_workspace_size(plan.workspace);
    if (size_status.is_bad()) return size_status.get_message();
    plan.workspace = round_up(plan.workspace, 256);
    workspace(plan, "attention");  // now, so that running the op allocates nothing
    return "";
  }

  void execute(Plan& plan, std::unordered_map<int64_t, void*>& tensors, const char* op) {
    auto status = plan.graph.execute(handle_.get(), tensors, workspace(plan, op));
    require(status.is_good(), "[cuda] {}: cuDNN says {}", op, status.get_message());
  }

  // From the backend's workspace or, where that is too small, memory of the engine's own.
  void* workspace(const Plan& plan, const char* op) {
    Scratch scratch = backend_.scratch(op);
    if (plan.workspace <= scratch.left()) return scratch.take<std::byte>(plan.workspace);
    if (plan.workspace > own_bytes_) {
      backend_.synchronize();
      own_.reset();
      own_bytes_ = 0;
      own_ = allocate_device(static_cast<size_t>(plan.workspace), "attention workspace");
      own_bytes_ = plan.workspace;
    }
    return own_.get();
  }

  CudaBackend& backend_;
  Handle handle_;
  std::map<PlanKey, PlanPair> plans_;
  DeviceMemory own_;  // for plans that need more than the workspace has
  int64_t own_bytes_ = 0;
};

}  // namespace

std::unique_ptr<AttentionEngine> make_cudnn_attention(CudaBackend& backend, std::string& reason) {
  reason = open_cudnn();
  if (!reason.empty()) {
    log_warning("[cuda] attention: own kernels are used: {}", reason);
    return nullptr;
  }
  return std::make_unique<CudnnAttention>(backend);
}

}  // namespace octet

#endif  // OCTET_WITH_CUDNN
