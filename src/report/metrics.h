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
// tokens_per_second, tokens, precision, and those that the record has of penalty, eval_loss, tasks, samples, time,
// data_wait_ms, memory_bytes, gpu, red_flags, fp8 and others (docs/formats.md). A
// number that JSON cannot hold is null, and a second field names it: "loss": null, "loss_text": "nan" ("inf", "-inf").
std::string metrics_line(const StepRecord& record);

// Appends to a run's metrics.jsonl, each line in one write, so that a killed run leaves at most one torn
// line, at the end; opening the file cuts that off with a warning. A failure to write is reported once and
// does not stop the run; the lines wait in memory and are tried again.
class MetricsWriter {
 public:
  explicit MetricsWriter(const std::filesystem::path& path);  // Error where it cannot be opened

  bool write(const StepRecord& record);  // whether the line and all before it are in the file

  bool is_gone() const { return file_.is_gone(); }
  void write_anew() { file_.write_anew(); }

 private:
  AppendFile file_;
};

// All records of a file in its order. An incomplete last line is skipped with a warning; anything else that is not
// a record is an Error naming file, line and field. Missing numbers are NaN (0 for integers). Unknown fields are
// ignored.
std::vector<StepRecord> read_metrics(const std::filesystem::path& path);

// One line of the file; `place` is "file:line" for the Error of a line that is not a record.
StepRecord parse_metrics_line(std::string_view line, const std::string& place);

// A run resumed from an earlier checkpoint repeats some steps. Keeps the last record per step, so that the steps
// rise.
std::vector<StepRecord> drop_superseded(std::vector<StepRecord> records);

// Totals of the records that are there, for a run that continues after `step`; also of records that it will repeat.
// Lines that are no records are skipped. All empty without a file.
struct EarlierTotals {
  std::optional<double> device_seconds,
      energy_joules;                   // the last ones: also repeated steps have cost something
  std::vector<std::string> red_flags;  // kinds that were raised up to `step`
};
EarlierTotals earlier_totals(const std::filesystem::path& path, int64_t step);

// Removes the records after `step` (and an incomplete last line) from a file, for a run that continues from `step`. The
// other lines keep their bytes. `replace` replaces the content of a file at once.
void keep_metrics_until(const std::filesystem::path& path, int64_t step,
                        const std::function<void(const std::string& path, std::string_view text)>& replace);

}  // namespace octet
