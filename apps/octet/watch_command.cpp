#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>

#include "base/error.h"
#include "command.h"
#include "live_screen.h"
#include "report/console.h"
#include "report/watch_frame.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> runs;
  bool once = false;
  double interval = 2;
};

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The runs that are shown. Those of a folder of runs are looked for again each time: new ones appear.
class Watched {
 public:
  explicit Watched(const std::vector<std::string>& paths) : paths_(paths) {
    for (const std::string& path : paths_) {
      if (is_parent(path)) continue;
      followers_.emplace(path, std::make_unique<RunFollower>(path));  // wrong paths fail here
    }
    refresh();
  }

  void refresh() {
    for (const auto& [path, follower] : followers_) follower->refresh();
    for (const std::string& parent : paths_) {
      if (!is_parent(parent)) continue;
      for (const std::string& path : run_folders_in(parent)) {
        if (followers_.contains(path)) continue;
        try {
          followers_.emplace(path, std::make_unique<RunFollower>(path));
        } catch (const ConfigError&) {  // removed since the folder was listed
        }
      }
    }
  }

  std::string frame(const FrameOptions& options) const {
    if (followers_.size() == 1 && paths_.size() == 1 && !is_parent(paths_[0]))
      return watch_frame(*followers_.begin()->second, options);
    std::vector<const RunFollower*> runs;
    for (const auto& [path, follower] : followers_) runs.push_back(follower.get());
    return watch_overview(runs, options);
  }

 private:
  static bool is_parent(const std::string& path) {
    std::error_code ignored;
    return fs::is_directory(path, ignored) && !looks_like_run(path) && !run_folders_in(path).empty();
  }

  const std::vector<std::string> paths_;
  std::map<std::string, std::unique_ptr<RunFollower>> followers_;
};

int run(const Options& options) {
  Watched watched(options.runs);
  const TerminalTraits traits = terminal_traits(STDOUT_FILENO);
  if (options.once || !traits.escapes) {
    fmt::print("{}", watched.frame({.columns = traits.terminal ? terminal_width(STDOUT_FILENO) : 100,
                                    .colour = traits.color,
                                    .now = now_seconds()}));
    return kExitDone;
  }
  LiveScreen screen;
  while (true) {
    const LiveScreen::Size size = LiveScreen::size();
    const std::string frame = watched.frame({.columns = size.columns,
                                             .rows = size.rows - 1,  // the last one says how to leave
                                             .colour = traits.color,
                                             .now = now_seconds()});
    LiveScreen::show(frame + "q: quit");
    const LiveScreen::Event event = screen.wait(options.interval);
    if (event == LiveScreen::Event::Quit) return kExitDone;
    if (event == LiveScreen::Event::Time) watched.refresh();
  }
}

}  // namespace

Command watch_command() {
  CommandBuilder<Options> builder("watch", "Follow runs in the terminal while they train");
  builder.line.about =
      "Follows a run in the terminal: loss chart, speed, memory, GPU, FP8 statistics, evaluation, red flags and the time "
      "that is left. It only reads the files of the run, so the run may be on another machine that shares the folder.\n"
      "With several runs, or with a folder of runs, it shows a table of them.\n"
      "q or Ctrl-C leaves the view; the run is not touched. Without a terminal it prints one frame.";
  builder.words(
      &Options::runs,
      {.name = "RUN", .what = "run", .help = "Folder of a run, its metrics.jsonl, or a folder of runs."});
  builder.keys.add("once", &Options::once, "Print one frame and stop.");
  builder.keys.add("interval", &Options::interval, "Seconds between looks at the files.")
      .at_least(0.1)
      .at_most(3600)
      .value("SECONDS");
  return builder.command(run);
}

}  // namespace octet
