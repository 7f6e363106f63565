#pragma once

#include <functional>
#include <string>
#include <utility>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/graph_cache.h"
#include "backend/cuda/profiler.h"
#include "ops/device.h"

namespace octet {

// A stream with its recordings and its profiler.
class CudaQueue final : public Queue {
 public:
  explicit CudaQueue(std::string name) : name_(std::move(name)) {}
  ~CudaQueue() override {
    if (when_gone_) when_gone_(this);
  }
  const std::string& name() const { return name_; }
  void when_gone(std::function<void(CudaQueue*)> call) { when_gone_ = std::move(call); }
  cudaStream_t stream() const { return stream_.get(); }
  Profiler& profiler() { return profiler_; }
  GraphCache& graphs() { return graphs_; }
  const GraphCache& graphs() const { return graphs_; }
  // A time of the GPU, for Device::delay.
  uint64_t* clock() {
    if (!clock_) clock_ = allocate_device(sizeof(uint64_t), "delay");
    return static_cast<uint64_t*>(clock_.get());
  }

 private:
  const std::string name_;  // in profiles
  std::function<void(CudaQueue*)> when_gone_;
  CudaStream stream_;
  Profiler profiler_{stream_.get()};
  GraphCache graphs_{stream_.get()};
  DeviceMemory clock_;
};

class CudaQueueEvent final : public Event {
 public:
  cudaEvent_t get() const { return event_.get(); }

 private:
  CudaEvent event_;
};

}  // namespace octet
