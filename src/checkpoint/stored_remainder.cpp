#include "checkpoint/stored_remainder.h"

namespace octet {

StoredRemainder::StoredRemainder(const TensorFiles& optimizer, const ParameterSpec& spec)
    : tensor(optimizer.find(spec.name + ".remainder")),
      rows_(spec.shape[0]),
      width_(spec.shape.rank() == 1 ? 1 : spec.shape[1]) {
  if (!tensor) return;
  const bool compact = tensor->dtype == SafeDType::U8 && spec.shape.rank() == 2;
  kind = compact ? RemainderKind::Compact : RemainderKind::Exact;
}

std::string StoredRemainder::fault() const {
  if (!tensor) return {};
  const SafeDType dtype = kind == RemainderKind::Compact ? SafeDType::U8 : SafeDType::U16;
  const bool fits = tensor->dtype == dtype &&
                    static_cast<int64_t>(tensor->bytes.size()) == rows_ * remainder_row_bytes(kind, width_);
  return fits ? ""
              : fmt::format("{} is not the remainder of a weight of {} elements", tensor->name,
                            rows_ * width_);
}

void StoredRemainder::add_to(std::span<float> values, int64_t begin) const {
  if (!tensor) return;
  add_remainders(values, width_, kind, tensor->bytes.data() + begin * remainder_row_bytes(kind, width_));
}

}  // namespace octet
