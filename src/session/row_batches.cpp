#include "session/row_batches.h"

#include "base/checked.h"
#include "base/error.h"

namespace octet {
namespace {

void check_ids(std::span<const int32_t> ids, const char* name, int64_t length, int64_t vocab,
               bool may_be_ignored) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if ((ids[i] >= 0 && ids[i] < vocab) || (may_be_ignored && ids[i] == kIgnoredLabel)) continue;
    const auto at = static_cast<int64_t>(i);
    fail_config("[{}] row {}, column {} is {}; expected 0 to {}{}", name, at / length, at % length, ids[i],
                vocab - 1, may_be_ignored ? fmt::format(", or {} to ignore it", kIgnoredLabel) : "");
  }
}

void check(const Rows& rows, const RunShape& shape, int64_t vocab) {
  const int64_t count = std::ssize(rows.input_ids);
  if (count == 0) fail_config("[input_ids] holds no ids");
  if (rows.length < 1 || count % rows.length != 0)
    fail_config("[input_ids] has {} ids, which are no rows of {}", count, rows.length);
  if (rows.length > shape.length)
    fail_config("[input_ids] has rows of {}; expected at most max_seq_length, which is {}", rows.length,
                shape.length);
  if (!rows.labels.empty() && rows.labels.size() != rows.input_ids.size())
    fail_config("[labels] has {} labels; expected {}, as many as input_ids", rows.labels.size(), count);
  check_ids(rows.input_ids, "input_ids", rows.length, vocab, false);
  check_ids(rows.labels, "labels", rows.length, vocab, true);
}

// Places behind the last label that is not ignored teach nothing: they are padding, as those that callers add.
size_t used_length(std::span<const int32_t> labels) {
  size_t used = labels.size();
  while (used > 0 && labels[used - 1] == kIgnoredLabel) --used;
  return used;
}

// A document in the first places of a row, and padding in the others.
void add_row(Batch& batch, std::span<const int32_t> ids, std::span<const int32_t> labels) {
  const auto begin = narrow<int32_t>(std::ssize(batch.tokens));
  const auto length = static_cast<int64_t>(batch.length), filled = std::ssize(ids);
  if (filled > 0) batch.document_starts.push_back(begin);
  if (filled < length) batch.document_starts.push_back(begin + static_cast<int32_t>(filled));
  for (int64_t t = 0; t < length; ++t) {
    const bool is_padding = t >= filled;
    const bool has_next = t + 1 < filled && labels[static_cast<size_t>(t + 1)] != kIgnoredLabel;
    batch.tokens.push_back(is_padding ? 0 : ids[static_cast<size_t>(t)]);
    batch.targets.push_back(has_next ? labels[static_cast<size_t>(t + 1)] : kIgnoreTarget);
    batch.positions.push_back(static_cast<int32_t>(is_padding ? t - filled : t));
    batch.target_count += has_next;
  }
  batch.token_count += filled;
}

}  // namespace

std::vector<Batch> row_batches(const Rows& rows, const RunShape& shape, int64_t vocab) {
  check(rows, shape, vocab);
  const std::span<const int32_t> labels = rows.labels.empty() ? rows.input_ids : rows.labels;
  const int64_t count = std::ssize(rows.input_ids) / rows.length;
  std::vector<Batch> batches;
  for (int64_t first = 0; first < count; first += shape.rows) {
    Batch& batch = batches.emplace_back(Batch{.rows = shape.rows, .length = shape.length});
    for (int64_t row = first; row < first + shape.rows; ++row) {
      std::span<const int32_t> row_labels;  // none behind the last row
      const auto begin = static_cast<size_t>(row * rows.length);
      if (row < count) row_labels = labels.subspan(begin, static_cast<size_t>(rows.length));
      const size_t used = used_length(row_labels);
      add_row(batch, used > 0 ? rows.input_ids.subspan(begin, used) : row_labels.first(0),
              row_labels.first(used));
    }
    batch.document_starts.push_back(narrow<int32_t>(std::ssize(batch.tokens)));
  }
  return batches;
}

}  // namespace octet
