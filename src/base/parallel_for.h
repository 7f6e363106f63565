#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

namespace octet {

// fn(begin, end) for [0, count) cut into pieces of `grain`; returns when all are done. For host loops over weights: they
// are read, converted, checked or copied. All these loops share one pool of default_threads() threads, which starts with
// the first loop of more than one piece. Free threads take the next piece.
// The caller alone does a loop of one piece, a loop inside a loop, and a loop while another thread uses the pool.
// All pieces run even if some throw. Of several errors the one of the first piece is thrown at the end.
void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& fn);

int parallel_threads();  // of the pool, including the caller

// A piece of simple work, such as the conversion of a float: enough to be worth waking a thread.
inline constexpr int64_t kElementsPerPiece = int64_t{1} << 16;

// Rows of `cols` elements that make such a piece.
constexpr int64_t rows_per_piece(int64_t cols) {
  return std::max<int64_t>(1, kElementsPerPiece / std::max<int64_t>(1, cols));
}

}  // namespace octet
