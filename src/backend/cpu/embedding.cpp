#include <algorithm>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/element.h"
#include "backend/cpu/scatter_add.h"

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
  const cpu::HostScope scope = timed({.kind = OpKind::Embedding, .op = "embedding_forward"});
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

void CpuOps::embedding_backward(Tensor dwte, Tensor dwpe, Tensor dx, Tensor tokens, Tensor positions) {
  const cpu::HostScope scope = timed({.kind = OpKind::Embedding, .op = "embedding_backward"});
  const int64_t rows = dx.rows(), width = dx.cols();
  const auto add = [&](Tensor table, Tensor ids, std::string_view what) {
    require(ids.numel() == rows && table.cols() == width, "[embedding] {}: {} ids for {} rows, table {}",
            what, ids.numel(), rows, table.shape.to_string());
    require_ids(what, ids, table.rows());
    cpu::dispatch_real("embedding", table.dtype, [&]<class G>(G) {
      cpu::dispatch_real("embedding", dx.dtype, [&]<class T>(T) {
        cpu::scatter_add(parallel_, scratch(), table.as<G>(), dx.as<T>(), ids.as<int32_t>(), nullptr, rows,
                         width);
      });
    });
  };
  if (dwte) add(dwte, tokens, "tokens");
  if (dwpe) add(dwpe, positions, "positions");
}

}  // namespace octet
