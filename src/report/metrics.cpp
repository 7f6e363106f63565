#include "report/metrics.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "base/regular_file.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void put_number(Json& object, const std::string& name, double value) {
  if (std::isfinite(value)) {
    object[name] = value;
  } else {
    object[name] = nullptr;
    object[name + "_text"] = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  }
}

bool is_json_object(std::string_view line) {
  return Json::parse(line, nullptr, false).is_object();
}

// Reads the fields of one line; `place` is "file:line" for messages.
class LineReader {
 public:
  LineReader(const Json& object, const std::string& place) : object_(object), place_(place) {}

  std::optional<double> number(const std::string& name) const {
    const auto field = object_.find(name);
    if (field == object_.end()) return std::nullopt;
    if (field->is_number()) return field->get<double>();
    if (!field->is_null()) wrong(name, *field, "a number");
    const auto text = object_.find(name + "_text");
    if (text == object_.end() || *text == "nan") return kNan;
    if (*text == "inf") return std::numeric_limits<double>::infinity();
    if (*text == "-inf") return -std::numeric_limits<double>::infinity();
    wrong(name + "_text", *text, "nan, inf or -inf");
  }

  std::optional<int64_t> integer(const std::string& name) const {
    const auto field = object_.find(name);
    if (field == object_.end()) return std::nullopt;
    if (!field->is_number_integer() || (field->is_number_unsigned() && field->get<uint64_t>() > kLargest)) {
      wrong(name, *field, "an integer");
    }
    return field->get<int64_t>();
  }

  std::string string(const std::string& name) const {
    const auto field = object_.find(name);
    if (field == object_.end()) return "";
    if (!field->is_string()) wrong(name, *field, "a string");
    return field->get<std::string>();
  }

  // The fields whose names begin with `prefix`, without it; and the fields of the object `name`.
  std::vector<std::pair<std::string, double>> numbers_with_prefix(std::string_view prefix) const {
    std::vector<std::pair<std::string, double>> result;
    for (const auto& [name, value] : object_.items()) {
      if (name.starts_with(prefix) && (value.is_number() || value.is_null()))
        result.emplace_back(name.substr(prefix.size()), *number(name));
    }
    return result;
  }
  std::vector<std::pair<std::string, double>> numbers(const std::string& name) const {
    const auto field = object_.find(name);
    if (field == object_.end()) return {};
    if (!field->is_object()) wrong(name, *field, "an object of numbers");
    return LineReader(*field, place_).numbers_with_prefix("");
  }

  const Json* object(const std::string& name) const {
    const auto field = object_.find(name);
    if (field == object_.end()) return nullptr;
    if (!field->is_object()) wrong(name, *field, "an object");
    return &*field;
  }

  std::vector<RedFlag> red_flags() const {
    std::vector<RedFlag> result;
    const auto field = object_.find("red_flags");
    if (field == object_.end()) return result;
    if (!field->is_array()) wrong("red_flags", *field, "an array of objects");
    for (const Json& element : *field) {
      if (!element.is_object()) wrong("red_flags", element, "an array of objects");
      const LineReader flag(element, place_);
      result.push_back({flag.string("kind"), flag.string("text")});
    }
    return result;
  }

  std::vector<std::string> strings(const std::string& name) const {
    std::vector<std::string> result;
    const auto field = object_.find(name);
    if (field == object_.end()) return result;
    if (!field->is_array()) wrong(name, *field, "an array of strings");
    for (const Json& element : *field) {
      if (!element.is_string()) wrong(name, element, "an array of strings");
      result.push_back(element.get<std::string>());
    }
    return result;
  }

 private:
  static constexpr uint64_t kLargest = std::numeric_limits<int64_t>::max();

  [[noreturn]] void wrong(const std::string& name, const Json& value, const char* expected) const {
    std::string shown = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (shown.size() > 60) shown = shown.substr(0, 57) + "...";
    fail("[metrics] {}: '{}' is {}, expected {}", place_, name, shown, expected);
  }

  const Json& object_;
  const std::string& place_;
};

GpuFigures gpu_figures(const Json& object, const std::string& place) {
  const LineReader line(object, place);
  return {.power_watts = line.number("power_watts").value_or(kNan),
          .energy_joules = line.number("energy_joules").value_or(kNan),
          .utilization = line.number("utilization").value_or(kNan),
          .sm_clock_mhz = line.number("sm_clock_mhz").value_or(kNan),
          .temperature_c = line.number("temperature_c").value_or(kNan),
          .throttled = line.string("throttled")};
}

