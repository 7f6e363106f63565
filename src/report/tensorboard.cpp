#include "report/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/crc32c.h"
#include "base/error.h"
#include "report/protobuf.h"
#include "report/text.h"

namespace octet {
namespace {

// Field numbers of tensorflow/core/util/event.proto, framework/summary.proto, framework/tensor.proto and
// tensorboard/plugins/hparams/plugin_data.proto, as far as they are used here.
namespace event {
constexpr uint32_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
constexpr uint32_t kSessionStatus = 1;
constexpr int64_t kSessionStart = 1;
}  // namespace event
namespace summary {
constexpr uint32_t kValue = 1;
constexpr uint32_t kTag = 1, kSimpleValue = 2, kHistogram = 5, kTensor = 8, kMetadata = 9;
constexpr uint32_t kPluginData = 1, kPluginName = 1, kPluginContent = 2;
}  // namespace summary
namespace tensor {
constexpr uint32_t kDtype = 1, kShape = 2, kStringValue = 8;
constexpr uint32_t kDimension = 2, kDimensionSize = 1;
constexpr int64_t kFloat = 1, kString = 7;
}  // namespace tensor
namespace hparams_data {
constexpr uint32_t kVersion = 1, kSessionStartInfo = 3;
constexpr uint32_t kHparams = 1, kStartTime = 5;
constexpr uint32_t kMapKey = 1, kMapValue = 2;
constexpr uint32_t kNumber = 2, kString = 3, kBool = 4;  // of google.protobuf.Value
}  // namespace hparams_data

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// TensorBoard reads the files of a folder in the order of their names, so the time comes first.
std::filesystem::path event_file(const std::filesystem::path& folder) {
  static std::atomic<int> count = 0;
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host = {'l', 'o', 'c', 'a', 'l'};
  return folder / fmt::format("events.out.tfevents.{:010}.{}.{}.{}", static_cast<int64_t>(wall_time()),
                              host.data(), getpid(), count++);
}

ProtoMessage make_event(std::optional<int64_t> step) {
  ProtoMessage message;
  message.number(event::kWallTime, wall_time());
  if (step) message.integer(event::kStep, *step);
  return message;
}

ProtoMessage scalar_value(std::string_view tag, double value) {
  ProtoMessage message;
  message.bytes(summary::kTag, tag).number(summary::kSimpleValue, static_cast<float>(value));
  return message;
}

ProtoMessage plugin_metadata(std::string_view name, std::string_view content) {
  ProtoMessage plugin, metadata;
  plugin.bytes(summary::kPluginName, name).bytes(summary::kPluginContent, content);
  return metadata.message(summary::kPluginData, plugin);
}

ProtoMessage vector_shape(int64_t size) {
  ProtoMessage dimension, shape;
  dimension.integer(tensor::kDimensionSize, size);
  return shape.message(tensor::kDimension, dimension);
}

ProtoMessage text_value(std::string_view tag, std::string_view markdown) {
  ProtoMessage content, message;
  content.integer(tensor::kDtype, tensor::kString)
      .message(tensor::kShape, vector_shape(1))
      .bytes(tensor::kStringValue, terminal_safe(markdown));  // the plug-in cannot show what is not UTF-8
  return message.bytes(summary::kTag, tag)
      .message(summary::kTensor, content)
      .message(summary::kMetadata, plugin_metadata("text", ""));
}

// The plug-in reads its data from the metadata; the tensor only has to be there.
ProtoMessage hparams_value(std::string_view tag, uint32_t field, const ProtoMessage& info) {
  ProtoMessage data, content, message;
  data.integer(hparams_data::kVersion, 0).message(field, info);
  content.integer(tensor::kDtype, tensor::kFloat).message(tensor::kShape, vector_shape(0));
  return message.bytes(summary::kTag, tag)
      .message(summary::kTensor, content)
      .message(summary::kMetadata, plugin_metadata("hparams", data.encoded()));
}

// A sample as markdown shows it unchanged: a block of code.
std::string code_block(std::string_view text) {
  std::string result = "    ";
  for (const char c : text) {
    result += c;
    if (c == '\n') result += "    ";
  }
  return result;
}

std::string table_cell(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '|') result += '\\';
    result += c == '\n' ? ' ' : c;
  }
  return result;
}

// Adds each number of `json` as a scalar named after its path.
void add_json_numbers(ProtoMessage& values, const std::string& path, const nlohmann::json& json,
                      int depth = 0) {
  constexpr int kDeepest = 8;
  if (json.is_number()) {
    values.message(summary::kValue, scalar_value(path, json.get<double>()));
  } else if (json.is_structured() && depth < kDeepest) {
    for (const auto& [key, value] : json.items())
      add_json_numbers(values, path + "/" + key, value, depth + 1);
  }
}

