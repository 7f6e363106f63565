#pragma once

#include <algorithm>

#include "backend/cpu/element.h"
#include "backend/cpu/parallel.h"
#include "backend/cpu/workspace.h"

namespace octet::cpu {

// table[ids[n]] += factors[n] * x[n], without factors: += x[n]. Rows without an id (-1) are skipped. Rows of one id are
// summed in fp32 in the order of n, and added once.
template <class G, class T>
void scatter_add(const Parallel& parallel, Scratch scratch, G* table, const T* x, const int32_t* ids,
                 const float* factors, int64_t rows, int64_t width) {
  auto* keys = scratch.take<uint64_t>(rows);         // id and row, so that sorting is stable
  auto* segments = scratch.take<int64_t>(rows + 1);  // where the runs of one id begin
  int64_t used = 0;
  for (int64_t r = 0; r < rows; ++r) {
    if (ids[r] >= 0) keys[used++] = static_cast<uint64_t>(ids[r]) << 32 | static_cast<uint64_t>(r);
  }
  std::sort(keys, keys + used);
  int64_t count = 0;
  for (int64_t i = 0; i < used; ++i) {
    if (i == 0 || keys[i] >> 32 != keys[i - 1] >> 32) segments[count++] = i;
  }
  segments[count] = used;

  constexpr int64_t kColumns = 128;
  const int64_t column_blocks = div_up(width, kColumns);
  parallel.for_range(count * column_blocks, 8, [=](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t segment = task / column_blocks, first = task % column_blocks * kColumns;
      const int64_t columns = std::min(kColumns, width - first);
      float sums[kColumns] = {};
      for (int64_t i = segments[segment]; i < segments[segment + 1]; ++i) {
        const auto n = static_cast<int64_t>(keys[i] & 0xFFFFFFFF);
        const T* row = x + n * width + first;
        const float factor = factors ? factors[n] : 1.0f;
        for (int64_t c = 0; c < columns; ++c) sums[c] += factor * load(row[c]);
      }
      G* out = table + static_cast<int64_t>(keys[segments[segment]] >> 32) * width + first;
      for (int64_t c = 0; c < columns; ++c) out[c] = store<G>(load(out[c]) + sums[c]);
    }
  });
}

}  // namespace octet::cpu
