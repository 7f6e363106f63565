#include "report/console.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <thread>

#include "base/error.h"
#include "report/text.h"
#include "report_test_support.h"

namespace octet {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Sets a variable of the environment (nullptr: removes it) until the end of the scope.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* old = getenv(name)) old_ = old;
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  }
  ~ScopedVariable() { old_ ? setenv(name_, old_->c_str(), 1) : unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

// Rows of a terminal after it was sent `bytes`: carriage return, newline, erasing and moving up are carried
// out, colours are skipped. One byte takes one column, so only for output without UTF-8.
std::vector<std::string> screen_after(std::string_view bytes) {
  std::vector<std::string> rows(1);
  size_t row = 0, column = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char c = bytes[i];
    if (c == '\r') {
      column = 0;
    } else if (c == '\n') {
      if (++row == rows.size()) rows.emplace_back();
    } else if (c == '\x1b' && bytes.substr(i).starts_with("\x1b[")) {
      size_t end = i + 2;
      while (isdigit(static_cast<unsigned char>(bytes[end]))) ++end;
      const int count = atoi(std::string(bytes.substr(i + 2, end - i - 2)).c_str());
      if (bytes[end] == 'K') rows[row].resize(std::min(rows[row].size(), column));
      if (bytes[end] == 'A') row -= static_cast<size_t>(count);
      if (bytes[end] == 'J') rows.resize(row + 1), rows[row].resize(std::min(rows[row].size(), column));
      i = end;
    } else {
      if (rows[row].size() <= column) rows[row].resize(column + 1, ' ');
      rows[row][column++] = c;
    }
  }
  for (auto& line : rows) line.erase(line.find_last_not_of(' ') + 1);
  return rows;
}

// A terminal whose output is collected.
class FakeTerminal {
 public:
  explicit FakeTerminal(unsigned short columns) {
    master_ = posix_openpt(O_RDWR | O_NOCTTY);
    if (master_ < 0 || grantpt(master_) != 0 || unlockpt(master_) != 0) return;
    resize(columns);
    out = fopen(ptsname(master_), "w");
    if (out == nullptr) return;
    reader_ = std::thread([this] {
      char block[4096];
      for (ssize_t count = 0; (count = read(master_, block, sizeof(block))) > 0;) {
        bytes_.append(block, static_cast<size_t>(count));
      }
    });
  }
  ~FakeTerminal() {
    if (out != nullptr) close_and_collect();
    if (master_ >= 0) close(master_);
  }

  void resize(unsigned short columns) {
    winsize size{};
    size.ws_col = columns;
    size.ws_row = 24;
    ioctl(master_, TIOCSWINSZ, &size);
  }
  std::string close_and_collect() {
    fclose(out);  // the reader then gets EIO
    out = nullptr;
    reader_.join();
    return bytes_;
  }

  std::FILE* out = nullptr;

 private:
  int master_ = -1;
  std::thread reader_;
  std::string bytes_;
};

BarState example_state() {
  BarState state;
  state.step = 250;
  state.max_steps = 1000;
  state.loss = 3.456789;
  state.tokens_per_second = 3345.67;
  state.elapsed_s = 39;
  state.remaining_s = 117;
  return state;
}

TEST(FormatStep, IsTheDocumentedLine) {
  StepRecord record = example_record();
  record.max_steps = 1000;
  record.epoch = 0.25;
  EXPECT_EQ(
      format_step(record),
      "step 250/1000 | epoch 0.25 | loss: 3.456789 | lr: 6.00e-04 | norm: 0.8234 | dt: 156.78ms | tok/sec: "
      "3345.67 | FP8");
}

TEST(FormatStep, WithoutATotalThereIsNone) {
  StepRecord record = example_record();
  record.max_steps = 0;
  record.epoch = 0.00421;
  EXPECT_THAT(format_step(record), StartsWith("step 250 | epoch 0.0042 | loss: "));
  record.epoch = std::nan("");
  EXPECT_THAT(format_step(record), StartsWith("step 250 | epoch 0.0000 | loss: "));
}

