#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/element.h"
#include "backend/op_checks.h"
#include "base/philox.h"

namespace octet {

void CpuOps::dropout(Tensor y, Tensor x, float probability, Tensor seed, uint64_t stream, bool accumulate) {
  const cpu::HostScope scope = timed({.kind = OpKind::Adapters, .op = "dropout"});
  check_dropout(y, x, probability, seed, accumulate);
  const auto* words = reinterpret_cast<const uint32_t*>(seed.as<int32_t>());
  const Philox random(uint64_t{words[1]} << 32 | words[0], stream);
  const float kept = 1.0f - probability;
  cpu::dispatch_real("dropout", x.dtype, [&]<class T>(T) {
    T* to = y.as<T>();
    const T* from = x.as<T>();
    parallel_.for_range(x.numel(), 1 << 12, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const bool keep = random.uniform(static_cast<uint64_t>(i)) >= probability;
        const float value = keep ? cpu::load(from[i]) / kept : 0.0f;
        to[i] = cpu::store<T>(accumulate ? cpu::load(to[i]) + value : value);
      }
    });
  });
}

}  // namespace octet
