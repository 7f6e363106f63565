#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "report/append_file.h"
#include "report/step_record.h"

namespace octet {

// One line of metrics.jsonl without its newline: the fields step, epoch, loss, lr, grad_norm, step_ms,
// tokens_per_second, tokens, precision, and penalty, eval_loss, samples and fp8 where the record has them. A
// number that JSON cannot hold is null, with its name beside it: "loss": null, "loss_text": "nan" ("inf", "-inf").
std::string metrics_line(const StepRecord& record);

// Appends to a run's metrics.jsonl, each line in one write, so that a killed run leaves at most one torn
// line, at the end; opening the file cuts that off with a warning. A failure to write is reported once and
// does not stop the run; later lines are tried again.
class MetricsWriter {
 public:
  explicit MetricsWriter(const std::filesystem::path& path);  // Error where it cannot be opened

  bool write(const StepRecord& record);  // whether the line is in the file

 private:
  AppendFile file_;
};

// All records of a file in its order. A torn last line is left out with a warning; anything else that is not
// a record is an Error naming file, line and field. Numbers that a line lacks are NaN (0 where integers);
// fields that are not known are left out.
std::vector<StepRecord> read_metrics(const std::filesystem::path& path);

// A run resumed from an earlier checkpoint writes some steps again: keeps, of each step, what was written
// last, and so leaves steps in rising order.
std::vector<StepRecord> drop_superseded(std::vector<StepRecord> records);

// Takes the records after `step` (and a torn last line) out of a file, as a run that goes on from `step` needs it. Lines
// that stay keep their bytes. `replace` puts a file's new content in place of the old in one go.
void keep_metrics_until(const std::filesystem::path& path, int64_t step,
                        const std::function<void(const std::string& path, std::string_view text)>& replace);

}  // namespace octet
