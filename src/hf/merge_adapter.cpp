#include "hf/merge_adapter.h"

#include <algorithm>
#include <array>

#include "base/parallel_for.h"

namespace octet {
namespace {

constexpr int64_t kRows = 4;  // share what is read of A
// Summed at a time: the sums stay in the first cache, and so do four rows of A.
constexpr int64_t kColumns = 512;

// row[c] += scale * sum_k b[k] a[k][c] for up to kRows rows. rows: (count, cols), b: (count, rank), a: (rank, cols).
// The sum is complete before it is scaled, as in PEFT. Absent rows are computed as well, so that a row has the same
// bits in any group.
void add_rows(float* rows, const float* b, const float* a, int64_t count, int64_t rank, int64_t cols,
              float scale) {
  std::vector<float> factors(static_cast<size_t>(kRows * rank), 0.0f);
  std::copy_n(b, count * rank, factors.begin());
  std::array<std::array<float, kColumns>, kRows> sums;
  for (int64_t first = 0; first < cols; first += kColumns) {
    const auto width = static_cast<size_t>(std::min(kColumns, cols - first));
    for (auto& sum : sums) sum.fill(0.0f);
    for (int64_t k = 0; k < rank; k += 4) {
      // Beyond the rank: the last row of A again, times zero.
      const auto row_of_a = [&](int64_t i) { return a + std::min(k + i, rank - 1) * cols + first; };
      const float *a0 = row_of_a(0), *a1 = row_of_a(1), *a2 = row_of_a(2), *a3 = row_of_a(3);
      for (int64_t r = 0; r < kRows; ++r) {
        const float* f = factors.data() + r * rank;
        const auto factor = [&](int64_t i) { return k + i < rank ? f[k + i] : 0.0f; };
        const float f0 = factor(0), f1 = factor(1), f2 = factor(2), f3 = factor(3);
        float* sum = sums[static_cast<size_t>(r)].data();
        for (size_t c = 0; c < width; ++c) sum[c] += f0 * a0[c] + f1 * a1[c] + f2 * a2[c] + f3 * a3[c];
      }
    }
    for (int64_t r = 0; r < count; ++r) {
      float* row = rows + r * cols + first;
      for (size_t c = 0; c < width; ++c) row[c] += scale * sums[static_cast<size_t>(r)][c];
    }
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
    parallel_for(last - first, kRows, [&](int64_t from, int64_t to) {
      add_rows(values.data() + (first + from - begin) * cols, b.data() + from * rank, a.data(), to - from,
               rank, cols, scale);
    });
  }
}

}  // namespace octet
