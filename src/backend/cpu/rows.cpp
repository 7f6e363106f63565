#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/element.h"
#include "backend/cpu/scatter_add.h"
#include "backend/op_checks.h"
#include "ops/stochastic.h"

namespace octet {
namespace {

void require_places(const char* op, const Tensor& rows, int64_t limit) {
  for (const int32_t row : rows.span<int32_t>()) {
    require(row >= -1 && row < limit, "[{}] a row is {}, expected -1 to {}", op, row, limit - 1);
  }
}

std::byte* row_of(const Tensor& x, int64_t row) {
  return static_cast<std::byte*>(x.data) + row * x.cols() * static_cast<int64_t>(size_of(x.dtype));
}

size_t row_bytes(const Tensor& x) {
  return static_cast<size_t>(x.cols()) * size_of(x.dtype);
}

}  // namespace

void CpuOps::gather_rows(Tensor to, Tensor from, Tensor rows) {
  const cpu::HostScope scope = timed({.kind = OpKind::Embedding, .op = "gather_rows"});
  constexpr const char* op = "gather_rows";
  check_rows(op, to, from, rows);
  require_places(op, rows, from.rows());
  const int32_t* row = rows.as<int32_t>();
  parallel_.for_range(to.rows(), 32, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (row[i] >= 0) {
        std::memcpy(row_of(to, i), row_of(from, row[i]), row_bytes(to));
      } else {
        std::memset(row_of(to, i), 0, row_bytes(to));
      }
    }
  });
}

void CpuOps::scatter_rows(Tensor to, Tensor from, Tensor rows) {
  const cpu::HostScope scope = timed({.kind = OpKind::Embedding, .op = "scatter_rows"});
  constexpr const char* op = "scatter_rows";
  check_rows(op, from, to, rows);
  require_places(op, rows, to.rows());
  const int32_t* row = rows.as<int32_t>();
  parallel_.for_range(to.rows(), 32, [&](int64_t begin, int64_t end) {
    if (begin < end) std::memset(row_of(to, begin), 0, static_cast<size_t>(end - begin) * row_bytes(to));
  });
  parallel_.for_range(from.rows(), 32, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (row[i] >= 0) std::memcpy(row_of(to, row[i]), row_of(from, i), row_bytes(to));
    }
  });
}

void CpuOps::add_scaled_rows(Tensor to, Tensor from, Tensor rows, Tensor factors) {
  const cpu::HostScope scope = timed({.kind = OpKind::Loss, .op = "add_scaled_rows"});
  constexpr const char* op = "add_scaled_rows";
  check_scaled_rows(op, to, from, rows, factors);
  require_places(op, rows, from.rows());
  const int32_t* row = rows.as<int32_t>();
  const float* factor = factors.as<float>();
  const int64_t width = to.cols();
  cpu::dispatch_real(op, to.dtype, [&]<class To>(To) {
    cpu::dispatch_real(op, from.dtype, [&]<class From>(From) {
      parallel_.for_range(to.rows(), 32, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          if (row[i] < 0) continue;
          To* out = to.as<To>() + i * width;
          const From* in = from.as<From>() + row[i] * width;
          for (int64_t c = 0; c < width; ++c)
            out[c] = cpu::store<To>(cpu::load(out[c]) + factor[i] * cpu::load(in[c]));
        }
      });
    });
  });
}

void CpuOps::add_to_rows(Tensor to, Tensor from, Tensor rows, Tensor factors) {
  const cpu::HostScope scope = timed({.kind = OpKind::Loss, .op = "add_to_rows"});
  constexpr const char* op = "add_to_rows";
  check_scaled_rows(op, from, to, rows, factors);
  require_places(op, rows, to.rows());
  cpu::dispatch_real(op, to.dtype, [&]<class To>(To) {
    cpu::dispatch_real(op, from.dtype, [&]<class From>(From) {
      cpu::scatter_add(parallel_, scratch(), to.as<To>(), from.as<From>(), rows.as<int32_t>(),
                       factors.as<float>(), from.rows(), to.cols());
    });
  });
}

