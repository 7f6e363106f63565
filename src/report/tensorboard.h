#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "report/append_file.h"
#include "report/step_record.h"

namespace octet {

// Counts of values in buckets: bucket i holds the values in [limits[i-1], limits[i]), the first everything below.
struct Histogram {
  double min = 0, max = 0;
  double count = 0, sum = 0, sum_squares = 0;
  std::vector<double> limits;
  std::vector<double> counts;  // as many as limits
  int64_t nonfinite = 0;       // NaN and infinite values, which are in none of the above
};

// In TensorBoard's own exponential buckets (each a tenth wider than the last), without empty buckets at the ends.
Histogram make_histogram(std::span<const float> values);

using HParam = std::variant<bool, int64_t, double, std::string>;
using HParams = std::vector<std::pair<std::string, HParam>>;

// Writes one TensorBoard event file into a run's folder: TFRecords of tensorflow.Event messages, encoded by hand. Each
// record is written at once: a killed run loses at most its last record. Steps of a resumed run go into a new file of
// the same folder. A failure to write is reported once and does not stop the run.
class TensorBoardWriter {
 public:
  // `first_step` is the first step that will be logged: TensorBoard then drops what an earlier file of the
  // folder has from this step on. Error where the file cannot be created.
  explicit TensorBoardWriter(const std::filesystem::path& folder,
                             std::optional<int64_t> first_step = std::nullopt);

  // All that the record holds, in one event: train/loss, train/lr, train/grad_norm, train/epoch,
  // train/tokens, train/penalty, perf/step_ms, perf/tokens_per_second, eval/loss, the numbers of fp8_json as
  // fp8/..., samples/N as text, and the precision as text where it changes.
  void step(const StepRecord& record);

  void scalar(std::string_view tag, int64_t step, double value);
  void histogram(std::string_view tag, int64_t step, const Histogram& histogram);
  void text(std::string_view tag, int64_t step, std::string_view markdown);
  // The run's settings, as a text table and for the HPARAMS tab. Call it once, before the first step.
  void hparams(const HParams& values);

  const std::filesystem::path& path() const { return file_.path(); }
  bool is_gone() const { return file_.is_gone(); }
  void write_anew() { file_.write_anew(); }

 private:
  void write_record(std::string_view event);

  AppendFile file_;
  std::string precision_;  // last written
};

}  // namespace octet
