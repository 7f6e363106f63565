#pragma once

#include "backend/cpu/cpu_ops.h"
#include "base/cpu_threads.h"
#include "ops/device.h"

namespace octet {

// The host itself. Its memory is the device's memory. Work is done when it is queued, so queues and events have
// nothing to order.
class CpuDevice : public Device {
 public:
  explicit CpuDevice(int threads);  // 0: default_threads()

  std::string name() const override { return "cpu"; }
  std::string description() const override;
  Capabilities capabilities() const override { return {.profiles = true}; }

  int64_t memory_bytes() const override;
  int64_t workspace_bytes(const WorkspaceNeeds& needs) const override;
  std::string gemm_fp8_kind(int64_t, int64_t, int64_t, Granularity, Granularity, DType, DType,
                            DType) override {
    return "emulated";
  }

  Queue& queue() override { return queue_; }
  std::unique_ptr<Queue> make_queue(const std::string& name) override {
    return std::make_unique<NamedQueue>(name);
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<Event>(); }
  void record(Event&, Queue&) override {}
  void wait(Queue&, Event&) override {}
  void synchronize(Event&) override {}
  void synchronize() override {}

  Ops& ops() override { return ops_; }
  std::unique_ptr<Ops> make_ops(Queue& queue) override;

  using Device::copy;
  using Device::zero;
  std::shared_ptr<void> allocate(int64_t bytes, Place place) override;
  void copy(Queue& queue, Tensor to, Tensor from) override;
  void zero(Queue& queue, Tensor x) override;
  void copy_to_device(Tensor to, const void* from) override;
  void copy_to_host(void* to, Tensor from) override;

  void begin_phase(Phase phase) override { profiler_.begin_phase(phase); }
  void start_profile() override { profiler_.start(); }
  std::vector<OpTime> finish_profile() override { return profiler_.finish(); }
  std::vector<OpSpan> profile_spans() const override { return profiler_.spans(); }

 private:
  struct NamedQueue final : Queue {
    explicit NamedQueue(std::string given) : name(std::move(given)) {}
    const std::string name;
  };
  static const char* name_of(Queue& queue) { return static_cast<NamedQueue&>(queue).name.c_str(); }

  CpuThreads threads_;
  cpu::Parallel parallel_;
  NamedQueue queue_{cpu::HostProfiler::kDefaultQueue};
  cpu::HostProfiler profiler_;
  CpuOps ops_{*this, parallel_, profiler_, queue_.name};
};

}  // namespace octet