TEST(FormatStep, TheTimeThatIsLeftComesLast) {
  EXPECT_THAT(format_step(example_record(), 192.0), EndsWith(" | FP8 | ETA 3m 12s"));
  EXPECT_THAT(format_step(example_record(), 0.0), EndsWith(" | FP8")) << "after the last step";
}

TEST(FormatStep, OptionalNumbersComeLastAndNonFiniteOnesAreShown) {
  StepRecord record = example_record();
  record.max_steps = 0;
  record.epoch = 2.99;
  record.loss = std::nan("");
  record.precision = "BF16 (fallback)";
  record.penalty = 0.5;
  record.eval_loss = 3.25;
  EXPECT_EQ(
      format_step(record),
      "step 250 | epoch 2.99 | loss: nan | lr: 6.00e-04 | norm: 0.8234 | dt: 156.78ms | tok/sec: 3345.67 | BF16 "
      "(fallback) | penalty: 0.500000 | eval: 3.250000");
}

TEST(RenderBar, ShowsEverythingWhereThereIsRoom) {
  EXPECT_EQ(render_bar(example_state(), 80, false, false),
            " 25% [####---------------]  250/1000  loss 3.4568  3.35K tok/s  00:39  ETA 01:57");
}

TEST(RenderBar, UsesBlocksAndColourOnlyWhenAsked) {
  const std::string blocks = render_bar(example_state(), 80, true, false);
  EXPECT_THAT(blocks, HasSubstr("▕████▊              ▏"));
  EXPECT_EQ(blocks.find('\x1b'), std::string::npos);
  EXPECT_THAT(render_bar(example_state(), 80, false, true),
              HasSubstr("[\x1b[32m####---------------\x1b[0m]"));
}

TEST(RenderBar, NeverExceedsTheWidth) {
  for (const bool utf8 : {false, true}) {
    for (const int64_t max_steps : {int64_t{0}, int64_t{1000}, int64_t{1'000'000'000'000}}) {
      BarState state = example_state();
      state.max_steps = max_steps;
      int widest = 0;
      for (int width = 0; width <= 200; ++width) {
        const std::string line = render_bar(state, width, utf8, false);
        ASSERT_LE(display_width(line), width) << line;
        widest = std::max(widest, display_width(line));
      }
      EXPECT_GT(widest, 30);
    }
  }
}

TEST(RenderBar, DropsTheLeastImportantFirst) {
  EXPECT_EQ(render_bar(example_state(), 58, false, false),
            " 25%  250/1000  loss 3.4568  3.35K tok/s  00:39  ETA 01:57");
  EXPECT_EQ(render_bar(example_state(), 57, false, false),
            " 25%  250/1000  loss 3.4568  3.35K tok/s  ETA 01:57");
  EXPECT_EQ(render_bar(example_state(), 30, false, false), " 25%  250/1000  loss 3.4568");
  EXPECT_EQ(render_bar(example_state(), 14, false, false), " 25%  250/1000");
  EXPECT_EQ(render_bar(example_state(), 4, false, false), " 25%");
  EXPECT_EQ(render_bar(example_state(), 2, false, false), " 2");
}

TEST(RenderBar, FullOnlyAtTheLastStep) {
  BarState state = example_state();
  state.step = 999;
  EXPECT_THAT(render_bar(state, 80, false, false), StartsWith(" 99%"));
  EXPECT_THAT(render_bar(state, 80, false, false), HasSubstr("-]"));
  state.step = 1000;
  EXPECT_THAT(render_bar(state, 80, true, false), StartsWith("100% ▕████"));
  EXPECT_THAT(render_bar(state, 80, false, false), HasSubstr("#]"));
  state.step = 1001;  // one too many is no reason to fall over
  EXPECT_THAT(render_bar(state, 80, true, false), StartsWith("100%"));
}

