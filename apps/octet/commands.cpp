#include <fmt/format.h>

#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "command.h"
#include "other_names.h"

namespace octet {

std::span<const Command> commands() {
  static const std::vector<Command> kCommands = {
      train_command(),  launch_command(),     submit_command(),   sweep_command(),    plan_command(),
      doctor_command(), bench_command(),      generate_command(), eval_command(),     checkpoints_command(),
      export_command(), plot_command(),       compare_command(),  watch_command(),    tensorboard_command(),
      wandb_command(),  lr_command(),         prepare_command(),  tokenize_command(), import_command(),
      session_command(), keys_command(),   completion_command(), man_command(),      help_command(),
  };
  return kCommands;
}

namespace {

constexpr ExitCodeText kExitCodes[] = {
    {"0", "done"},
    {"1", "failure"},
    {"2", "wrong usage, configuration, model or data; nothing was started"},
    {"3", "no finite gradient for three steps, or in the whole run"},
    {"4", "three checkpoints in a row, or the last one, could not be saved"},
    {"75", "stopped by a signal after saving, or by the failure of a rank; continue with --resume latest"},
    {"128 + N", "ended at once by signal N"},
};

}  // namespace

std::span<const ExitCodeText> exit_code_texts() {
  return kExitCodes;
}

const Command& find_command(std::string_view name) {
  std::vector<std::string> names;
  for (const Command& command : commands()) {
    if (command.line.name == name) return command;
    names.push_back(command.line.name);
  }
  if (const std::string here = command_here(name); !here.empty())
    fail_config("unknown command '{}'; {}", printable(name), here);
  const std::string near = nearest_name(name, names);
  fail_config("unknown command '{}'; {}", printable(name),
              near.empty() ? "'octet --help' lists the commands" : fmt::format("did you mean '{}'?", near));
}

std::string program_help() {
  constexpr size_t kIndent = 15;
  const auto entry = [](const std::string& head, const std::string& text) {
    return help_entry(head, text, "", kIndent);
  };
  std::string text =
      "Usage: octet COMMAND [ARGUMENTS]\n\n"
      "octet trains language models in FP8.\n\nCommands\n";
  for (const Command& command : commands()) text += entry(command.line.name, command.line.summary);
  text += "\nFlags\n";
  text += entry("-h, --help", "Print this help. 'octet help COMMAND' prints the help of a command.");
  text += entry("--version", "Print the version.");
  text += '\n';
  text += help_paragraphs(
      "All commands read flags by the same rules: --key value or --key=value. Dashes in a name count as "
      "underscores. A bool flag may stand alone. Write --key=value for a value that looks like a flag. Every "
      "word after -- is an argument, not a flag.");
  text += "\nExit codes\n";
  for (const ExitCodeText& each : kExitCodes) text += entry(each.code, each.meaning);
  return text;
}

namespace {

struct Options {
  std::string command;
};

int run(const Options& options) {
  if (!options.command.empty()) return print_help(find_command(options.command).line);
  fmt::print("{}", program_help());
  return kExitDone;
}

}  // namespace

Command help_command() {
  CommandBuilder<Options> builder("help", "Print the help of a command");
  builder.line.about = "Prints the help of a command, or the list of commands.";
  builder.word(&Options::command, {.name = "COMMAND",
                                   .what = "command",
                                   .help = "Name of a command. Without it, the list of commands is printed.",
                                   .required = false});
  return builder.command(run);
}

}  // namespace octet
