#include "report/watch_frame.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>

#include "report/plot.h"
#include "report/table.h"
#include "report/text.h"

namespace octet {
namespace {

using Kind = RunState::Kind;

constexpr size_t kRecent = 50;            // records from which speeds are taken
constexpr double kShortestSilence = 120;  // seconds: an evaluation or a save may take as long
constexpr double kSilentIntervals = 10;   // times what usually lies between two records
constexpr double kShortestStop = 10;      // seconds after which a run that nobody holds has stopped
constexpr const char *kGreenCode = "32", *kYellowCode = "33", *kRedCode = "31";

std::span<const StepRecord> recent(const RunFolder& run) {
  const std::span<const StepRecord> all(run.records);
  return all.last(std::min(all.size(), kRecent));
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Seconds per step and between records, pauses of a run that was resumed skipped; without times, those of the steps.
struct Pace {
  double per_step = 0, per_record = 0;
};
Pace pace_of(const RunFolder& run) {
  std::vector<double> per_step, per_record;
  const StepRecord* before = nullptr;
  for (const StepRecord& record : recent(run)) {
    if (before && before->time && record.time && *record.time > *before->time) {
      per_record.push_back(*record.time - *before->time);
      per_step.push_back(per_record.back() / static_cast<double>(record.step - before->step));
    }
    before = &record;
  }
  if (!per_step.empty()) {
    // Evaluations and saves fall on few records but take time as well: the mean, unless a pause spoils it.
    const double middle = median(per_step);
    double sum = 0;
    int64_t count = 0;
    for (const double seconds : per_step) {
      if (seconds > 50 * middle) continue;
      sum += seconds;
      ++count;
    }
    return {sum / static_cast<double>(count), median(per_record)};
  }
  const double ms = run.records.empty() ? 0 : run.records.back().step_ms;
  return {std::isfinite(ms) ? ms / 1e3 : 0, std::isfinite(ms) ? ms / 1e3 : 0};
}

// A run of num_train_epochs has no such key; its plan counts the steps.
int64_t max_steps_of(const RunFollower& follower) {
  const std::string text = follower.run().setting("max_steps");
  int64_t steps = 0;
  std::from_chars(text.data(), text.data() + text.size(), steps);
  return steps > 0 ? steps : follower.planned_steps();
}

const char* colour_of(Kind kind) {
  switch (kind) {
    case Kind::Running:
    case Kind::Finished:
      return kGreenCode;
    case Kind::Waiting:
    case Kind::Silent:
      return kYellowCode;
    case Kind::Stopped:
      return kRedCode;
  }
  return kRedCode;
}

std::string thousands(int64_t number) {
  return with_thousands(static_cast<double>(number));
}

// Lines of a frame. Text is cut to the width before it is coloured.
class Lines {
 public:
  explicit Lines(const FrameOptions& options) : options_(options) {}

  void add(const std::string& text, const char* colour = nullptr) {
    const std::string safe = terminal_safe(text);
    const std::string shown(truncate_to_width(safe, options_.columns));
    text_ += options_.colour && colour ? fmt::format("\x1b[{}m{}\x1b[0m\n", colour, shown) : shown + "\n";
    ++count_;
  }
  // A value that is too long continues on the next line, behind the same indentation.
  void add_field(const char* label, const std::string& value, const char* colour = nullptr) {
    const int width = std::max(20, options_.columns - kIndent);
    std::string line;
    const auto flush = [&] {
      add(fmt::format("{:<{}}{}", label, kIndent, line), colour);
      label = "";
      line.clear();
    };
    std::istringstream words(terminal_safe(value));
    for (std::string word; words >> word;) {
      if (!line.empty() && display_width(line) + 1 + display_width(word) > width) flush();
      if (!line.empty()) line += ' ';
      line += word;
    }
    flush();
  }
  int count() const { return count_; }
  const std::string& text() const { return text_; }

 private:
  static constexpr int kIndent = 12;
  const FrameOptions& options_;
  std::string text_;
  int count_ = 0;
};

// The last record that has what is asked for.
template <class Has>
const StepRecord* last_with(const RunFolder& run, const Has& has) {
  const auto found = std::find_if(run.records.rbegin(), run.records.rend(), has);
  return found == run.records.rend() ? nullptr : &*found;
}

std::string fp8_text(const StepRecord& record) {
  const nlohmann::json tensors = nlohmann::json::parse(*record.fp8_json, nullptr, false);
  if (!tensors.is_object() || tensors.empty()) return "";
  double saturated = -1, flushed = 0, lowest = INFINITY, highest = 0;
  std::string worst;
  for (const auto& [name, tensor] : tensors.items()) {
    const auto number = [&](const char* field) {
      const auto found = tensor.is_object() ? tensor.find(field) : tensor.end();
      return tensor.is_object() && found != tensor.end() && found->is_number() ? found->get<double>() : 0.0;
    };
    if (number("saturated") > saturated) {
      saturated = number("saturated");
      worst = name;
    }
    flushed = std::max(flushed, number("flushed"));
    if (const double scale = number("scale"); scale > 0) {
      lowest = std::min(lowest, scale);
      highest = std::max(highest, scale);
    }
  }
  std::string text = fmt::format("saturated at most {:.3g} %", 100 * saturated);
  if (saturated > 0) text += fmt::format(" ({})", worst);
  text += fmt::format(", flushed at most {:.3g} %", 100 * flushed);
  if (highest > 0) text += fmt::format(", scales {:.3g} to {:.3g}", lowest, highest);
  return fmt::format("{} ({} tensors at step {})", text, tensors.size(), thousands(record.step));
}

std::string gpu_text(const GpuFigures& gpu) {
  std::vector<std::string> parts;
  if (std::isfinite(gpu.utilization)) parts.push_back(fmt::format("{:.0f} % busy", 100 * gpu.utilization));
  if (std::isfinite(gpu.power_watts)) parts.push_back(fmt::format("{:.0f} W", gpu.power_watts));
  if (std::isfinite(gpu.sm_clock_mhz)) parts.push_back(fmt::format("{:.0f} MHz", gpu.sm_clock_mhz));
  if (std::isfinite(gpu.temperature_c)) parts.push_back(fmt::format("{:.0f} C", gpu.temperature_c));
  if (std::isfinite(gpu.energy_joules))
    parts.push_back(fmt::format("{:.3g} kWh so far", gpu.energy_joules / 3.6e6));
  if (!gpu.throttled.empty()) parts.push_back("throttled: " + gpu.throttled);
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string progress_line(const StepRecord& last, const RunState& state, int columns) {
  const double share =
      std::clamp(static_cast<double>(last.step) / static_cast<double>(state.max_steps), 0.0, 1.0);
  const std::string numbers = fmt::format("step {} of {} ({:.1f} %)", thousands(last.step),
                                          thousands(state.max_steps), std::floor(1000 * share) / 10);
  const int width = std::min(40, columns - display_width(numbers) - 4);
  if (width < 10) return numbers;
  const auto full = static_cast<size_t>(share * width);
  return fmt::format("{}  [{}{}]", numbers, std::string(full, '#'),
                     std::string(static_cast<size_t>(width) - full, '-'));
}

void add_figures(Lines& lines, const RunFolder& run, const RunState& state, const FrameOptions& options) {
  const StepRecord& last = run.records.back();
  lines.add(state.max_steps > 0 ? progress_line(last, state, options.columns)
                                : fmt::format("step {}", thousands(last.step)));
  double sum = 0;
  int64_t count = 0;
  for (const StepRecord& record : recent(run)) {
    if (!std::isfinite(record.loss)) continue;
    sum += record.loss;
    ++count;
  }
  std::string loss = fmt::format("{:.4f}", last.loss);
  if (count > 1) loss += fmt::format(" (mean of {}: {:.4f})", count, sum / static_cast<double>(count));
  lines.add_field("loss", fmt::format("{}, learning rate {:.2e}, norm {:.3f}, epoch {:.2f}", loss, last.lr,
                                      last.grad_norm, last.epoch));
  if (const StepRecord* record =
          last_with(run, [](const StepRecord& r) { return r.eval_loss.has_value(); })) {
    double best = INFINITY;
    for (const StepRecord& r : run.records) best = std::min(best, r.eval_loss.value_or(INFINITY));
    lines.add_field("evaluation", fmt::format("{:.4f} at step {}, best {:.4f}", *record->eval_loss,
                                              thousands(record->step), best));
  }
  if (const StepRecord* record = last_with(run, [](const StepRecord& r) { return !r.task_scores.empty(); })) {
    std::string scores;
    for (const auto& [name, score] : record->task_scores)
      scores += fmt::format("{}{} {:.4f}", scores.empty() ? "" : ", ", name, score);
    lines.add_field("tasks", fmt::format("{} at step {}", scores, thousands(record->step)));
  }
  std::string speed = fmt::format("{} tokens/s, {:.1f} ms per step",
                                  human_count(std::round(last.tokens_per_second)), last.step_ms);
  if (last.data_wait_ms && last.step_ms > 0)
    speed += fmt::format(", {:.1f} % of it waiting for data", 100 * *last.data_wait_ms / last.step_ms);
  lines.add_field("speed",
                  fmt::format("{}, {} tokens so far", speed, human_count(static_cast<double>(last.tokens))));
  if (last.memory_bytes)
    lines.add_field("memory", fmt::format("{}, {}", human_bytes(static_cast<double>(*last.memory_bytes)),
                                          last.precision));
  else
    lines.add_field("precision", last.precision);
  if (const StepRecord* record = last_with(run, [](const StepRecord& r) { return r.gpu.has_value(); }))
    lines.add_field("GPU", gpu_text(*record->gpu), record->gpu->throttled.empty() ? nullptr : kYellowCode);
  if (const StepRecord* record = last_with(run, [](const StepRecord& r) { return r.fp8_json.has_value(); })) {
    if (const std::string text = fp8_text(*record); !text.empty()) lines.add_field("FP8", text);
  }
  if (last.skipped_steps > 0)
    lines.add_field("skipped", counted(last.skipped_steps, "step") + " without a finite gradient",
                    kYellowCode);
}

void add_red_flags(Lines& lines, const RunFolder& run) {
  for (const StepRecord& record : run.records) {
    for (const RedFlag& flag : record.red_flags) {
      lines.add_field("red flag", fmt::format("{} at step {}", flag.kind, thousands(record.step)), kRedCode);
      lines.add_field("", flag.text);
    }
  }
}

std::string chart_of(const RunFolder& run, int columns, int rows) {
  const Plot plot = plot_of_runs(std::vector{&run});
  return plot.panels.empty() ? "" : plot_terminal(plot, plot.panels.front(), columns, rows, false);
}

}  // namespace

RunState state_of(const RunFollower& follower, double now) {
  const RunFolder& run = follower.run();
  RunState state;
  state.max_steps = max_steps_of(follower);
  if (run.records.empty()) return state;
  const StepRecord& last = run.records.back();
  const Pace pace = pace_of(run);
  const double seen = last.time.value_or(follower.changed_at().value_or(now));
  state.silent_seconds = std::max(0.0, now - seen);
  if (state.max_steps > 0 && last.step >= state.max_steps) {
    state.kind = Kind::Finished;
    return state;
  }
  if (follower.holder() == RunFollower::Holder::Nobody &&
      state.silent_seconds > std::max(kShortestStop, 3 * pace.per_record)) {
    state.kind = Kind::Stopped;
    return state;
  }
  const bool is_silent =
      state.silent_seconds > std::max(kShortestSilence, kSilentIntervals * pace.per_record);
  state.kind = is_silent ? Kind::Silent : Kind::Running;
  if (!is_silent && state.max_steps > 0 && pace.per_step > 0)
    state.remaining_seconds = std::max(
        0.0, pace.per_step * static_cast<double>(state.max_steps - last.step) - state.silent_seconds);
  return state;
}

std::string state_text(const RunState& state) {
  switch (state.kind) {
    case Kind::Waiting:
      return "waiting for the first step";
    case Kind::Running:
      return "running";
    case Kind::Silent:
      return fmt::format("silent for {}", human_duration(state.silent_seconds));
    case Kind::Stopped:
      return fmt::format("stopped {} ago", human_duration(state.silent_seconds));
    case Kind::Finished:
      return "finished";
  }
  return "";
}

std::string watch_frame(const RunFollower& follower, const FrameOptions& options) {
  const RunFolder& run = follower.run();
  const RunState state = state_of(follower, options.now);
  Lines head(options), body(options);
  std::string title = fmt::format("{}: {}", run.name, state_text(state));
  if (state.remaining_seconds) title += fmt::format(", ETA {}", human_duration(*state.remaining_seconds));
  if (!follower.host().empty() && state.kind != Kind::Finished)
    title += fmt::format("  ({})", follower.host());
  head.add(title, colour_of(state.kind));
  if (run.records.empty()) {
    head.add("The run has written no record yet. The first one comes after logging_steps steps.");
    return head.text();
  }
  add_figures(body, run, state, options);
  add_red_flags(body, run);
  if (follower.unreadable_lines() > 0)
    body.add_field(
        "warning",
        fmt::format("{} of metrics.jsonl cannot be read", counted(follower.unreadable_lines(), "line")),
        kYellowCode);
  constexpr int kLabelOverhang = 4;  // half of the last step's number stands beyond the chart
  constexpr int kChartFrame = 3, kFewestRows = 4, kMostRows = 14;  // title, axis and its labels
  const int left = options.rows > 0 ? options.rows - head.count() - body.count() - kChartFrame : kMostRows;
  std::string chart;
  if (left >= kFewestRows && run.records.size() > 1)
    chart = chart_of(run, std::min(options.columns, 110) - kLabelOverhang, std::min(left, kMostRows));
  std::string text = head.text() + chart + body.text();
  if (options.rows <= 0) return text;
  // Lines that do not fit are dropped at the bottom: the state and the figures stand above the texts of red flags.
  size_t end = 0;
  for (int row = 0; row < options.rows && end < text.size(); ++row) end = text.find('\n', end) + 1;
  return text.substr(0, end);
}

std::string watch_overview(const std::vector<const RunFollower*>& runs, const FrameOptions& options) {
  Table table({{"run"},
               {"state"},
               {"step", Align::Right},
               {"loss", Align::Right},
               {"evaluation", Align::Right},
               {"tokens/s", Align::Right},
               {"GPU", Align::Right},
               {"ETA", Align::Right},
               {"red flags"}});
  for (const RunFollower* follower : runs) {
    const RunFolder& run = follower->run();
    const RunState state = state_of(*follower, options.now);
    const std::string name = terminal_safe(run.name);
    if (run.records.empty()) {
      table.add_row({name, state_text(state), "-", "-", "-", "-", "-", "-", ""});
      continue;
    }
    const StepRecord& last = run.records.back();
    const StepRecord* evaluated = last_with(run, [](const StepRecord& r) { return r.eval_loss.has_value(); });
    std::string flags;
    for (const StepRecord& record : run.records) {
      for (const RedFlag& flag : record.red_flags)
        flags += fmt::format("{}{}", flags.empty() ? "" : ", ", terminal_safe(flag.kind));
    }
    table.add_row(
        {name, state_text(state),
         state.max_steps > 0 ? fmt::format("{}/{}", last.step, state.max_steps) : std::to_string(last.step),
         fmt::format("{:.4f}", last.loss), evaluated ? fmt::format("{:.4f}", *evaluated->eval_loss) : "-",
         human_count(std::round(last.tokens_per_second)),
         last.gpu && std::isfinite(last.gpu->utilization)
             ? fmt::format("{:.0f} %", 100 * last.gpu->utilization)
             : "-",
         state.remaining_seconds ? human_duration(*state.remaining_seconds) : "-", flags});
  }
  std::string text;
  std::istringstream lines(table.str());
  int row = 0;
  for (std::string line; std::getline(lines, line) && (options.rows <= 0 || row < options.rows); ++row)
    text += std::string(truncate_to_width(line, options.columns)) + "\n";
  return text;
}

}  // namespace octet
