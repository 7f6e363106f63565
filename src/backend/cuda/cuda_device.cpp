#include "backend/cuda/cuda_device.h"

#include <cuda_profiler_api.h>

#include <algorithm>

#include "base/trace.h"

namespace octet {
namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

bool cuda_backend_built() {
  return true;
}

CudaProbe probe_cuda(int device) {
  CudaProbe probe;
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  probe.driver = driver == 0
                     ? fmt::format("no driver, runtime {}", version_text(runtime))
                     : fmt::format("driver {}, runtime {}", version_text(driver), version_text(runtime));
  cudaError_t status = cudaGetDeviceCount(&probe.devices);
  if (driver == 0) {
    probe.reason = "no NVIDIA driver is installed (libcuda.so.1 was not found)";
  } else if (status != cudaSuccess) {
    probe.reason = cudaGetErrorString(status);
  } else if (device >= probe.devices || device < 0) {
    probe.reason = fmt::format("there is no GPU {}: {} found", device, probe.devices);
  }
  cudaGetLastError();
  if (!probe.reason.empty()) return probe;

  cudaDeviceProp properties;
  status = cudaGetDeviceProperties(&properties, device);
  if (status != cudaSuccess) {
    probe.reason = cudaGetErrorString(status);
    return probe;
  }
  probe.name = properties.name;
  for (const char byte : properties.uuid.bytes)
    probe.uuid += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  probe.major = properties.major;
  probe.minor = properties.minor;
  probe.memory = static_cast<int64_t>(properties.totalGlobalMem);
#ifdef OCTET_CUDA_HAS_BLACKWELL
  constexpr bool has_blackwell = true;
#else
  constexpr bool has_blackwell = false;
#endif
  const bool hopper = probe.major == 9 && probe.minor == 0;
  const bool blackwell = probe.major == 10 && probe.minor == 0;
  if (!hopper && !(blackwell && has_blackwell)) {
    probe.reason =
        fmt::format("{} has compute capability {}.{}; this program was compiled for 9.0 (Hopper){}",
                    probe.name, probe.major, probe.minor, has_blackwell ? " and 10.0 (Blackwell)" : "");
    return probe;
  }
  size_t free_bytes = 0, total_bytes = 0;
  int current = 0;
  cudaGetDevice(&current);
  cudaSetDevice(device);
  if (cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess)
    probe.memory_free = static_cast<int64_t>(free_bytes);
  cudaSetDevice(current);
  status = cudaGetLastError();
  if (status != cudaSuccess) {
    probe.reason = cudaGetErrorString(status);
    return probe;
  }
  probe.usable = true;
  return probe;
}

std::unique_ptr<Device> make_cuda_device(const CudaOptions& options) {
  const CudaProbe probe = probe_cuda(options.device);
  require(probe.usable, "[cuda] GPU {} cannot be used: {}", options.device, probe.reason);
  cuda_check(cudaSetDevice(options.device), "cudaSetDevice");
  return std::make_unique<CudaDevice>(options);
}

namespace {

cudaDeviceProp properties_of(int device) {
  cudaDeviceProp properties;
  cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return properties;
}

cudaStream_t stream_of(Queue& queue) {
  return static_cast<CudaQueue&>(queue).stream();
}
cudaEvent_t event_of(Event& event) {
  return static_cast<CudaQueueEvent&>(event).get();
}

}  // namespace

CudaDevice::CudaDevice(const CudaOptions& options)
    : options_(options),
      sm_count_(properties_of(options.device).multiProcessorCount),
      description_(properties_of(options.device).name),
      ops_(*this, queue_) {
  if (has_nvtx_listener()) set_trace_ranges({.push = push_nvtx_range, .pop = pop_nvtx_range});
}

CudaDevice::~CudaDevice() {
  cudaStreamSynchronize(stream());
}

int64_t CudaDevice::memory_bytes() const {
  size_t free_bytes = 0, total_bytes = 0;
  cuda_check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  return std::max<int64_t>(static_cast<int64_t>(free_bytes) - kCudaMemoryReserve, 0);
}

std::shared_ptr<void> CudaDevice::allocate(int64_t bytes, Place place) {
  require(bytes >= 0, "[cuda] allocate: {} bytes", bytes);
  // Pinned memory has the same address on host and device: kernels read and write it over the bus.
  if (place == Place::Host)
    return allocate_pinned(static_cast<size_t>(std::max<int64_t>(bytes, 1)), "allocate");
  return allocate_device(static_cast<size_t>(bytes), "allocate");
}

void CudaDevice::record(Event& event, Queue& queue) {
  cuda_check(cudaEventRecord(event_of(event), stream_of(queue)), "record");
}

void CudaDevice::wait(Queue& queue, Event& event) {
  cuda_check(cudaStreamWaitEvent(stream_of(queue), event_of(event)), "wait");
}

void CudaDevice::synchronize(Event& event) {
  cuda_check(cudaEventSynchronize(event_of(event)), "synchronize");
}

std::unique_ptr<Queue> CudaDevice::make_queue(const std::string& name) {
  auto queue = std::make_unique<CudaQueue>(name);
  other_queues_->push_back(queue.get());
  queue->when_gone([queues = other_queues_](CudaQueue* gone) { std::erase(*queues, gone); });
  return queue;
}

void CudaDevice::start_profile() {
  for (CudaQueue* queue : *other_queues_) queue->profiler().start();
  input_feed_.profiler().start();
  cudaProfilerStart();  // for 'nsys profile --capture-range=cudaProfilerApi'
  queue_.profiler().start();
  synchronize();  // the first event has happened: from here on the host's clock counts the same time
  profile_start_us_ = clock_us(Clock::now());
}

std::vector<OpTime> CudaDevice::finish_profile() {
  if (!queue_.profiler().active()) return {};
  std::vector<OpTime> times = queue_.profiler().finish();
  profile_spans_ = queue_.profiler().spans(queue_.name(), queue_.profiler());
  const auto add = [&](Profiler& profiler, const std::string& name) {
    if (!profiler.active()) return;  // a queue that is younger than the profile
    profiler.finish();
    for (OpSpan& span : profiler.spans(name, queue_.profiler())) profile_spans_.push_back(std::move(span));
  };
  for (CudaQueue* queue : *other_queues_) add(queue->profiler(), queue->name());
  add(input_feed_.profiler(), "input copies");
  for (OpSpan& span : profile_spans_) span.start_us += profile_start_us_;
  cudaProfilerStop();
  return times;
}

std::unique_ptr<Ops> CudaDevice::make_ops(Queue& queue) {
  return std::make_unique<CudaOps>(*this, static_cast<CudaQueue&>(queue));
}

std::string CudaDevice::gemm_fp8_kind(int64_t m, int64_t n, int64_t k, Granularity a, Granularity b,
                                      DType format_a, DType format_b, DType out) {
  return ops_.gemm_fp8_kind(m, n, k, a, b, format_a, format_b, out);
}

void CudaDevice::copy_to_device(Tensor to, const void* from) {
  const auto bytes = static_cast<size_t>(to.bytes());
  if (bytes == 0) return;
  const OpScope scope(queue_.profiler(), OpKind::Copy, "copy_to_device", bytes_of(to));
  if (bytes >= StagedCopy::kLarge) return staged_copy_.to_device(to.data, from, bytes, stream());
  cuda_check(cudaMemcpyAsync(to.data, from, bytes, cudaMemcpyHostToDevice, stream()), "copy_to_device");
  // Pageable memory is staged before the call returns. Pinned memory is read later, so the caller has to wait.
  cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, from) == cudaSuccess && attributes.type == cudaMemoryTypeHost) {
    cuda_check(cudaStreamSynchronize(stream()), "copy_to_device");
  }
}

