#include "backend/cpu/cpu_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "backend/cpu/attention.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/matrix_product.h"
#include "backend/cpu/optimizer.h"
#include "base/host_memory.h"

namespace octet {

using cpu::Scratch;

CpuDevice::CpuDevice(int threads)
    : threads_(threads > 0 ? CpuThreads{threads, "num_threads"} : default_threads()),
      parallel_(threads_.count) {}

std::string CpuDevice::description() const {
  return fmt::format("{} thread{} ({}), {}", threads_.count, threads_.count == 1 ? "" : "s", threads_.reason,
                     cpu::product_instructions());
}

int64_t CpuDevice::memory_bytes() const {
  const int64_t bytes = available_host_memory();
  return bytes - bytes / 16;  // the rest of this program needs a little
}

std::shared_ptr<void> CpuDevice::allocate(int64_t bytes, Place) {
  require(bytes >= 0, "[cpu memory] {} bytes were requested, expected 0 or more", bytes);
  const int64_t padded = Scratch::padded(std::max<int64_t>(bytes, 1));
  void* memory = std::aligned_alloc(static_cast<size_t>(Scratch::kAlignment), static_cast<size_t>(padded));
  require(memory != nullptr, "[cpu memory] the system cannot allocate {} bytes", bytes);
  return {memory, std::free};
}

void CpuDevice::copy_to_device(Tensor to, const void* from) {
  const cpu::HostScope scope(profiler_, cpu::HostProfiler::kDefaultQueue,
                             {.kind = OpKind::Copy, .op = "copy_to_device", .bytes = bytes_of(to)});
  if (to.numel() > 0) std::memcpy(to.data, from, static_cast<size_t>(to.bytes()));
}

void CpuDevice::copy_to_host(void* to, Tensor from) {
  const cpu::HostScope scope(profiler_, cpu::HostProfiler::kDefaultQueue,
                             {.kind = OpKind::Copy, .op = "copy_to_host", .bytes = bytes_of(from)});
  if (from.numel() > 0) std::memcpy(to, from.data, static_cast<size_t>(from.bytes()));
}

void CpuDevice::copy(Queue& queue, Tensor to, Tensor from) {
  require(to.bytes() == from.bytes(), "[copy] {} bytes into {}, expected the same size", from.bytes(),
          to.bytes());
  const cpu::HostScope scope(profiler_, name_of(queue),
                             {.kind = OpKind::Copy, .op = "copy", .bytes = bytes_of(to, from)});
  if (to.numel() > 0) std::memmove(to.data, from.data, static_cast<size_t>(to.bytes()));
}

void CpuDevice::zero(Queue& queue, Tensor x) {
  const cpu::HostScope scope(profiler_, name_of(queue),
                             {.kind = OpKind::Copy, .op = "zero", .bytes = bytes_of(x)});
  if (x.numel() > 0) std::memset(x.data, 0, static_cast<size_t>(x.bytes()));
}

std::unique_ptr<Ops> CpuDevice::make_ops(Queue& queue) {
  return std::make_unique<CpuOps>(*this, parallel_, profiler_, name_of(queue));
}

int64_t CpuDevice::workspace_bytes(const WorkspaceNeeds& needs) const {
  const int threads = parallel_.threads();
  int64_t widest = needs.width;
  int64_t bytes = 0;
  for (const WorkspaceNeeds::Gemm& gemm : needs.gemms) {
    widest = std::max({widest, gemm.m, gemm.n, gemm.k});
    bytes = std::max(
        bytes, cpu::gemm_workspace(gemm.m, gemm.n, gemm.k, threads, needs.fp8 || needs.dtype != DType::F32));
  }
  widest = std::max({widest, needs.attention.qkv_width(), needs.attention.out_width()});
  // Partial sums over rows, two of them for a norm; 64-bit keys and segment starts of the embedding.
  const int64_t partials = 2 * Scratch::padded(cpu::RowChunks::kMaxChunks * widest * 4);
  const int64_t keys = 2 * Scratch::padded((needs.tokens + 1) * 8);
  bytes = std::max({bytes, partials, keys, cpu::optimizer_workspace(needs.parameters)});
  const int64_t attention = needs.decode ? cpu::decode_workspace(needs.max_length, needs.attention, threads)
                                         : cpu::attention_workspace(needs.tokens, needs.max_length,
                                                                    needs.attention, threads, needs.dtype);
  bytes = std::max(bytes, attention);
  return std::max<int64_t>(bytes, int64_t{1} << 20);
}

void CpuOps::finish(const Operand& operand) {
  if (operand.fp8) {
    quantize(operand);
  } else if (operand.column_sum) {
    add_column_sum(operand.column_sum, operand.dense, {}, 1.0f);
  }
}

std::unique_ptr<Device> make_cpu_device(int threads) {
  require(threads >= 0, "[cpu] threads is {}, expected 0 (default) or more", threads);
  return std::make_unique<CpuDevice>(threads);
}

}  // namespace octet
