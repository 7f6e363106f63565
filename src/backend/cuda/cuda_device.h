#pragma once

#include <memory>
#include <string>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/cuda_queue.h"
#include "backend/cuda/input_feed.h"
#include "backend/cuda/staged_copy.h"
#include "ops/device.h"

namespace octet {

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const CudaOptions& options);
  ~CudaDevice() override;

  std::string name() const override { return "cuda"; }
  std::string description() const override { return description_; }
  Capabilities capabilities() const override { return cuda_capabilities(); }

  int64_t memory_bytes() const override;
  int64_t workspace_bytes(const WorkspaceNeeds& needs) const override;
  std::string gemm_fp8_kind(int64_t m, int64_t n, int64_t k, Granularity a, Granularity b, DType format_a,
                            DType format_b, DType out) override;

  Queue& queue() override { return queue_; }
  std::unique_ptr<Queue> make_queue(const std::string& name) override;
  std::unique_ptr<Event> make_event() override { return std::make_unique<CudaQueueEvent>(); }
  void record(Event& event, Queue& queue) override;
  void wait(Queue& queue, Event& event) override;
  void synchronize(Event& event) override;
  void synchronize() override;

  Ops& ops() override { return ops_; }
  std::unique_ptr<Ops> make_ops(Queue& queue) override;

  using Device::copy;
  using Device::zero;
  std::shared_ptr<void> allocate(int64_t bytes, Place place) override;
  void copy(Queue& queue, Tensor to, Tensor from) override;
  void zero(Queue& queue, Tensor tensor) override;
  void zero(std::span<const Tensor> tensors) override;
  void copy_to_device(Tensor to, const void* from) override;
  void copy_to_host(void* to, Tensor from) override;
  void delay(Queue& queue, double microseconds) override;
  void feed(std::span<const InputCopy> inputs) override;
  void reserve_inputs(int64_t bytes) override { input_feed_.reserve(static_cast<size_t>(bytes)); }

  void begin_phase(Phase phase) override { queue_.profiler().begin_phase(phase); }
  void start_profile() override;
  std::vector<OpTime> finish_profile() override;
  std::vector<OpSpan> profile_spans() const override { return profile_spans_; }
  void repeat(const std::string& signature, const std::function<void()>& work) override;
  GraphCounts graph_counts() const override { return queue_.graphs().counts(); }

  const CudaOptions& options() const { return options_; }
  const std::string& gpu_name() const { return description_; }
  int sm_count() const { return sm_count_; }

 private:
  cudaStream_t stream() const { return queue_.stream(); }

  CudaOptions options_;
  int sm_count_ = 0;
  std::string description_;
  CudaQueue queue_{"compute"};
  // Those that make_queue() has made, as long as they live.
  std::shared_ptr<std::vector<CudaQueue*>> other_queues_ = std::make_shared<std::vector<CudaQueue*>>();
  std::vector<OpSpan> profile_spans_;
  double profile_start_us_ = 0;  // as OpSpan::start_us
  StagedCopy staged_copy_;
  InputFeed input_feed_;
  CudaOps ops_;
};

}  // namespace octet
