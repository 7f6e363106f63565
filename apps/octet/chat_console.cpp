#include "chat_console.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/error.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "report/text.h"

namespace octet {
namespace {

constexpr std::string_view kHelp =
    "/system TEXT  set the system message and start again (without TEXT: the template's own)\n"
    "/reset        forget the conversation\n"
    "/exit         end (also Ctrl-D)\n";

volatile sig_atomic_t was_interrupted = 0;

extern "C" void note_interrupt(int) {
  was_interrupted = 1;
}

// While it lives, Ctrl-C does not end the program. Reading is not continued after it: the line starts again.
class Interrupts {
 public:
  Interrupts() {
    struct sigaction action {};
    action.sa_handler = note_interrupt;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &before_);
  }
  ~Interrupts() { sigaction(SIGINT, &before_, nullptr); }
  Interrupts(const Interrupts&) = delete;

  // Whether it was pressed after the last call.
  static bool take() {
    const bool is_set = was_interrupted != 0;
    was_interrupted = 0;
    return is_set;
  }

 private:
  struct sigaction before_ {};
};

// Lines of stdin, without the buffer of stdio, which would continue after a signal.
class Lines {
 public:
  enum class Result { Line, End, Interrupted };

  Result next(std::string& line) {
    for (;;) {
      if (const size_t end = buffer_.find('\n'); end != buffer_.npos) {
        line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        if (line.ends_with('\r')) line.pop_back();
        return Result::Line;
      }
      char bytes[4096];
      const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
      if (count < 0 && errno == EINTR) {
        buffer_.clear();
        return Result::Interrupted;
      }
      require(count >= 0, "[stdin] cannot be read");
      if (count == 0) {
        line = std::exchange(buffer_, "");
        return line.empty() ? Result::End : Result::Line;
      }
      buffer_.append(bytes, static_cast<size_t>(count));
    }
  }

 private:
  std::string buffer_;
};

void report(const ChatSession& session, const ChatSession::Answer& answer) {
  if (answer.dropped > 0) {
    log_info("the context of {} tokens is full: the oldest {} messages were forgotten", session.context(),
             answer.dropped);
  }
  if (answer.is_full)
    log_info("the answer ends here because the context of {} tokens is full", session.context());
}

}  // namespace

void write_out(std::string_view given) {
  // A model's text must not control the terminal. Files and pipes get it unchanged.
  static const bool is_terminal = isatty(STDOUT_FILENO) != 0;
  const std::string safe = is_terminal ? without_escapes(given) : "";
  const std::string_view text = is_terminal ? safe : given;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    fail("[stdout] cannot be written");
}

int ask_once(ChatSession& session, const std::string& user, bool stream) {
  const ChatSession::Answer answer = session.ask(user, [&](std::string_view text) {
    if (stream) write_out(text);
    return true;
  });
  write_out(stream ? "\n" : answer.text + "\n");
  report(session, answer);
  if (!answer.is_complete && !answer.is_full)
    log_info("the answer was cut after {} tokens; see --max_new_tokens", answer.new_tokens);
  return kExitDone;
}

int chat_on_console(ChatSession& session, const std::string& greeting) {
  const bool is_terminal = isatty(STDIN_FILENO) != 0;
  std::optional<Interrupts> interrupts;
  if (is_terminal) {
    interrupts.emplace();
    write_out(fmt::format("{}\n/help lists the commands; Ctrl-C stops an answer, Ctrl-D ends.\n", greeting));
  }
  Lines lines;
  std::string line;
  for (;;) {
    if (is_terminal) write_out("\n>>> ");
    const Lines::Result result = lines.next(line);
    if (result == Lines::Result::Interrupted) {
      Interrupts::take();
      write_out("\n(Ctrl-D or /exit ends)");
      continue;
    }
    if (result == Lines::Result::End) break;
    if (line.find_first_not_of(" \t") == line.npos) continue;
    if (line == "/exit" || line == "/quit" || line == "/bye") return kExitDone;
    if (line == "/reset" || line == "/clear") {
      session.reset();
    } else if (line == "/system" || line.starts_with("/system ")) {
      session.set_system(line.size() > 8 ? std::optional(line.substr(8)) : std::nullopt);
    } else if (line == "/help" || line == "/?") {
      write_out(kHelp);
    } else if (line.starts_with('/') && line.find(' ') == line.npos && line.find('/', 1) == line.npos) {
      log_warning("{} is not a command; the commands are:\n{}", line, kHelp);
    } else {
      try {
        const ChatSession::Answer answer = session.ask(line, [&](std::string_view text) {
          write_out(text);
          return !is_terminal || !Interrupts::take();
        });
        write_out("\n");
        report(session, answer);
      } catch (const Error& error) {
        if (!is_terminal) throw;
        log_line(LogLevel::Error, error.what());
      }
    }
  }
  if (is_terminal) write_out("\n");
  return kExitDone;
}

}  // namespace octet
