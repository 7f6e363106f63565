#ifdef OCTET_WITH_CUDNN

#include "backend/cuda/attention_cudnn_plan.h"

#include <cudnn_frontend.h>

#include <algorithm>
#include <chrono>

#include "backend/cuda/cuda_check.h"
#include "base/checked.h"

namespace octet {
namespace {

namespace fe = cudnn_frontend;
using GraphTensor = std::shared_ptr<fe::graph::Tensor_attributes>;

constexpr double kBuildSeconds = 4;  // after which no further proposal is built
constexpr int kSamples = 3;
constexpr float kSampleMs = 1.0f;  // launches are repeated until a sample takes about this long
constexpr int kMaxRepetitions = 16;

// Makes the tensors of a graph.
class GraphBuilder {
 public:
  // Heads of D elements in rows of `width`; starts of the documents where they are packed.
  struct Place {
    int64_t heads, width;
    GraphTensor starts;
  };

  GraphBuilder(fe::graph::Graph& graph, const CudnnShape& shape) : graph_(graph), shape_(shape) {
    graph.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const int64_t qkv_width = (shape.heads + 2 * shape.kv_heads) * shape.depth;
    q = {shape.heads, qkv_width, starts("starts_q", CudnnTensor::StartsQ)};
    k = {shape.kv_heads, qkv_width, starts("starts_k", CudnnTensor::StartsK)};
    v = {shape.kv_heads, qkv_width, starts("starts_v", CudnnTensor::StartsV)};
    o = {shape.heads, shape.heads * shape.depth, starts("starts_o", CudnnTensor::StartsO)};
    stats_starts_ = starts("starts_stats", CudnnTensor::StartsStats);
  }

  Place q, k, v, o;

  GraphTensor input(const char* name, CudnnTensor id, const Place& place) {
    fe::graph::Tensor_attributes tensor;
    lay_out(tensor.set_name(name), id, place);
    return graph_.tensor(tensor);
  }
  void output(const GraphTensor& tensor, CudnnTensor id, const Place& place) {
    lay_out(tensor->set_output(true), id, place);
  }
  // Dense: (B, H, S), because not every engine is known to support other strides. Packed: (N, H), the only order for
  // which the frontend computes the size of what backward keeps per row.
  void lay_out_stats(fe::graph::Tensor_attributes& tensor) {
    const int64_t heads = shape_.heads, length = shape_.length;
    tensor.set_uid(static_cast<int64_t>(CudnnTensor::Stats))
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({shape_.documents, heads, length, 1});
    if (shape_.packed) {
      tensor.set_stride({heads * length, 1, heads, 1}).set_ragged_offset(stats_starts_);
    } else {
      tensor.set_stride({heads * length, length, 1, 1});
    }
  }
  GraphTensor lengths(const char* name, CudnnTensor id) {
    return graph_.tensor(column(name, id, shape_.documents, fe::DataType_t::INT32));
  }
  GraphTensor starts(const char* name, CudnnTensor id) {
    if (!shape_.packed) return nullptr;
    return graph_.tensor(column(name, id, shape_.documents + 1, fe::DataType_t::INT64));
  }

 private:
  static fe::graph::Tensor_attributes column(const char* name, CudnnTensor id, int64_t count,
                                             fe::DataType_t type) {
    fe::graph::Tensor_attributes tensor;
    tensor.set_name(name)
        .set_uid(static_cast<int64_t>(id))
        .set_data_type(type)
        .set_dim({count, 1, 1, 1})
        .set_stride({1, 1, 1, 1});
    return tensor;
  }
  void lay_out(fe::graph::Tensor_attributes& tensor, CudnnTensor id, const Place& place) {
    tensor.set_uid(static_cast<int64_t>(id))
        .set_dim({shape_.documents, place.heads, shape_.length, shape_.depth})
        .set_stride({shape_.length * place.width, shape_.depth, place.width, 1});
    if (place.starts) tensor.set_ragged_offset(place.starts);
  }