void CudaDevice::feed(std::span<const InputCopy> inputs) {
  const OpScope scope(queue_.profiler(), OpKind::Copy, "feed");
  input_feed_.send(inputs, stream());
}

void CudaDevice::copy_to_host(void* to, Tensor from) {
  const auto bytes = static_cast<size_t>(from.bytes());
  const OpScope scope(queue_.profiler(), OpKind::Copy, "copy_to_host", bytes_of(from));
  if (bytes >= StagedCopy::kLarge) return staged_copy_.to_host(to, from.data, bytes, stream());
  if (bytes != 0)
    cuda_check(cudaMemcpyAsync(to, from.data, bytes, cudaMemcpyDeviceToHost, stream()), "copy_to_host");
  cuda_check(cudaStreamSynchronize(stream()), "copy_to_host");
}

void CudaDevice::copy(Queue& queue, Tensor to, Tensor from) {
  require(to.bytes() == from.bytes(), "[cuda] copy: {} bytes into {}", from.bytes(), to.bytes());
  if (to.bytes() == 0) return;
  const OpScope scope(static_cast<CudaQueue&>(queue).profiler(), OpKind::Copy, "copy", bytes_of(to, from));
  cuda_check(cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(to.bytes()), cudaMemcpyDefault,
                             stream_of(queue)),
             "copy");
}

void CudaDevice::zero(Queue& queue, Tensor tensor) {
  if (tensor.bytes() == 0) return;
  const OpScope scope(static_cast<CudaQueue&>(queue).profiler(), OpKind::Copy, "zero", bytes_of(tensor));
  cuda_check(cudaMemsetAsync(tensor.data, 0, static_cast<size_t>(tensor.bytes()), stream_of(queue)), "zero");
}

void CudaDevice::synchronize() {
  cuda_check(cudaStreamSynchronize(stream()), "synchronize");
}

void CudaDevice::repeat(const std::string& signature, const std::function<void()>& work) {
  if (queue_.profiler().active()) return work();  // a profile needs the single ops
  queue_.graphs().run(signature, work);
}

int64_t CudaDevice::workspace_bytes(const WorkspaceNeeds& needs) const {
  return cuda_workspace_bytes(needs, sm_count_);
}

}  // namespace octet