std::vector<double> make_bucket_limits() {
  std::vector<double> positive;
  for (double limit = 1e-12; limit < 1e20; limit *= 1.1) positive.push_back(limit);
  positive.push_back(std::numeric_limits<double>::max());
  std::vector<double> limits;
  for (auto limit = positive.rbegin(); limit != positive.rend(); ++limit) limits.push_back(-*limit);
  limits.push_back(0);
  limits.insert(limits.end(), positive.begin(), positive.end());
  return limits;
}

}  // namespace

Histogram make_histogram(std::span<const float> values) {
  static const std::vector<double> limits = make_bucket_limits();
  std::vector<double> counts(limits.size());
  Histogram result;
  result.min = std::numeric_limits<double>::max();
  result.max = std::numeric_limits<double>::lowest();
  for (const float value : values) {
    if (!std::isfinite(value)) {
      ++result.nonfinite;
      continue;
    }
    const double x = value;
    result.min = std::min(result.min, x);
    result.max = std::max(result.max, x);
    result.count += 1;
    result.sum += x;
    result.sum_squares += x * x;
    counts[static_cast<size_t>(std::upper_bound(limits.begin(), limits.end(), x) - limits.begin())] += 1;
  }
  if (result.count == 0) {
    result.min = result.max = 0;
    result.limits = {0};
    result.counts = {0};
    return result;
  }
  const auto used = [](double count) { return count > 0; };
  const auto first = std::find_if(counts.begin(), counts.end(), used) - counts.begin();
  const auto last = counts.rend() - std::find_if(counts.rbegin(), counts.rend(), used);  // one past it
  // The empty bucket before the first used one gives that its lower border.
  const auto begin = std::max<std::ptrdiff_t>(first - 1, 0);
  result.limits.assign(limits.begin() + begin, limits.begin() + last);
  result.counts.assign(counts.begin() + begin, counts.begin() + last);
  return result;
}

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder, std::optional<int64_t> first_step)
    : file_(event_file(folder), "tensorboard") {
  write_record(make_event(std::nullopt).bytes(event::kFileVersion, "brain.Event:2").encoded());
  if (first_step) {
    ProtoMessage session;
    session.integer(event::kSessionStatus, event::kSessionStart);
    write_record(make_event(first_step).message(event::kSessionLog, session).encoded());
  }
}

void TensorBoardWriter::step(const StepRecord& record) {
  ProtoMessage values;
  const auto add = [&](std::string_view tag, double value) {
    values.message(summary::kValue, scalar_value(tag, value));
  };
  add("train/loss", record.loss);
  add("train/lr", record.lr);
  add("train/grad_norm", record.grad_norm);
  add("train/epoch", record.epoch);
  add("train/tokens", static_cast<double>(record.tokens));
  if (record.penalty) add("train/penalty", *record.penalty);
  add("perf/step_ms", record.step_ms);
  add("perf/tokens_per_second", record.tokens_per_second);
  if (record.eval_loss) add("eval/loss", *record.eval_loss);
  for (const auto& [name, loss] : record.eval_losses) add("eval/loss/" + name, loss);
  for (const auto& [name, score] : record.task_scores) add("tasks/" + name, score);
  if (record.skipped_steps > 0) add("train/skipped_steps", static_cast<double>(record.skipped_steps));
  if (record.loss_spike) add("train/loss_spike", *record.loss_spike);
  if (record.grad_norm_spike) add("train/grad_norm_spike", *record.grad_norm_spike);
  if (record.checkpoint) {
    add("checkpoint/wait_ms", record.checkpoint->wait_ms);
    add("checkpoint/write_seconds", record.checkpoint->write_seconds);
  }
  if (record.data_wait_ms) add("perf/data_wait_ms", *record.data_wait_ms);
  if (record.memory_bytes) add("perf/memory_bytes", static_cast<double>(*record.memory_bytes));
  if (record.gpu) {
    add("gpu/power_watts", record.gpu->power_watts);
    add("gpu/energy_joules", record.gpu->energy_joules);
    add("gpu/utilization", record.gpu->utilization);
    add("gpu/sm_clock_mhz", record.gpu->sm_clock_mhz);
    add("gpu/temperature_c", record.gpu->temperature_c);
    add("gpu/throttled", record.gpu->throttled.empty() ? 0 : 1);
  }
  for (const RedFlag& flag : record.red_flags)
    values.message(summary::kValue, text_value("red_flags/" + flag.kind, flag.text));
  if (record.fp8_fwd_scale) add("fp8/fwd_scale", *record.fp8_fwd_scale);
  if (record.fp8_bwd_scale) add("fp8/bwd_scale", *record.fp8_bwd_scale);
  if (record.fp8_json) {
    add_json_numbers(values, "fp8", nlohmann::json::parse(*record.fp8_json, nullptr, false));
  }
  for (size_t i = 0; i < record.samples.size(); ++i) {
    values.message(summary::kValue, text_value(fmt::format("samples/{}", i), code_block(record.samples[i])));
  }
  if (record.precision != precision_) {
    values.message(summary::kValue, text_value("train/precision", record.precision));
    precision_ = record.precision;
  }
  write_record(make_event(record.step).message(event::kSummary, values).encoded());
}

