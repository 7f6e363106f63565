#include "report/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "report/text.h"

namespace octet {
namespace {

constexpr auto kRedrawInterval = std::chrono::milliseconds(100);
constexpr int kNarrowestBar = 10;
constexpr int kWidestBar = 40;

const char* const kReset = "\x1b[0m";
const char* const kGreen = "\x1b[32m";
const char* const kYellow = "\x1b[33m";
const char* const kRed = "\x1b[31m";

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {  // the first that is set decides, as in setlocale
    std::string value(environment(name));
    if (value.empty()) continue;
    std::transform(value.begin(), value.end(), value.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return value.find("utf-8") != std::string::npos || value.find("utf8") != std::string::npos;
  }
  return false;
}

ConsoleMode resolve(ConsoleMode mode, const TerminalTraits& traits) {
  if (mode != ConsoleMode::Auto) return mode;
  return traits.escapes ? ConsoleMode::Bar : ConsoleMode::Plain;
}

// `columns` wide, filled to `share`; UTF-8 has eighths of a column.
std::string filled_bar(double share, int columns, bool utf8) {
  std::string bar;
  if (!utf8) {
    const int full = static_cast<int>(share * columns);
    bar.append(static_cast<size_t>(full), '#').append(static_cast<size_t>(columns - full), '-');
    return bar;
  }
  constexpr std::array<const char*, 8> kEighths = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(share * columns * 8);
  for (int i = 0; i < eighths / 8; ++i) bar += "█";
  if (eighths / 8 < columns) {
    bar += kEighths[static_cast<size_t>(eighths % 8)];
    bar.append(static_cast<size_t>(columns - eighths / 8 - 1), ' ');
  }
  return bar;
}

}  // namespace

std::string format_step(const StepRecord& record, std::optional<double> remaining_s) {
  const std::string total = record.max_steps > 0 ? fmt::format("/{}", record.max_steps) : "";
  const double epoch = std::isfinite(record.epoch) ? record.epoch : 0;
  std::string line = fmt::format(
      "step {}{} | epoch {:.{}f} | loss: {:.6f} | lr: {:.2e} | norm: {:.4f} | dt: {:.2f}ms | tok/sec: {:.2f} | {}",
      record.step, total, epoch, epoch < 0.1 ? 4 : 2, record.loss, record.lr, record.grad_norm,
      record.step_ms, record.tokens_per_second, record.precision);
  if (record.penalty) line += fmt::format(" | penalty: {:.6f}", *record.penalty);
  if (record.eval_loss) line += fmt::format(" | eval: {:.6f}", *record.eval_loss);
  for (const auto& [name, loss] : record.eval_losses) line += fmt::format(" | eval/{}: {:.6f}", name, loss);
  // One figure per task: acc_norm where the task has it.
  for (const auto& [name, score] : record.task_scores) {
    const bool has_norm = std::ranges::any_of(
        record.task_scores, [&](const auto& other) { return other.first == name + "_norm"; });
    if (!has_norm) line += fmt::format(" | {}: {:.4f}", name, score);
  }
  if (remaining_s && *remaining_s > 0) line += fmt::format(" | ETA {}", human_duration(*remaining_s));
  return line;
}

TerminalTraits terminal_traits(int fd) {
  TerminalTraits traits;
  traits.terminal = isatty(fd) == 1;
  traits.escapes = traits.terminal && environment("TERM") != "dumb" && !environment("TERM").empty();
  traits.color = traits.escapes && environment("NO_COLOR").empty();
  traits.utf8 = locale_is_utf8();
  return traits;
}

int terminal_width(int fd) {
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const int columns = std::atoi(std::string(environment("COLUMNS")).c_str());
  return columns > 0 ? columns : 80;
}

std::string render_bar(const BarState& state, int width, bool utf8, bool color) {
  const bool bounded = state.max_steps > 0;
  const double share =
      bounded ? std::clamp(static_cast<double>(state.step) / static_cast<double>(state.max_steps), 0.0, 1.0)
              : 0;

  struct Field {
    std::string text;
    int rank;  // the highest goes first where there is no room
  };
  std::vector<Field> fields;
  // Rounded down: 100% stands there when the last step is done and not before.
  if (bounded) fields.push_back({fmt::format("{:3}%", static_cast<int>(share * 100)), 0});
  if (!state.label.empty()) {
    fields.push_back({state.label, 1});
  } else {
    fields.push_back(
        {bounded ? fmt::format("{}/{}", state.step, state.max_steps) : fmt::format("step {}", state.step),
         1});
  }
  if (state.loss) fields.push_back({fmt::format("loss {:.4f}", *state.loss), 2});
  if (state.tokens_per_second) {
    fields.push_back({fmt::format("{} tok/s", human_count(std::round(*state.tokens_per_second))), 4});
  }
  fields.push_back({clock_duration(state.elapsed_s), 5});
  if (bounded) {
    fields.push_back(
        {fmt::format("ETA {}", state.remaining_s ? clock_duration(*state.remaining_s) : "--:--"), 3});
  }

  constexpr int kGap = 2;
  const auto taken = [&] {
    int columns = 0;
    for (const Field& field : fields) columns += display_width(field.text) + (columns > 0 ? kGap : 0);
    return columns;
  };
  constexpr int kFrame = 3;  // " [" and "]"
  while (fields.size() > 1 && taken() > width) {
    fields.erase(std::max_element(fields.begin(), fields.end(),
                                  [](const Field& a, const Field& b) { return a.rank < b.rank; }));
  }
  const int bar_columns = std::min(kWidestBar, width - taken() - kFrame);
  std::string line;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) line.append(kGap, ' ');
    line += fields[i].text;
    if (i == 0 && bounded && bar_columns >= kNarrowestBar) {
      const std::string bar = filled_bar(share, bar_columns, utf8);
      line += utf8 ? " ▕" : " [";
      line += color ? fmt::format("{}{}{}", kGreen, bar, kReset) : bar;
      line += utf8 ? "▏" : "]";
    }
  }
  return fields.size() == 1 ? std::string(truncate_to_width(line, std::max(width, 0))) : line;
}

