#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ops/ops.h"
#include "tensor/place.h"
#include "tensor/tensor.h"

namespace octet {

// Abilities of a device. Callers decide by these, never by a device's name.
struct Capabilities {
  bool computes = true;          // false: it can only be planned for
  bool separate_memory = false;  // the device has its own memory: copies take time
  bool fast_bf16 = false;        // products and stores in bf16 are faster than in fp32
  bool graphs = false;           // repeat() records work and replays it
  bool profiles = false;         // start_profile() measures ops
  // Memory for the logits of one chunk of the head. A plan takes the larger one if it fits, because the products of
  // large chunks are faster.
  int64_t logits_bytes = int64_t{64} << 20;
  int64_t most_logits_bytes = int64_t{64} << 20;
};

// Work on a device that is done in order. Queues run in parallel; events order them.
class Queue {
 public:
  virtual ~Queue() = default;
};
// A point in the work of a queue.
class Event {
 public:
  virtual ~Event() = default;
};

// The parts of an optimizer step. They name ranges for profilers, and tell the head's products from the others.
enum class Phase : uint8_t { Outside, Forward, Head, Backward, Optimizer };

// The time of one op on the device over a profile. An op inside another op is counted separately.
struct OpTime {
  std::string kind;  // "GEMM forward", "norm", ..., and "idle" between ops
  std::string op;    // with the sizes where it is a product
  int64_t calls = 0;
  double ms = 0;
  double bytes = 0;  // read and written, if the op reports it
  double flops = 0;  // likewise
};

// One op of a profile as it ran. The spans of a queue nest: an op inside another lies within it.
struct OpSpan {
  std::string queue;  // its name
  std::string kind;   // as in OpTime, or "phase": then `op` is the part of the step
  std::string op;
  double start_us = 0;  // on the host's clock (base/clock.h), from its epoch on
  double us = 0;
  double bytes = 0, flops = 0;  // as in OpTime
};

// How often repeat() ran its work, and how.
struct GraphCounts {
  int64_t recorded = 0;  // recordings made
  int64_t replayed = 0;  // runs that were one launch of a recording
  int64_t plain = 0;     // runs op by op
};

// An input of a micro-batch to be copied to the device.
struct InputCopy {
  Tensor to;
  const void* from = nullptr;
};

// One processor with its memory: where tensors live, in which queues work is done, how it is recorded and measured.
// The computations are in ops/ops.h.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string name() const = 0;         // for people: "cpu", "cuda"
  virtual std::string description() const = 0;  // "2 threads (all cores), AVX2", "NVIDIA H200"
  virtual Capabilities capabilities() const = 0;

  // ---- planning: also answered by devices that can only be planned for ----
  virtual int64_t memory_bytes() const = 0;  // memory a run may use
  // Memory that the ops of a run need beyond their arguments.
  virtual int64_t workspace_bytes(const WorkspaceNeeds&) const = 0;
  // How gemm_fp8 would run a product of these shapes: "native" on FP8 tensor cores, or "emulated" with dequantised
  // operands. c (m, n), a (m, k), b (n, k).
  virtual std::string gemm_fp8_kind(int64_t m, int64_t n, int64_t k, Granularity a, Granularity b,
                                    DType format_a, DType format_b, DType out) = 0;

  // ---- queues, events, ops ----
  virtual Queue& queue() = 0;                                                        // the default one
  virtual std::unique_ptr<Queue> make_queue(const std::string& name = "queue") = 0;  // named in profiles
  virtual std::unique_ptr<Event> make_event() = 0;
  // The event happens when all work queued so far is done. Recording it again moves it.
  virtual void record(Event&, Queue&) = 0;
  // Work queued on `queue` from now on waits for the event. An event that was never recorded has happened.
  virtual void wait(Queue& queue, Event&) = 0;
  virtual void synchronize(Event&) = 0;  // the host waits
  virtual void synchronize() = 0;        // the host waits for the default queue

  virtual Ops& ops() = 0;  // on the default queue
  // On another queue, which must outlive them. They need a workspace of their own.
  virtual std::unique_ptr<Ops> make_ops(Queue&) = 0;