void CpuOps::add_outer(Tensor to, Tensor column, Tensor row, float factor) {
  const cpu::HostScope scope = timed({.kind = OpKind::Loss, .op = "add_outer"});
  check_outer(to, column, row);
  const int64_t width = to.cols();
  cpu::dispatch_real("add_outer", to.dtype, [&]<class To>(To) {
    parallel_.for_range(to.rows(), 32, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        To* out = to.as<To>() + i * width;
        const float scale = column ? column.as<float>()[i] : 1.0f;
        for (int64_t c = 0; c < width; ++c)
          out[c] = cpu::store<To>(cpu::load(out[c]) + scale * (factor * row.as<float>()[c]));
      }
    });
  });
}

void CpuOps::add_column_sum(Tensor column_sum, Tensor x, Tensor factors, float factor) {
  const cpu::HostScope scope = timed({.kind = OpKind::Other, .op = "add_column_sum"});
  constexpr std::string_view op = "add_column_sum";
  check_column_sum(column_sum, x, factors);
  const int64_t width = x.cols();
  const cpu::RowChunks chunks(x.rows());
  cpu::Scratch space = scratch();
  float* partials = space.take<float>(chunks.count * width);
  cpu::dispatch_real(op, x.dtype, [&]<class T>(T) {
    parallel_.for_each(chunks.count, [&](int64_t chunk, int) {
      float* __restrict sums = partials + chunk * width;
      std::fill_n(sums, width, 0.0f);
      for (int64_t r = chunks.begin(chunk); r < chunks.end(chunk); ++r) {
        const T* row = x.as<T>() + r * width;
        const float scale = factors ? factors.as<float>()[r] : 1.0f;
        for (int64_t c = 0; c < width; ++c) sums[c] += scale * cpu::load(row[c]);
      }
    });
  });
  cpu::dispatch_real(op, column_sum.dtype, [&]<class G>(G) {
    G* out = column_sum.as<G>();
    for (int64_t chunk = 1; chunk < chunks.count; ++chunk) {
      for (int64_t c = 0; c < width; ++c) partials[c] += partials[chunk * width + c];
    }
    if (chunks.count == 0) return;
    for (int64_t c = 0; c < width; ++c) out[c] = cpu::store<G>(cpu::load(out[c]) + factor * partials[c]);
  });
}

void CpuOps::shift_rows(Tensor to, Tensor row, Tensor targets, float factor) {
  const cpu::HostScope scope = timed({.kind = OpKind::Loss, .op = "shift_rows"});
  check_shift_rows(to, row, targets);
  const int64_t width = to.cols(), groups = div_up(width, 8);
  // Computed before the loop, so that no compiler merges the product into the sum: finite results have the same bits on
  // every device.
  std::vector<float> shift(static_cast<size_t>(width));
  std::ranges::transform(row.span<float>(), shift.begin(), [&](float x) { return factor * x; });
  cpu::dispatch_real("shift_rows", to.dtype, [&]<class To>(To) {
    parallel_.for_range(to.rows(), 32, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (targets.as<int32_t>()[i] < 0) continue;
        To* out = to.as<To>() + i * width;
        RoundingBits noise{};
        for (int64_t c = 0; c < width; ++c) {
          const float x = cpu::load(out[c]) + shift[static_cast<size_t>(c)];
          if constexpr (sizeof(To) == 2) {
            if (c % 8 == 0) noise = shift_noise(i, groups, c / 8);
            if (std::isfinite(x)) {
              out[c].bits = to_bf16_stochastic(x, noise.weight(static_cast<int>(c % 8)));
              continue;
            }
          }
          out[c] = cpu::store<To>(x);
        }
      }
    });
  });
}

}  // namespace octet