Console::Console(ConsoleMode mode, std::FILE* out, std::FILE* err)
    : out_(out),
      err_(err),
      traits_(terminal_traits(fileno(out))),
      err_traits_(terminal_traits(fileno(err))),
      mode_(resolve(mode, traits_)) {
  previous_sink_ = set_log_sink([this](LogLevel level, std::string_view message) { log(level, message); });
}

Console::~Console() {
  set_log_sink(std::move(previous_sink_));
  finish();
}

void Console::begin(int64_t first_step, int64_t max_steps) {
  std::lock_guard lock(mutex_);
  running_ = true;
  any_done_ = false;
  bar_ = {};
  bar_.step = first_step;
  bar_.max_steps = max_steps;
  started_ = Clock::now();
  draw_bar();
}

void Console::advance(int64_t step) {
  std::lock_guard lock(mutex_);
  if (!running_) return;
  move_to(step);
  if (Clock::now() - drawn_ >= kRedrawInterval) draw_bar();
}

void Console::advance(int64_t step, std::string label, double tokens_per_second) {
  {
    std::lock_guard lock(mutex_);
    bar_.label = std::move(label);
    bar_.tokens_per_second = tokens_per_second;
  }
  advance(step);
}

void Console::step(const StepRecord& record) {
  std::lock_guard lock(mutex_);
  if (mode_ == ConsoleMode::Quiet) return;
  if (running_) {
    bar_.loss = record.loss;
    bar_.tokens_per_second = record.tokens_per_second;
    move_to(record.step);
  }
  // The bar shows the time that is left by itself.
  const std::optional<double> remaining_s = mode_ == ConsoleMode::Plain ? bar_.remaining_s : std::nullopt;
  std::string text = terminal_safe(format_step(record, remaining_s)) + "\n";
  for (const std::string& sample : record.samples)
    text += terminal_safe(fmt::format("sample: {}", sample)) + "\n";
  erase_bar();
  write_out(text);
  draw_bar();
}

void Console::print(std::string_view text) {
  print_coloured(terminal_safe(text));
}

void Console::print_coloured(std::string_view safe_text) {
  std::lock_guard lock(mutex_);
  if (mode_ == ConsoleMode::Quiet) return;
  erase_bar();
  std::string shown(safe_text);
  if (!shown.ends_with('\n')) shown += '\n';
  write_out(shown);
  draw_bar();
}

void Console::finish() {
  std::lock_guard lock(mutex_);
  erase_bar();
  std::fflush(out_);
  running_ = false;
}

void Console::log(LogLevel level, std::string_view message) {
  std::lock_guard lock(mutex_);
  if (mode_ == ConsoleMode::Quiet && level == LogLevel::Info) return;
  erase_bar();
  std::fflush(out_);  // so that both streams appear in the order of events
  const char* prefix = level == LogLevel::Warning ? "warning: " : level == LogLevel::Error ? "error: " : "";
  const char* color = level == LogLevel::Warning ? kYellow : level == LogLevel::Error ? kRed : "";
  const bool colored = err_traits_.color && level != LogLevel::Info;
  const std::string line =
      fmt::format("{}{}{}{}\n", colored ? color : "", prefix, colored ? kReset : "", message);
  std::fwrite(line.data(), 1, line.size(), err_);
  std::fflush(err_);
  draw_bar();
}

void Console::move_to(int64_t step) {
  const auto now = Clock::now();
  bar_.step = step;
  if (!any_done_) {
    any_done_ = true;
    first_done_ = now;
    first_step_ = step;
  }
  if (step > first_step_ && bar_.max_steps > 0) {
    const double per_step =
        std::chrono::duration<double>(now - first_done_).count() / static_cast<double>(step - first_step_);
    bar_.remaining_s = per_step * static_cast<double>(std::max<int64_t>(0, bar_.max_steps - step));
  }
}

void Console::erase_bar() {
  if (bar_columns_ == 0) return;
  // If the terminal has become narrower, the bar wraps over several rows: go up to the first one and clear to the end.
  const int width = std::max(1, terminal_width(fileno(out_)));
  const int rows_above = (bar_columns_ - 1) / width;
  if (!traits_.escapes) {
    write_out(fmt::format("\r{:{}}\r", "", std::min(bar_columns_, width - 1)));
  } else if (rows_above > 0) {
    write_out(fmt::format("\r\x1b[{}A\x1b[J", rows_above));
  } else {
    write_out("\r\x1b[K");
  }
  bar_columns_ = 0;
}

void Console::draw_bar() {
  if (!running_ || mode_ != ConsoleMode::Bar) return;
  const auto now = Clock::now();
  bar_.elapsed_s = std::chrono::duration<double>(now - started_).count();
  // The last column stays free: a character there makes some terminals wrap.
  const int width = std::max(1, terminal_width(fileno(out_)) - 1);
  const std::string line = render_bar(bar_, width, traits_.utf8, traits_.color);
  erase_bar();
  write_out(line);
  std::fflush(out_);
  bar_columns_ = display_width(render_bar(bar_, width, traits_.utf8, false));
  drawn_ = now;
}

void Console::write_out(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), out_);
  if (mode_ != ConsoleMode::Bar) std::fflush(out_);  // a log file is followed line by line
}

}  // namespace octet
