#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/log.h"
#include "report/console_mode.h"
#include "report/step_record.h"

namespace octet {

// "step 250/1000 | epoch 0.25 | loss: 3.456789 | lr: 6.00e-04 | norm: 0.8234 | dt: 156.78ms | tok/sec: 3345.67 |
// FP8", and after it " | penalty: 0.012345" and " | eval: 3.401234" where the record has them, and " | ETA 3m 12s" where
// the time that is left is known. Without a known number of steps it starts "step 250 |".
std::string format_step(const StepRecord& record, std::optional<double> remaining_s = std::nullopt);

// Abilities of the output, from the file descriptor and the environment (TERM, NO_COLOR, LC_ALL, LC_CTYPE, LANG).
struct TerminalTraits {
  bool terminal = false;
  bool escapes = false;  // understands ANSI sequences: a terminal, and TERM is neither dumb nor unset
  bool color = false;    // escapes, and NO_COLOR is not set
  bool utf8 = false;     // the locale is UTF-8
};
TerminalTraits terminal_traits(int fd);
int terminal_width(int fd);  // columns; COLUMNS, then 80, where the terminal does not say

struct BarState {
  int64_t step = 0;
  int64_t max_steps = 0;   // 0: not known, no percentage and no bar then
  std::string label = {};  // stands in place of the count of steps
  std::optional<double> loss = std::nullopt;
  std::optional<double> tokens_per_second = std::nullopt;
  double elapsed_s = 0;
  std::optional<double> remaining_s;
};

// The progress line without its newline, at most `width` columns; where that is too narrow, the bar and then
// the least important numbers go. No escape sequences unless `color`.
std::string render_bar(const BarState& state, int width, bool utf8, bool color);

// Owns the screen during a run. While it lives, log messages go through it (to stderr, as without it) and
// never land inside the bar. All methods may be called from any thread; none of them may be called from a log sink.
class Console {
 public:
  explicit Console(ConsoleMode mode, std::FILE* out = stdout, std::FILE* err = stderr);
  ~Console();  // erases the bar and puts the previous log sink back
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // Starts the bar. `first_step` steps were done before (a resumed run): the time left is computed without them.
  void begin(int64_t first_step, int64_t max_steps);
  // `step` steps are done. Cheap: call it at each step; the bar is redrawn at most ten times a second.
  void advance(int64_t step);
  // The same for work that is not counted in steps: `label` says how far it is ("12.5M tokens").
  void advance(int64_t step, std::string label, double tokens_per_second);
  // Prints the line of a logged step, and its samples, and moves the bar.
  void step(const StepRecord& record);
  // Prints text (a table, a summary) above the bar, with a newline added where it has none. Not when quiet.
  void print(std::string_view text);
  // The same of a text that has octet's own colours. Whatever others wrote in it must be terminal_safe() already.
  void print_coloured(std::string_view safe_text);
  // Erases the bar for good, until begin().
  void finish();

  ConsoleMode mode() const { return mode_; }  // never Auto
  const TerminalTraits& traits() const { return traits_; }

 private:
  using Clock = std::chrono::steady_clock;

  void log(LogLevel level, std::string_view message);
  void erase_bar();
  void draw_bar();
  void write_out(std::string_view text);
  void move_to(int64_t step);

  std::FILE* out_;
  std::FILE* err_;
  TerminalTraits traits_;
  TerminalTraits err_traits_;
  ConsoleMode mode_;
  LogSink previous_sink_;

  std::mutex mutex_;  // guards what follows and the order of what is written
  bool running_ = false;
  int bar_columns_ = 0;  // of the bar on the screen; 0 when there is none
  BarState bar_;
  Clock::time_point started_;
  Clock::time_point
      first_done_;  // when the first step was done: it includes set-up, so it does not count for the rest
  int64_t first_step_ = 0;  // the step that was done at first_done_
  bool any_done_ = false;
  Clock::time_point drawn_;
};

}  // namespace octet
