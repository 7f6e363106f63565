#include "backend/cpu/cpu_backend.h"
namespace octet {
void CpuBackend::quantize(const Operand&) {
  fail("[quantize] not written");
}
void CpuBackend::update_delayed_scales(const DelayedScaling&) {
  fail("[quantize] not written");
}
}  // namespace octet