TEST(RenderBar, WithoutATotalOrAnEstimate) {
  BarState state;
  state.step = 3;
  EXPECT_EQ(render_bar(state, 80, true, false), "step 3  00:00");
  state.max_steps = 10;
  EXPECT_THAT(render_bar(state, 80, false, false), HasSubstr("ETA --:--"));
}

TEST(TerminalTraits, FollowTheEnvironment) {
  FakeTerminal terminal(80);
  if (terminal.out == nullptr) GTEST_SKIP() << "no pseudo-terminal on this machine";
  const int fd = fileno(terminal.out);
  ScopedVariable term("TERM", "xterm"), no_color("NO_COLOR", nullptr), all("LC_ALL", nullptr);
  ScopedVariable ctype("LC_CTYPE", nullptr), lang("LANG", "de_DE.utf8");
  EXPECT_TRUE(terminal_traits(fd).color && terminal_traits(fd).utf8 && terminal_traits(fd).escapes);
  EXPECT_EQ(terminal_width(fd), 80);
  {
    ScopedVariable set("NO_COLOR", "1");
    EXPECT_TRUE(terminal_traits(fd).escapes && !terminal_traits(fd).color);
  }
  {
    ScopedVariable set("TERM", "dumb");
    EXPECT_TRUE(terminal_traits(fd).terminal && !terminal_traits(fd).escapes && !terminal_traits(fd).color);
    EXPECT_EQ(Console(ConsoleMode::Auto, terminal.out, terminal.out).mode(), ConsoleMode::Plain);
  }
  {
    ScopedVariable set("LC_ALL", "C");  // before LANG
    EXPECT_FALSE(terminal_traits(fd).utf8);
  }
  EXPECT_EQ(Console(ConsoleMode::Auto, terminal.out, terminal.out).mode(), ConsoleMode::Bar);
}

// Runs a small session with its output in files and returns what each stream got.
std::pair<std::string, std::string> streams_of(ConsoleMode mode) {
  TemporaryFolder folder;
  std::FILE* out = fopen((folder.path() / "out").c_str(), "w");
  std::FILE* err = fopen((folder.path() / "err").c_str(), "w");
  CapturedLog outer;
  {
    Console console(mode, out, err);
    console.begin(0, 1000);
    console.advance(249);
    console.print("a table");
    console.print("\x1b[32mnot ours\x1b[0m");
    console.print_coloured("\x1b[32mours\x1b[0m");
    StepRecord record = example_record();
    record.samples = {"Once \x1b[2J upon"};
    console.step(record);
    log_info("for information");
    log_warning("look out");
  }
  log_info("after");
  EXPECT_THAT(outer.messages, ElementsAre("after"));  // the previous sink is back
  fclose(out);
  fclose(err);
  return {contents_of(folder.path() / "out"), contents_of(folder.path() / "err")};
}

TEST(Console, PlainLinesHaveNoEscapesAndNoBar) {
  const auto [out, err] = streams_of(ConsoleMode::Auto);  // a file is no terminal
  EXPECT_THAT(out, StartsWith("a table\n\\x1b[32mnot ours\\x1b[0m\n\x1b[32mours\x1b[0m\n" + format_step(example_record()) + " | ETA "));
  EXPECT_THAT(out, EndsWith("s\nsample: Once \\x1b[2J upon\n"));
  EXPECT_EQ(err, "for information\nwarning: look out\n");
}

TEST(Console, QuietSaysOnlyWhatIsWrong) {
  const auto [out, err] = streams_of(ConsoleMode::Quiet);
  EXPECT_EQ(out, "");
  EXPECT_EQ(err, "warning: look out\n");
}