Json to_json(const GpuFigures& gpu) {
  Json object;
  put_number(object, "power_watts", gpu.power_watts);
  put_number(object, "energy_joules", gpu.energy_joules);
  put_number(object, "utilization", gpu.utilization);
  put_number(object, "sm_clock_mhz", gpu.sm_clock_mhz);
  put_number(object, "temperature_c", gpu.temperature_c);
  if (!gpu.throttled.empty()) object["throttled"] = gpu.throttled;
  return object;
}

StepRecord record_of(const Json& object, const std::string& place) {
  const LineReader line(object, place);
  StepRecord record;
  const auto step = line.integer("step");
  require(step.has_value(), "[metrics] {}: no field 'step', expected one in every line", place);
  record.step = *step;
  record.epoch = line.number("epoch").value_or(kNan);
  record.loss = line.number("loss").value_or(kNan);
  record.penalty = line.number("penalty");
  record.lr = line.number("lr").value_or(kNan);
  record.grad_norm = line.number("grad_norm").value_or(kNan);
  record.step_ms = line.number("step_ms").value_or(kNan);
  record.tokens_per_second = line.number("tokens_per_second").value_or(kNan);
  record.tokens = line.integer("tokens").value_or(0);
  record.precision = line.string("precision");
  record.eval_loss = line.number("eval_loss");
  record.eval_losses = line.numbers_with_prefix("eval_loss/");
  record.task_scores = line.numbers("tasks");
  record.samples = line.strings("samples");
  record.skipped_steps = line.integer("skipped_steps").value_or(0);
  record.loss_spike = line.number("loss_spike");
  record.grad_norm_spike = line.number("grad_norm_spike");
  record.time = line.number("time");
  record.device_seconds = line.number("device_seconds");
  record.data_wait_ms = line.number("data_wait_ms");
  record.memory_bytes = line.integer("memory_bytes");
  if (const Json* gpu = line.object("gpu")) record.gpu = gpu_figures(*gpu, place);
  record.red_flags = line.red_flags();
  record.graph_replays = line.integer("graph_replays");
  if (const auto fp8 = object.find("fp8"); fp8 != object.end()) record.fp8_json = fp8->dump();
  record.fp8_fwd_scale = line.number("fp8_fwd_scale");
  record.fp8_bwd_scale = line.number("fp8_bwd_scale");
  return record;
}

std::ifstream open_metrics(const std::filesystem::path& path) {
  require_regular_file(path.string());
  return std::ifstream(path, std::ios::binary);
}

}  // namespace