void TensorBoardWriter::scalar(std::string_view tag, int64_t step, double value) {
  ProtoMessage values;
  values.message(summary::kValue, scalar_value(tag, value));
  write_record(make_event(step).message(event::kSummary, values).encoded());
}

void TensorBoardWriter::histogram(std::string_view tag, int64_t step, const Histogram& histogram) {
  require(histogram.limits.size() == histogram.counts.size() && !histogram.limits.empty(),
          "[tensorboard] histogram '{}' has {} limits and {} counts, expected equal numbers, at least one",
          tag, histogram.limits.size(), histogram.counts.size());
  ProtoMessage content, value, values;
  content.number(1, histogram.min)
      .number(2, histogram.max)
      .number(3, histogram.count)
      .number(4, histogram.sum)
      .number(5, histogram.sum_squares)
      .packed(6, histogram.limits)
      .packed(7, histogram.counts);
  value.bytes(summary::kTag, tag).message(summary::kHistogram, content);
  values.message(summary::kValue, value);
  // Such values are in no bucket, and a picture without them would look healthy.
  if (histogram.nonfinite > 0) {
    values.message(summary::kValue,
                   scalar_value(fmt::format("{}/nonfinite", tag), static_cast<double>(histogram.nonfinite)));
  }
  write_record(make_event(step).message(event::kSummary, values).encoded());
}

void TensorBoardWriter::text(std::string_view tag, int64_t step, std::string_view markdown) {
  ProtoMessage values;
  values.message(summary::kValue, text_value(tag, markdown));
  write_record(make_event(step).message(event::kSummary, values).encoded());
}

void TensorBoardWriter::hparams(const HParams& values) {
  std::string markdown = "| key | value |\n| --- | --- |\n";
  ProtoMessage start;
  for (const auto& [key, value] : values) {
    ProtoMessage encoded, entry;
    std::string shown;
    if (const auto* flag = std::get_if<bool>(&value)) {
      encoded.integer(hparams_data::kBool, *flag ? 1 : 0);
      shown = *flag ? "true" : "false";
    } else if (const auto* integer = std::get_if<int64_t>(&value)) {
      encoded.number(hparams_data::kNumber, static_cast<double>(*integer));
      shown = fmt::format("{}", *integer);
    } else if (const auto* number = std::get_if<double>(&value)) {
      encoded.number(hparams_data::kNumber, *number);
      shown = fmt::format("{}", *number);
    } else {
      shown = std::get<std::string>(value);
      encoded.bytes(hparams_data::kString, terminal_safe(shown));
    }
    entry.bytes(hparams_data::kMapKey, key).message(hparams_data::kMapValue, encoded);
    start.message(hparams_data::kHparams, entry);
    markdown += fmt::format("| {} | {} |\n", table_cell(key), table_cell(shown));
  }
  start.number(hparams_data::kStartTime, wall_time());
  ProtoMessage summary_values;
  summary_values.message(summary::kValue, text_value("hparams", markdown));
  summary_values.message(
      summary::kValue, hparams_value("_hparams_/session_start_info", hparams_data::kSessionStartInfo, start));
  write_record(make_event(0).message(event::kSummary, summary_values).encoded());
}

// TFRecord: length (8 bytes), its masked CRC (4), the event, its masked CRC (4); all little-endian.
void TensorBoardWriter::write_record(std::string_view event) {
  std::string record;
  record.reserve(event.size() + 16);
  const auto add = [&](uint64_t value, int size) {
    for (int i = 0; i < size; ++i) record += static_cast<char>(value >> (8 * i));
  };
  add(event.size(), 8);
  add(crc32c_mask(crc32c(record)), 4);
  record += event;
  add(crc32c_mask(crc32c(event)), 4);
  file_.append(record);
}

}  // namespace octet