TEST(Console, OnATerminalLinesAndMessagesScrollAboveTheBar) {
  FakeTerminal terminal(60);
  if (terminal.out == nullptr) GTEST_SKIP() << "no pseudo-terminal on this machine";
  ScopedVariable term("TERM", "xterm"), all("LC_ALL", "C"), no_color("NO_COLOR", nullptr);
  {
    Console console(ConsoleMode::Auto, terminal.out, terminal.out);
    ASSERT_EQ(console.mode(), ConsoleMode::Bar);
    console.begin(240, 1000);
    for (int step = 241; step < 250; ++step) console.advance(step);
    StepRecord record = example_record();
    console.step(record);
    log_warning("look out");
    console.print("one\ntwo");
    record.step = 251;
    console.step(record);
  }
  fputs("prompt", terminal.out);
  const std::string bytes = terminal.close_and_collect();
  const std::string line = format_step(example_record());
  EXPECT_THAT(screen_after(bytes),
              ElementsAre(line, "warning: look out", "one", "two", "step 251" + line.substr(8), "prompt"));

  // The bar as it stood before the end: complete, and not wider than 59 columns.
  const size_t last_bar = bytes.rfind("251/1000");
  const auto rows = screen_after(std::string_view(bytes).substr(0, bytes.find('\r', last_bar)));
  EXPECT_THAT(rows.back(), StartsWith(" 25%"));
  EXPECT_THAT(rows.back(), HasSubstr("ETA"));
  EXPECT_LE(rows.back().size(), 59u);
  EXPECT_THAT(bytes, HasSubstr("\x1b[33mwarning: \x1b[0mlook out"));
}

TEST(Console, ADumbTerminalGetsNoEscapes) {
  FakeTerminal terminal(40);
  if (terminal.out == nullptr) GTEST_SKIP() << "no pseudo-terminal on this machine";
  ScopedVariable term("TERM", "dumb"), all("LC_ALL", "C");
  {
    Console console(ConsoleMode::Bar, terminal.out, terminal.out);
    console.begin(0, 10);
    console.print("hello");
    log_warning("look out");
  }
  const std::string bytes = terminal.close_and_collect();
  EXPECT_THAT(bytes, Not(HasSubstr("\x1b")));
  EXPECT_THAT(screen_after(bytes), ElementsAre("hello", "warning: look out", ""));
}

TEST(Console, ABarThatTheTerminalHasWrappedIsErasedWhole) {
  FakeTerminal terminal(100);
  if (terminal.out == nullptr) GTEST_SKIP() << "no pseudo-terminal on this machine";
  ScopedVariable term("TERM", "xterm"), all("LC_ALL", "C");
  {
    Console console(ConsoleMode::Auto, terminal.out, terminal.out);
    console.begin(0, 10);
    StepRecord record = example_record();
    console.step(record);
    terminal.resize(30);  // the bar of up to 99 columns now takes several rows
    console.finish();
  }
  EXPECT_THAT(terminal.close_and_collect(), testing::ContainsRegex("\r\x1b\\[[23]A\x1b\\[J$"));
}

TEST(Console, MessagesFromManyThreadsStayWhole) {
  FakeTerminal terminal(60);
  if (terminal.out == nullptr) GTEST_SKIP() << "no pseudo-terminal on this machine";
  ScopedVariable term("TERM", "xterm"), all("LC_ALL", "C"), no_color("NO_COLOR", "1");
  {
    Console console(ConsoleMode::Auto, terminal.out, terminal.out);
    console.begin(0, 1000);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([] {
        for (int i = 0; i < 25; ++i) log_info("a message from a thread");
      });
    }
    for (int step = 1; step <= 100; ++step) console.advance(step);
    for (auto& thread : threads) thread.join();
  }
  auto rows = screen_after(terminal.close_and_collect());
  ASSERT_EQ(rows.back(), "");
  rows.pop_back();
  EXPECT_EQ(rows, std::vector<std::string>(100, "a message from a thread"));
}

}  // namespace
}  // namespace octet
