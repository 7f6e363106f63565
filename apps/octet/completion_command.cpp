#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "command.h"
#include "completion_text.h"

namespace octet {
namespace {

struct Options {
  std::string shell;
};

int run(const Options& options) {
  if (options.shell == "bash") {
    fmt::print("{}", bash_completion());
  } else if (options.shell == "zsh") {
    fmt::print("{}", zsh_completion());
  } else if (options.shell == "fish") {
    fmt::print("{}", fish_completion());
  } else {
    fail_config("there is no completion for '{}'; expected bash, zsh or fish", printable(options.shell));
  }
  return kExitDone;
}

}  // namespace

Command completion_command() {
  CommandBuilder<Options> builder("completion", "Print the completion script of a shell");
  builder.line.about =
      "Prints a script that completes octet's commands, flags, choices and files. 'make install' installs it for all "
      "three shells. For this shell only:\n"
      "bash: eval \"$(octet completion bash)\"\n"
      "zsh: source <(octet completion zsh)\n"
      "fish: octet completion fish | source";
  builder.word(&Options::shell, {.name = "SHELL", .what = "shell", .help = "bash, zsh or fish."});
  return builder.command(run);
}

}  // namespace octet
