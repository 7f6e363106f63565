#pragma once

#include <cstdint>
#include <vector>

namespace octet {

constexpr int32_t kIgnoreTarget = -1;

// One micro-batch on the host: `rows` rows of `length` places, flattened to N = rows * length. A row holds one or
// more documents (packed) or a part of one. Attention and positions never cross a document border. Places without a
// document are padding: their own document, without targets.
struct Batch {
  int64_t rows = 0;
  int64_t length = 0;
  std::vector<int32_t> tokens;           // (N)
  std::vector<int32_t> targets;          // (N) the next token, or kIgnoreTarget where no loss is taken
  std::vector<int32_t> positions;        // (N) position inside the token's own document
  std::vector<int32_t> document_starts;  // (documents + 1) offsets into N from 0 to N; rows start documents
  // For objectives. `weights`: of each place's loss, relative to the other places; empty: all 1.
  std::vector<float> weights;      // (N)
  std::vector<int32_t> sequences;  // (N) which sequence the place's target belongs to; empty: there are none
  int64_t token_count = 0;         // places that are not padding: what throughput and totals count
  int64_t target_count = 0;        // targets that are not kIgnoreTarget
};

}  // namespace octet
