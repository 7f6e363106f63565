#include "backend/cuda/graph_cache.h"

#include <algorithm>

#include "base/log.h"

namespace octet {

void GraphCache::run(const std::string& signature, const std::function<void()>& work) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.signature == signature; });
  if (found == entries_.end()) {
    work();
    ++counts_.plain;
    entries_.push_front({.signature = signature, .graph = nullptr});
    if (entries_.size() > kMost) entries_.pop_back();
    return;
  }
  entries_.splice(entries_.begin(), entries_, found);
  Entry& entry = entries_.front();
  if (!entry.graph && entry.recordable) {
    entry.graph = record(work);
    entry.recordable = entry.graph != nullptr;
    counts_.recorded += entry.recordable;
  }
  if (!entry.graph) {
    ++counts_.plain;
    return work();
  }
  cuda_check(cudaGraphLaunch(entry.graph.get(), stream_), "cuda graph");
  ++counts_.replayed;
}

// Nothing runs while work is recorded. So work that could not be recorded can simply be run.
GraphCache::Executable GraphCache::record(const std::function<void()>& work) {
  struct DestroyGraph {
    void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
  };
  std::string failure;
  cuda_check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cuda graph");
  try {
    work();
  } catch (const std::exception& error) {  // whatever it is, the recording must end
    failure = error.what();
  }
  cudaGraph_t captured = nullptr;
  cudaError_t status = cudaStreamEndCapture(stream_, &captured);
  const std::unique_ptr<CUgraph_st, DestroyGraph> graph(captured);
  cudaGraphExec_t executable = nullptr;
  if (failure.empty() && status == cudaSuccess) status = cudaGraphInstantiate(&executable, graph.get(), 0);
  if (failure.empty() && status == cudaSuccess) return Executable(executable);
  cudaGetLastError();  // a refused recording leaves nothing behind
  log_info("CUDA graphs are not used: {}", failure.empty() ? cudaGetErrorString(status) : failure);
  return nullptr;
}

}  // namespace octet
