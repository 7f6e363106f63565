#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/python.h"
#include "base/text.h"
#include "command.h"
#include "report/run_folder.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> runs;
  std::string host = "127.0.0.1";
  int64_t port = 6006;
};

bool has_events(const fs::path& folder) {
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code)) {
    if (entry->path().filename().string().starts_with("events.out.tfevents.")) return true;
  }
  return false;
}

// The folder of a run, or one that holds such folders.
bool holds_runs(const fs::path& folder) {
  if (has_events(folder)) return true;
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code)) {
    if (entry->is_directory(code) && has_events(entry->path())) return true;
  }
  return false;
}

void check_folder(const std::string& given) {
  std::error_code code;
  if (!fs::is_directory(given, code))
    fail_config("[{}] is not a folder, expected the folder of a run or one that holds runs", given);
  if (holds_runs(given)) return;
  if (is_run_folder(given))
    fail_config("[{}] has no event files: the run was trained with use_tensorboard false", given);
  fail_config("[{}] holds no runs with event files (events.out.tfevents.*)", given);
}

// NAME:PATH,NAME:PATH. TensorBoard cannot read names or paths with these characters there.
std::string folder_spec(const std::vector<std::string>& runs) {
  std::string text;
  std::map<std::string, int> seen;
  for (const std::string& run : runs) {
    const fs::path path = fs::absolute(run).lexically_normal();
    std::string name = (path.has_filename() ? path : path.parent_path()).filename().string();
    if (const int count = ++seen[name]; count > 1) name += fmt::format("-{}", count);
    if ((name + path.string()).find_first_of(":,") != std::string::npos)
      fail_config("[{}] has a ':' or ',' in its path, which TensorBoard cannot read among several folders",
                  run);
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", name, path.string());
  }
  return text;
}

// octet starts TensorBoard in its place: signals reach it, and its exit code is that of octet.
[[noreturn]] void become(std::vector<std::string> words) {
  std::vector<std::string> environment = python_environment();
  std::fflush(nullptr);
  ::execvpe(words[0].c_str(), exec_words(words).data(), exec_words(environment).data());
  fail(
      "[tensorboard] {} cannot be started: {}. Install Python with the package tensorboard, or set OCTET_PYTHON",
      words[0], std::strerror(errno));
}

// Says what is missing before TensorBoard is asked for: a traceback of Python would not. The name of pip stands apart from
// its option, because pyenv keeps a shell between us and a command that has both, and signals would end only the shell.
constexpr const char* kScript = R"(try:
    from tensorboard import main
except ImportError as error:
    installer = "pip"
    sys.exit(f"error: {sys.executable} cannot import TensorBoard ({error}); install it with: "
             f"{sys.executable} -m {installer} install tensorboard, or set OCTET_PYTHON to a Python that has it")
sys.argv[0] = "tensorboard"
sys.exit(main.run_main())
)";

int run(const Options& options) {
  std::vector<std::string> runs = options.runs;
  if (runs.empty()) {
    runs = {"runs"};
    std::error_code code;
    if (!fs::is_directory("runs", code))
      fail_config("there is no folder 'runs' here; name the folders of the runs: octet tensorboard RUN...");
  }
  for (const std::string& given : runs) check_folder(given);
  if (options.host != "127.0.0.1" && options.host != "localhost" && options.host != "::1") {
    log_warning("TensorBoard has no password: everyone who can reach {}:{} sees the runs", options.host,
                options.port);
  }
  std::vector<std::string> words = {python_program(), "-c", std::string(kPythonStart) + kScript};
  if (runs.size() == 1) {
    words.insert(words.end(), {"--logdir", fs::absolute(runs[0]).lexically_normal().string()});
  } else {
    words.insert(words.end(), {"--logdir_spec", folder_spec(runs)});
  }
  words.insert(words.end(), {"--host", options.host, "--port", fmt::format("{}", options.port)});
  become(std::move(words));
}

}  // namespace

Command tensorboard_command() {
  CommandBuilder<Options> builder("tensorboard", "Show runs in TensorBoard");
  builder.line.about =
      "Starts TensorBoard (Python package tensorboard) for these runs. It prints its address, reads new steps while runs "
      "go on, and ends with Ctrl-C.";
  builder.words(&Options::runs, {.name = "RUN",
                                 .what = "run",
                                 .help = "Folder of a run, or a folder that holds runs. Without it: runs.",
                                 .required = false});
  builder.keys.add(
      "host", &Options::host,
      "Address to listen on. With another address than the default, other machines can reach TensorBoard.");
  builder.keys.add("port", &Options::port, "Port to listen on. 0: a free one.").at_least(0).at_most(65535);
  return builder.command(run);
}

}  // namespace octet
