#include "live_screen.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <string_view>

#include "report/console.h"

namespace octet {
namespace {

volatile sig_atomic_t stop_came = 0, resize_came = 0;

void on_stop(int) {
  stop_came = 1;
}
void on_resize(int) {
  resize_came = 1;
}

void handle(int number, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;  // without SA_RESTART: poll must return
  ::sigaction(number, &action, nullptr);
}

void write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // the terminal is gone
    text.remove_prefix(static_cast<size_t>(written));
  }
}

constexpr const char* kEnter = "\x1b[?1049h\x1b[?25l\x1b[2J";  // alternate screen, no cursor
constexpr const char* kLeave = "\x1b[?25h\x1b[?1049l";

}  // namespace

LiveScreen::LiveScreen() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) handle(number, on_stop);
  handle(SIGWINCH, on_resize);
  if (::isatty(STDIN_FILENO) && ::tcgetattr(STDIN_FILENO, &before_) == 0) {
    termios raw = before_;
    // Keys come one by one, unseen; Ctrl-C is a key as well.
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    raw_ = ::tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
  }
  write_all(kEnter);
}

LiveScreen::~LiveScreen() {
  write_all(kLeave);
  if (raw_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH}) ::signal(number, SIG_DFL);
}

LiveScreen::Size LiveScreen::size() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0)
    return {size.ws_col, size.ws_row};
  return {terminal_width(STDOUT_FILENO), 24};
}

void LiveScreen::show(const std::string& text) {
  // Every line is overwritten in place, and what is left of the old page is cleared behind it. The terminal shows the
  // page when it is complete, if it knows how to (mode 2026).
  std::string page = "\x1b[?2026h\x1b[H";
  std::string_view rest = text;
  while (rest.ends_with('\n')) rest.remove_suffix(1);
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    page += rest.substr(0, end);
    page += "\x1b[K";
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (!rest.empty()) page += "\r\n";
  }
  page += "\x1b[J\x1b[?2026l";
  write_all(page);
}

LiveScreen::Event LiveScreen::wait(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto until =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  while (true) {
    if (stop_came) return Event::Quit;
    if (resize_came) {
      resize_came = 0;
      return Event::Resize;
    }
    const double left = std::chrono::duration<double, std::milli>(until - Clock::now()).count();
    if (left <= 0) return Event::Time;
    pollfd input{.fd = raw_ ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0};
    // A signal between the look at its flag and the call is noticed after this time at the latest.
    constexpr double kMostMs = 250;
    if (::poll(&input, 1, static_cast<int>(std::ceil(std::min(left, kMostMs)))) <= 0) continue;
    char keys[64];
    const ssize_t count = ::read(STDIN_FILENO, keys, sizeof keys);
    if (count == 0 || (input.revents & (POLLHUP | POLLERR))) return Event::Quit;  // the terminal is gone
    const std::string_view pressed(keys, static_cast<size_t>(std::max<ssize_t>(count, 0)));
    // An arrow key begins with an escape, too, but has more bytes.
    if (pressed == "\x1b" || pressed.find_first_of("qQ\x03\x04") != pressed.npos) return Event::Quit;
  }
}

}  // namespace octet
