#pragma once

#include <span>
#include <string>
#include <vector>

#include "io/gguf.h"
#include "model/parameters.h"

namespace octet {

// Where the values of a tensor of a GGUF file come from.
struct GgufSource {
  static constexpr size_t kRopeFactors = SIZE_MAX;
  size_t parameter = 0;  // index in the table, or kRopeFactors
  int64_t row_begin = 0;
  // Rows of each head pair, if the rows of queries or keys are reordered: row r of a head comes from its half r % 2.
  int64_t head_dim = 0;  // 0: rows in their order
  // The row of the parameter that row `row` of the tensor holds.
  int64_t source_row(int64_t row) const;
};

// Adds the keys of the architecture and the tensors of the model, in llama.cpp's names. `type` is that of matrices;
// vectors, the positions of GPT-2 and matrices that the type cannot hold have others. Returns the sources of the tensors.
std::vector<GgufSource> add_gguf_model(GgufWriter& writer, const ModelConfig& config,
                                       std::span<const ParameterSpec> table, GgmlType type);

// The factors by which the rotary frequencies are divided (D / 2); none if the config does not scale them.
std::vector<float> rope_factors(const ModelConfig& config);

}  // namespace octet
