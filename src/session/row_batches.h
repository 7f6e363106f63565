#pragma once

#include <vector>

#include "data/loading/batch.h"
#include "model/run_shape.h"
#include "octet/session.h"

namespace octet {

// The value of Rows::labels where nothing is trained, as in Hugging Face's datasets.
constexpr int32_t kIgnoredLabel = -100;

// As many micro-batches of this shape as the rows need. Short rows are filled up with padding, and so is the last
// micro-batch. ConfigError that names row and column of what is wrong.
std::vector<Batch> row_batches(const Rows& rows, const RunShape& shape, int64_t vocab);

}  // namespace octet