  // ---- memory; copies are queued on the default queue unless another is given ----
  // 256-byte aligned, content unspecified. Memory at Place::Host is the host's, and ops can read and write it.
  virtual std::shared_ptr<void> allocate(int64_t bytes, Place place = Place::Device) = 0;
  virtual void copy(Queue&, Tensor to, Tensor from) = 0;  // same bytes
  virtual void zero(Queue&, Tensor) = 0;
  void copy(Tensor to, Tensor from) { copy(queue(), to, from); }
  void zero(Tensor tensor) { zero(queue(), tensor); }
  virtual void zero(std::span<const Tensor> tensors) {
    for (const Tensor& tensor : tensors) zero(tensor);
  }
  // Paces work that stands for something slower. 0 starts the queue's clock; with more, the queue waits until that time
  // has passed on the clock. Devices that finish work when it is queued do not wait.
  virtual void delay(Queue& queue, double microseconds) {
    static_cast<void>(queue);
    static_cast<void>(microseconds);
  }
  // `from` may be changed when it returns.
  virtual void copy_to_device(Tensor to, const void* from) = 0;
  virtual void copy_to_host(void* to, Tensor from) = 0;  // waits
  // copy_to_device for all inputs of a micro-batch at once, without waiting for earlier ops. Ops queued after it see
  // the inputs. The sources may be changed when it returns. If the inputs are larger than reserve_inputs() said, the
  // call allocates memory.
  virtual void feed(std::span<const InputCopy> inputs) {
    for (const InputCopy& input : inputs) copy_to_device(input.to, input.from);
  }
  virtual void reserve_inputs(int64_t bytes) { static_cast<void>(bytes); }

  // ---- phases, profiles and recordings, on the default queue ----
  virtual void begin_phase(Phase) {}
  // Measures the device time of every op between the two calls; both wait. The result is that of the default queue.
  // Nothing is replayed meanwhile: repeat() runs op by op. Needs capabilities().profiles.
  virtual void start_profile() {}
  virtual std::vector<OpTime> finish_profile() { return {}; }
  // The ops of the last finished profile one by one, of all queues.
  virtual std::vector<OpSpan> profile_spans() const { return {}; }
  // Runs `work`, which only queues ops. With the same signature it must always queue the same ops with the same
  // arguments. A device with capabilities().graphs may record the ops and replay them as one.
  virtual void repeat(const std::string& signature, const std::function<void()>& work) {
    static_cast<void>(signature);
    work();
  }
  virtual GraphCounts graph_counts() const { return {}; }
};

// ---- the available devices ----

std::unique_ptr<Device> make_cpu_device(int threads);  // 0: all cores

struct CudaOptions {
  int device = 0;
  bool deterministic = false;  // the same inputs give the same bits; makes attention backward slower
  std::string tuning_cache;    // file for the plans found by timing; empty: none
};
// Throws Error when there is no usable GPU or the program was built without CUDA.
std::unique_ptr<Device> make_cuda_device(const CudaOptions&);
bool cuda_backend_built();

// Facts about a GPU, without using it. Never throws.
struct CudaProbe {
  bool usable = false;
  std::string reason;  // why it is not usable
  int devices = 0;
  std::string name;          // "NVIDIA H200"
  int major = 0, minor = 0;  // compute capability
  int64_t memory = 0, memory_free = 0;
  std::string driver;  // "driver 13.0, runtime 13.0"
  std::string uuid;    // the same in every process that uses this GPU
};
CudaProbe probe_cuda(int device = 0);

// The scales with which a GPU multiplies FP8 on its tensor cores; with others, products are emulated.
enum class Fp8Kernels { None, Tensor, TensorAndBlock };
// A GPU that is not in this machine: it answers planning questions and refuses everything else. `memory` is its free
// memory.
std::unique_ptr<Device> make_planned_gpu(std::string description, int64_t memory, int multiprocessors,
                                         Fp8Kernels fp8 = Fp8Kernels::TensorAndBlock);

}  // namespace octet
