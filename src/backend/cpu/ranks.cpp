#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/element.h"
#include "backend/op_checks.h"
#include "base/hash.h"

// Ops for several ranks.

namespace octet {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements of a task

float larger_as_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) >= std::bit_cast<uint32_t>(b) ? a : b;
}

}  // namespace

void CpuOps::sum_parts(Tensor sum, Tensor parts, bool accumulate) {
  const cpu::HostScope scope = timed({.kind = OpKind::Other, .op = "sum_parts"});
  const int64_t n = check_sum_parts(sum, parts), k = sum.numel();
  float* out = sum.as<float>();
  cpu::dispatch_real("sum_parts", parts.dtype, [&]<class T>(T) {
    const T* in = parts.as<T>();
    parallel_.for_range(k, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float total = cpu::load(in[i]);
        for (int64_t part = 1; part < n; ++part) total += cpu::load(in[part * k + i]);
        out[i] = accumulate ? out[i] + total : total;
      }
    });
  });
}

void CpuOps::convert(Tensor to, Tensor from) {
  const cpu::HostScope scope = timed({.kind = OpKind::Other, .op = "convert"});
  check_convert(to, from);
  if (to.dtype == from.dtype) {  // also NaN keeps its bits
    if (to.numel() > 0) std::memcpy(to.data, from.data, static_cast<size_t>(to.bytes()));
    return;
  }
  cpu::dispatch_real("convert", from.dtype, [&]<class From>(From) {
    cpu::dispatch_real("convert", to.dtype, [&]<class To>(To) {
      const From* in = from.as<From>();
      To* out = to.as<To>();
      parallel_.for_range(to.numel(), kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) out[i] = cpu::store<To>(cpu::load(in[i]));
      });
    });
  });
}

void CpuOps::combine_norms(Tensor result, Tensor records, float max_norm) {
  const cpu::HostScope scope = timed({.kind = OpKind::GradNorm, .op = "combine_norms"});
  check_combine_norms(result, records);
  double squares = 0;
  for (int64_t r = 0; r < records.rows(); ++r) {
    const auto norm = static_cast<double>(records.as<float>()[r * records.cols()]);
    squares += norm * norm;
  }
  const auto norm = static_cast<float>(std::sqrt(squares));
  result.as<float>()[0] = norm;
  result.as<float>()[1] = max_norm > 0.0f && norm > max_norm ? max_norm / norm : 1.0f;
}

void CpuOps::reciprocal_of_sum(Tensor scale, Tensor counts) {
  const cpu::HostScope scope = timed({.kind = OpKind::Other, .op = "reciprocal_of_sum"});
  check_reciprocal_of_sum(scale, counts);
  int64_t total = 0;
  for (const int32_t count : counts.span<int32_t>()) total += count;
  *scale.as<float>() = total > 0 ? 1.0f / static_cast<float>(total) : 0.0f;
}

void CpuOps::merge_slots(Tensor slots, Tensor gathered) {
  const cpu::HostScope scope = timed({.kind = OpKind::Quantize, .op = "merge_slots"});
  const int64_t ranks = check_merge_slots(slots, gathered);
  const int64_t count = slots.numel() / static_cast<int64_t>(sizeof(ScaleSlot));
  auto* own = static_cast<ScaleSlot*>(slots.data);
  const auto* all = static_cast<const ScaleSlot*>(gathered.data);
  for (int64_t i = 0; i < count; ++i) {
    ScaleSlot merged = own[i];
    const ScaleSlot* smallest = nullptr;
    for (int64_t r = 0; r < ranks; ++r) {
      const ScaleSlot& slot = all[r * count + i];
      merged.amax = r == 0 ? slot.amax : larger_as_bits(merged.amax, slot.amax);
      merged.amax_last = r == 0 ? slot.amax_last : larger_as_bits(merged.amax_last, slot.amax_last);
      const bool counts = slot.amax_last > 0.0f && slot.amax_last <= std::numeric_limits<float>::max();
      if (counts && (!smallest || slot.scale_rowwise < smallest->scale_rowwise)) smallest = &slot;
    }
    if (smallest) {
      merged.scale_rowwise = smallest->scale_rowwise;
      merged.scale_colwise = smallest->scale_colwise;
      merged.inverse_rowwise = smallest->inverse_rowwise;
      merged.inverse_colwise = smallest->inverse_colwise;
    }
    own[i] = merged;
  }
}

void CpuOps::add_hash(Tensor hash, Tensor x, uint64_t seed) {
  const cpu::HostScope scope = timed({.kind = OpKind::Other, .op = "add_hash"});
  check_add_hash(hash, x);
  const int64_t bytes = x.bytes();
  const auto* data = static_cast<const std::byte*>(x.data);
  uint64_t total = 0;
  std::memcpy(&total, hash.data, sizeof total);
  for (int64_t i = 0; i * 8 < bytes; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, data + i * 8, static_cast<size_t>(std::min<int64_t>(8, bytes - i * 8)));
    total += mix_bits(word + mix_bits(seed + static_cast<uint64_t>(i)));
  }
  std::memcpy(hash.data, &total, sizeof total);
}

}  // namespace octet