std::string metrics_line(const StepRecord& record) {
  Json object;
  object["step"] = record.step;
  put_number(object, "epoch", record.epoch);
  put_number(object, "loss", record.loss);
  if (record.penalty) put_number(object, "penalty", *record.penalty);
  put_number(object, "lr", record.lr);
  put_number(object, "grad_norm", record.grad_norm);
  put_number(object, "step_ms", record.step_ms);
  put_number(object, "tokens_per_second", record.tokens_per_second);
  object["tokens"] = record.tokens;
  object["precision"] = record.precision;
  if (record.eval_loss) put_number(object, "eval_loss", *record.eval_loss);
  for (const auto& [name, loss] : record.eval_losses) put_number(object, "eval_loss/" + name, loss);
  for (const auto& [name, score] : record.task_scores) put_number(object["tasks"], name, score);
  if (!record.samples.empty()) object["samples"] = record.samples;
  if (record.skipped_steps > 0) object["skipped_steps"] = record.skipped_steps;
  if (record.loss_spike) put_number(object, "loss_spike", *record.loss_spike);
  if (record.grad_norm_spike) put_number(object, "grad_norm_spike", *record.grad_norm_spike);
  if (record.graph_replays) object["graph_replays"] = *record.graph_replays;
  if (record.checkpoint) {
    object["checkpoint"] = {{"step", record.checkpoint->step},
                            {"bytes", record.checkpoint->bytes},
                            {"wait_ms", record.checkpoint->wait_ms},
                            {"write_seconds", record.checkpoint->write_seconds}};
  }
  if (record.time) put_number(object, "time", *record.time);
  if (record.device_seconds) put_number(object, "device_seconds", *record.device_seconds);
  if (record.data_wait_ms) put_number(object, "data_wait_ms", *record.data_wait_ms);
  if (record.memory_bytes) object["memory_bytes"] = *record.memory_bytes;
  if (record.gpu) object["gpu"] = to_json(*record.gpu);
  for (const RedFlag& flag : record.red_flags)
    object["red_flags"].push_back({{"kind", flag.kind}, {"text", flag.text}});
  if (record.fp8_fwd_scale) put_number(object, "fp8_fwd_scale", *record.fp8_fwd_scale);
  if (record.fp8_bwd_scale) put_number(object, "fp8_bwd_scale", *record.fp8_bwd_scale);
  if (record.fp8_json) {
    Json fp8 = Json::parse(*record.fp8_json, nullptr, false);
    if (fp8.is_discarded()) {
      object["fp8"] = nullptr;
      object["fp8_text"] = *record.fp8_json;
    } else {
      object["fp8"] = std::move(fp8);
    }
  }
  // Samples are the model's bytes: what is not UTF-8 in them becomes U+FFFD.
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

MetricsWriter::MetricsWriter(const std::filesystem::path& path) : file_(path, "metrics") {
  file_.mend_last_line(is_json_object);
}

bool MetricsWriter::write(const StepRecord& record) {
  return file_.append(metrics_line(record) + "\n");
}

StepRecord parse_metrics_line(std::string_view line, const std::string& place) {
  const Json object = Json::parse(line, nullptr, false);
  require(object.is_object(), "[metrics] {}: not a JSON object, expected one per line", place);
  return record_of(object, place);
}

std::vector<StepRecord> read_metrics(const std::filesystem::path& path) {
  std::ifstream file = open_metrics(path);
  require(file.is_open(), "[metrics] {}: cannot be opened, expected the metrics.jsonl of a run",
          path.string());
  std::vector<StepRecord> records;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    const bool torn = file.eof();  // getline met the end before a newline
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string place = fmt::format("{}:{}", path.string(), number);
    const Json object = Json::parse(line, nullptr, false);
    if (object.is_discarded()) {
      if (!torn) {
        fail("[metrics] {}: not JSON: {}, expected one object per line", place,
             line.size() > 60 ? line.substr(0, 57) + "..." : line);
      }
      log_warning("[metrics] {}: the last line is incomplete, as after a kill; it is skipped", place);
      break;
    }
    require(object.is_object(), "[metrics] {}: JSON of type {}, expected an object", place,
            object.type_name());
    records.push_back(record_of(object, place));
  }
  require(!file.bad(), "[metrics] {}: reading failed", path.string());
  return records;
}

std::vector<StepRecord> drop_superseded(std::vector<StepRecord> records) {
  std::vector<StepRecord> kept;
  for (StepRecord& record : records) {
    while (!kept.empty() && kept.back().step >= record.step) kept.pop_back();
    kept.push_back(std::move(record));
  }
  return kept;
}

EarlierTotals earlier_totals(const std::filesystem::path& path, int64_t step) {
  EarlierTotals totals;
  std::ifstream file = open_metrics(path);
  for (std::string line; std::getline(file, line);) {
    try {
      const StepRecord record = parse_metrics_line(line, path.string());
      if (record.device_seconds) totals.device_seconds = record.device_seconds;
      if (record.gpu) totals.energy_joules = record.gpu->energy_joules;
      if (record.step > step) continue;
      for (const RedFlag& flag : record.red_flags) totals.red_flags.push_back(flag.kind);
    } catch (const Error&) {  // keep_metrics_until() warns of it
    }
  }
  return totals;
}

void keep_metrics_until(const std::filesystem::path& path, int64_t step,
                        const std::function<void(const std::string&, std::string_view)>& replace) {
  std::ifstream file = open_metrics(path);
  if (!file.is_open()) return;  // the run was stopped before its first record
  std::string kept, line;
  int64_t later = 0, unreadable = 0;
  while (std::getline(file, line)) {
    const Json object = Json::parse(line, nullptr, false);
    if (file.eof() || !object.is_object() || !object.contains("step") ||
        !object["step"].is_number_integer()) {
      unreadable += !line.empty();
    } else if (object["step"].get<int64_t>() > step) {
      ++later;
    } else {
      kept += fmt::format("{}\n", line);
    }
  }
  if (later == 0 && unreadable == 0) return;
  if (unreadable > 0)
    log_warning("[metrics] {}: {} lines are not records and are removed", path.string(), unreadable);
  replace(path.string(), kept);
}

}  // namespace octet
