#include <algorithm>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/element.h"

namespace octet {

namespace {

void require_ids(std::string_view what, const Tensor& ids, int64_t limit) {
  cpu::require_dtype("embedding", what, ids, DType::I32);
  for (const int32_t id : ids.span<int32_t>()) {
    require(id >= 0 && id < limit, "[embedding] a value of {} is {}, expected 0 to {}", what, id, limit - 1);
  }
}

}  // namespace

void CpuOps::embedding_forward(Tensor x, Tensor tokens, Tensor positions, Tensor wte, Tensor wpe) {
  const int64_t rows = x.rows(), width = x.cols();
  require(tokens.numel() == rows, "[embedding] {} tokens for {} rows", tokens.numel(), rows);
  require(wte.cols() == width && wte.dtype == x.dtype,
          "[embedding] the table is {} {}, expected width {} in {}", name_of(wte.dtype),
          wte.shape.to_string(), width, name_of(x.dtype));
  require_ids("tokens", tokens, wte.rows());
  const int32_t* position = nullptr;
  if (wpe) {
    require(positions.numel() == rows && wpe.cols() == width && wpe.dtype == x.dtype,
            "[embedding] {} positions for {} rows, position table {} {}", positions.numel(), rows,
            name_of(wpe.dtype), wpe.shape.to_string());
    require_ids("positions", positions, wpe.rows());
    position = positions.as<int32_t>();
  }
  const int32_t* token = tokens.as<int32_t>();
  cpu::dispatch_real("embedding", x.dtype, [&]<class T>(T) {
    parallel_.for_range(rows, 32, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        T* out = x.as<T>() + r * width;
        const T* word = wte.as<T>() + token[r] * width;
        if (!position) {
          std::copy_n(word, width, out);
          continue;
        }
        const T* place = wpe.as<T>() + position[r] * width;
        for (int64_t c = 0; c < width; ++c) out[c] = cpu::store<T>(cpu::load(word[c]) + cpu::load(place[c]));
      }
    });
  });
}

namespace {

// table[ids[n]] += dx[n]: rows of one id are summed in fp32 in the order of n, and added once.
template <class G, class T>
void scatter_add(const cpu::Parallel& parallel, cpu::Scratch scratch, G* table, const T* dx,
                 const int32_t* ids, int64_t rows, int64_t width) {
  auto* keys = scratch.take<uint64_t>(rows);         // id and row, so that sorting is stable
  auto* segments = scratch.take<int64_t>(rows + 1);  // where the runs of one id begin
  for (int64_t r = 0; r < rows; ++r) keys[r] = static_cast<uint64_t>(ids[r]) << 32 | static_cast<uint64_t>(r);
  std::sort(keys, keys + rows);
  int64_t count = 0;
  for (int64_t r = 0; r < rows; ++r) {
    if (r == 0 || keys[r] >> 32 != keys[r - 1] >> 32) segments[count++] = r;
  }
  segments[count] = rows;

  constexpr int64_t kColumns = 128;
  const int64_t column_blocks = div_up(width, kColumns);
  parallel.for_range(count * column_blocks, 8, [=](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t segment = task / column_blocks, first = task % column_blocks * kColumns;
      const int64_t columns = std::min(kColumns, width - first);
      float sums[kColumns] = {};
      for (int64_t i = segments[segment]; i < segments[segment + 1]; ++i) {
        const T* row = dx + static_cast<int64_t>(keys[i] & 0xFFFFFFFF) * width + first;
        for (int64_t c = 0; c < columns; ++c) sums[c] += cpu::load(row[c]);
      }
      G* out = table + static_cast<int64_t>(keys[segments[segment]] >> 32) * width + first;
      for (int64_t c = 0; c < columns; ++c) out[c] = cpu::store<G>(cpu::load(out[c]) + sums[c]);
    }
  });
}

}  // namespace

void CpuOps::embedding_backward(Tensor dwte, Tensor dwpe, Tensor dx, Tensor tokens, Tensor positions) {
  const int64_t rows = dx.rows(), width = dx.cols();
  const auto add = [&](Tensor table, Tensor ids, std::string_view what) {
    require(ids.numel() == rows && table.cols() == width, "[embedding] {}: {} ids for {} rows, table {}",
            what, ids.numel(), rows, table.shape.to_string());
    require_ids(what, ids, table.rows());
    cpu::dispatch_real("embedding", table.dtype, [&]<class G>(G) {
      cpu::dispatch_real("embedding", dx.dtype, [&]<class T>(T) {
        scatter_add(parallel_, scratch(), table.as<G>(), dx.as<T>(), ids.as<int32_t>(), rows, width);
      });
    });
  };
  if (dwte) add(dwte, tokens, "tokens");
  if (dwpe) add(dwpe, positions, "positions");
}

}  // namespace octet