  fe::graph::Graph& graph_;
  const CudnnShape& shape_;
  GraphTensor stats_starts_;
};

// Options that forward and backward have in common.
template <class Options>
void set_mask(Options& options, GraphBuilder& builder, const CudnnShape& shape) {
  options.set_attn_scale(shape.scale)
      .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
      .set_diagonal_band_right_bound(0);
  // Like octet's window, the left bound includes the query itself: keys with key + bound > query are seen.
  if (shape.window > 0) options.set_diagonal_band_left_bound(narrow<int>(shape.window));
  if (!shape.packed) return;
  options.set_padding_mask(true)
      .set_seq_len_q(builder.lengths("lengths_q", CudnnTensor::LengthsQ))
      .set_seq_len_kv(builder.lengths("lengths_kv", CudnnTensor::LengthsKv));
}

void describe_forward(fe::graph::Graph& graph, const CudnnShape& shape) {
  GraphBuilder builder(graph, shape);
  const GraphTensor q = builder.input("q", CudnnTensor::Q, builder.q);
  const GraphTensor k = builder.input("k", CudnnTensor::K, builder.k);
  const GraphTensor v = builder.input("v", CudnnTensor::V, builder.v);
  fe::graph::SDPA_attributes options;
  options.set_name("attention").set_generate_stats(true);
  set_mask(options, builder, shape);
  const auto results = graph.sdpa(q, k, v, options);
  builder.output(results[0], CudnnTensor::O, builder.o);
  builder.lay_out_stats(results[1]->set_output(true));
}

void describe_backward(fe::graph::Graph& graph, const CudnnShape& shape, bool deterministic) {
  GraphBuilder builder(graph, shape);
  if (shape.kv_apart()) builder.k.width = builder.v.width = shape.kv_heads * shape.depth;
  const GraphTensor q = builder.input("q", CudnnTensor::Q, builder.q);
  const GraphTensor k = builder.input("k", CudnnTensor::K, builder.k);
  const GraphTensor v = builder.input("v", CudnnTensor::V, builder.v);
  const GraphTensor o = builder.input("o", CudnnTensor::O, builder.o);
  const GraphTensor d_o = builder.input("do", CudnnTensor::DO, builder.o);
  fe::graph::Tensor_attributes kept;
  builder.lay_out_stats(kept.set_name("stats"));
  const GraphTensor stats = graph.tensor(kept);
  fe::graph::SDPA_backward_attributes options;
  options.set_name("attention_backward");
  set_mask(options, builder, shape);
  if (shape.packed) {
    // Workspace for the actual tokens, not as if all documents were as long as the longest.
    options.set_max_total_seq_len_q(shape.tokens).set_max_total_seq_len_kv(shape.tokens);
  }
  if (deterministic) options.set_deterministic_algorithm(true);
  const auto results = graph.sdpa_backward(q, k, v, o, d_o, stats, options);
  builder.output(results[0], CudnnTensor::DQ, builder.q);
  builder.output(results[1], CudnnTensor::DK, builder.k);
  builder.output(results[2], CudnnTensor::DV, builder.v);
}

}  // namespace

struct CudnnPlan::Graph {
  fe::graph::Graph graph;
};

std::string CudnnShape::to_string() const {
  return fmt::format("{}{} x {} tokens, {}/{} heads of {}{}", packed ? "packed, at most " : "", documents,
                     length, heads, kv_heads, depth, window_text());
}

CudnnPlan::CudnnPlan(const CudnnShape& shape, CudnnPass pass, bool deterministic)
    : shape_(shape), pass_(pass), deterministic_(deterministic), graph_(std::make_unique<Graph>()) {}

CudnnPlan::~CudnnPlan() = default;

std::string CudnnPlan::tuning_key() const {
  return fmt::format("attention {} {}x{} heads {}/{} of {}{}",
                     pass_ == CudnnPass::Forward ? "forward" : "backward",
                     shape_.packed ? "packed" : std::to_string(shape_.documents), shape_.length, shape_.heads,
                     shape_.kv_heads, shape_.depth, shape_.window_text());
}

std::string CudnnPlan::describe(cudnnHandle_t handle) {
  fe::graph::Graph& graph = graph_->graph;
  if (pass_ == CudnnPass::Forward) {
    describe_forward(graph, shape_);
  } else {
    describe_backward(graph, shape_, deterministic_);
  }
  auto status = graph.validate();
  if (status.is_good()) status = graph.build_operation_graph(handle);
  if (status.is_bad()) return status.get_message();
  status = graph.create_execution_plans({fe::HeurMode_t::A});
  likely_ = status.is_good() ? graph.get_execution_plan_count() : 0;
  const auto fallback = graph.create_execution_plans({fe::HeurMode_t::FALLBACK});
  return status.is_good() || fallback.is_good() ? "" : status.get_message();
}

std::string CudnnPlan::add_candidate(int64_t index) {
  fe::graph::Graph& graph = graph_->graph;
  Candidate candidate{.index = index};
  auto status = graph.get_plan_name_at_index(index, candidate.name);
  for (const Candidate& other : candidates_) {
    if (other.name == candidate.name) return "proposed twice";
  }
  if (status.is_good()) status = graph.build_plan_at_index(index);
  if (status.is_good()) status = graph.get_workspace_size_plan_at_index(index, candidate.workspace);
  if (status.is_bad()) return status.get_message();
  candidate.workspace = round_up(candidate.workspace, 256);
  candidates_.push_back(candidate);
  return "";
}

std::string CudnnPlan::build(cudnnHandle_t handle, const std::string& wanted, int most) {
  if (std::string reason = describe(handle); !reason.empty()) return reason;
  const int64_t proposals = graph_->graph.get_execution_plan_count();
  for (int64_t i = 0; i < proposals && !wanted.empty(); ++i) {
    std::string name;
    if (graph_->graph.get_plan_name_at_index(i, name).is_good() && name == wanted &&
        add_candidate(i).empty()) {
      return "";
    }
  }
  const auto start = std::chrono::steady_clock::now();
  std::string first_reason;
  for (int64_t i = 0; i < proposals && static_cast<int>(candidates_.size()) < most; ++i) {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (!candidates_.empty() && (i >= likely_ || spent.count() > kBuildSeconds)) break;
    const std::string reason = add_candidate(i);
    if (first_reason.empty()) first_reason = reason;
  }
  if (!candidates_.empty()) return "";
  return fmt::format("none of {} proposals can be built: {}", proposals, first_reason);
}

int64_t CudnnPlan::deciding_bytes() const {
  int64_t bytes = 0;
  for (const Candidate& candidate : candidates_) bytes = std::max(bytes, candidate.workspace);
  return bytes;
}

void CudnnPlan::decide(cudnnHandle_t handle, cudaStream_t stream, const CudnnTensors& tensors,
                       void* workspace, int64_t workspace_bytes) {
  CudaEvent begin, end;
  const auto sample = [&](const Candidate& candidate, int repetitions) {
    cuda_check(cudaEventRecord(begin.get(), stream), "attention timing");
    for (int i = 0; i < repetitions; ++i) execute(handle, candidate, tensors, workspace);
    cuda_check(cudaEventRecord(end.get(), stream), "attention timing");
    cuda_check(cudaEventSynchronize(end.get()), "attention timing");
    float ms = 0;
    cuda_check(cudaEventElapsedTime(&ms, begin.get(), end.get()), "attention timing");
    return ms / static_cast<float>(repetitions);
  };
  std::string reason;
  std::vector<Candidate> timed;
  for (Candidate& candidate : candidates_) {
    if (candidate.workspace > workspace_bytes) continue;
    // The first run also loads the kernels.
    const std::string failure = execute(handle, candidate, tensors, workspace);
    if (!failure.empty()) {
      reason = failure;
      continue;
    }
    candidate.ms = sample(candidate, 1);
    const int repetitions =
        std::clamp(static_cast<int>(kSampleMs / std::max(candidate.ms, 1e-4f)), 1, kMaxRepetitions);
    for (int i = 0; i < kSamples; ++i) candidate.ms = std::min(candidate.ms, sample(candidate, repetitions));
    timed.push_back(candidate);
  }
  require(!timed.empty(), "[cuda] attention: none of cuDNN's plans for {} runs: {}", shape_.to_string(),
          reason);
  candidates_ = {*std::min_element(timed.begin(), timed.end(),
                                   [](const Candidate& a, const Candidate& b) { return a.ms < b.ms; })};
}

std::string CudnnPlan::execute(cudnnHandle_t handle, const Candidate& candidate, const CudnnTensors& tensors,
                               void* workspace) {
  std::unordered_map<int64_t, void*> by_number;  // the frontend adds its own
  for (const auto& [tensor, memory] : tensors) by_number[static_cast<int64_t>(tensor)] = memory;
  auto status = graph_->graph.execute_plan_at_index(handle, by_number, workspace, candidate.index);
  return status.is_good() ? "" : status.get_message();
}

void CudnnPlan::run(cudnnHandle_t handle, const CudnnTensors& tensors, void* workspace) {
  const std::string failure = execute(handle, candidates_.front(), tensors, workspace);
  require(failure.empty(), "[cuda] attention: cuDNN says {}", failure);
}

}  // namespace octet

#endif  // OCTET_WITH_CUDNN
