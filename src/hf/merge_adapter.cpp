#include "hf/merge_adapter.h"

#include <algorithm>
#include <array>

namespace octet {
namespace {

// Columns that are summed at a time: the sums stay in the first cache, and so do four rows of A.
constexpr int64_t kColumns = 1024;

// row[c] += scale * sum_k b[k] a[k][c]. a: (rank, cols). The sum is complete before it is scaled, as in PEFT.
void add_row(float* row, const float* b, const float* a, int64_t rank, int64_t cols, float scale) {
  std::array<float, kColumns> sums;
  for (int64_t first = 0; first < cols; first += kColumns) {
    const int64_t count = std::min(kColumns, cols - first);
    std::fill_n(sums.begin(), count, 0.0f);
    int64_t k = 0;
    for (; k + 4 <= rank; k += 4) {
      const float *a0 = a + k * cols + first, *a1 = a0 + cols, *a2 = a1 + cols, *a3 = a2 + cols;
      for (int64_t c = 0; c < count; ++c)
        sums[static_cast<size_t>(c)] += b[k] * a0[c] + b[k + 1] * a1[c] + b[k + 2] * a2[c] + b[k + 3] * a3[c];
    }
    for (; k < rank; ++k) {
      const float* a0 = a + k * cols + first;
      for (int64_t c = 0; c < count; ++c) sums[static_cast<size_t>(c)] += b[k] * a0[c];
    }
    for (int64_t c = 0; c < count; ++c) row[first + c] += scale * sums[static_cast<size_t>(c)];
  }
}

}  // namespace

AdapterMerge::AdapterMerge(const PeftAdapter& adapter, std::span<const ParameterSpec> table)
    : adapter_(adapter) {
  for (const AdaptedPart& part : adapted_parts(table, adapter.plan()))
    parts_[part.spec->name].push_back(part);
}

void AdapterMerge::add_to(const ParameterSpec& spec, int64_t begin, std::span<float> values) const {
  const auto found = parts_.find(spec.name);
  if (found == parts_.end()) return;
  const int64_t cols = spec.shape[1], end = begin + std::ssize(values) / cols;
  for (const AdaptedPart& part : found->second) {
    const int64_t first = std::max(begin, part.part->row_begin);
    const int64_t last = std::min(end, part.part->row_begin + part.out());
    if (first >= last) continue;
    const int64_t rank = part.adapter->rank;
    const float scale = part.adapter->scale();
    const std::vector<float> a = adapter_.rows(*part.adapter, 'A', 0, rank, cols);
    const std::vector<float> b =
        adapter_.rows(*part.adapter, 'B', first - part.part->row_begin, last - first, rank);
#pragma omp parallel for
    for (int64_t row = first; row < last; ++row)
      add_row(values.data() + (row - begin) * cols, b.data() + (row - first) * rank, a.data(), rank, cols,
              scale);
  }
}

}  // namespace octet
