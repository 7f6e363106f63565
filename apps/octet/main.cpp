#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>

#include "base/error.h"
#include "base/text.h"
#include "command.h"
#include "plan/data_prepare.h"

namespace octet {

std::span<const Command> commands() {
  static constexpr Command kCommands[] = {
      {"train", "Pretrain or fine-tune a model; without arguments, the built-in demo", train_command},
      {"plan", "Show layers, FP8 coverage and memory of a run before it starts", plan_command},
      {"bench", "Measure training steps on this device, BF16 beside FP8", bench_command},
      {"generate", "Continue prompts with a model, a checkpoint or a run", generate_command},
      {"eval", "Measure loss, perplexity and accuracy of a model on a dataset", eval_command},
      {"checkpoints", "List the checkpoints of a run", checkpoints_command},
      {"export", "Write a Hugging Face folder from a checkpoint", export_command},
      {"plot", "Draw loss, learning rate and throughput of runs", plot_command},
      {"prepare", "Turn a dataset into token shards that training reads at once", prepare_command},
      {"tokenize", "Turn the text on stdin into token ids, or ids into text", tokenize_command},
      {"keys", "List the configuration keys", keys_command},
  };
  return kCommands;
}

namespace {

// CLI11 lays out the help and reads the options that stand before a command. What follows a command's name is
// the command's own: a dataset that happens to be called "train" must not be taken for another command.
int run_program(std::span<const std::string> arguments) {
  CLI::App app("octet trains language models in FP8.", "octet");
  app.set_version_flag("--version", "octet " OCTET_VERSION, "Print the version and exit");
  app.footer(
      "'octet COMMAND --help' lists what a command takes.\n"
      "Exit codes: 0 done, 1 failure, 2 wrong usage or configuration, 3 no finite gradient for three steps, "
      "4 three "
      "checkpoints\ncould not be saved, 75 stopped by a signal and saved (go on with --resume latest), 128 + "
      "N ended "
      "at once by signal N.");
  app.get_formatter()->label("SUBCOMMAND", "COMMAND");
  for (const Command& command : commands())
    app.add_subcommand(command.name, command.summary)->group("Commands");

  if (arguments.empty()) {
    fmt::print("{}", app.help());
    return kExitDone;
  }
  const std::string& first = arguments.front();
  if (first.starts_with("-")) {
    std::vector<std::string> options{first};
    try {
      app.parse(options);
    } catch (const CLI::CallForHelp&) {
      fmt::print("{}", app.help());
    } catch (const CLI::CallForVersion& e) {
      fmt::print("{}\n", e.what());
    }
    return kExitDone;
  }
  std::vector<std::string> names;
  for (const Command& command : commands()) {
    if (first == command.name) return command.run(arguments.subspan(1));
    names.emplace_back(command.name);
  }
  const std::string near = nearest_name(first, names);
  fail_config("unknown command '{}'; {}", printable(first),
              near.empty() ? "'octet --help' lists the commands" : fmt::format("did you mean '{}'?", near));
}

void print_error(std::string_view message) {
  while (!message.empty()) {
    const size_t end = std::min(message.find('\n'), message.size());
    if (end > 0) fmt::print(stderr, "error: {}\n", message.substr(0, end));
    message.remove_prefix(std::min(end + 1, message.size()));
  }
}

}  // namespace
}  // namespace octet

int main(int argc, char** argv) {
  using namespace octet;
  try {
    const std::vector<std::string> arguments(argv + (argc > 0), argv + argc);
    const int code = run_program(arguments);
    // A full disk or closed pipe shows only here.
    if (std::fflush(stdout) != 0) fail("cannot write to the standard output");
    return code;
  } catch (const CLI::ParseError& e) {
    print_error(e.what());
    return kExitUsage;
  } catch (const ConfigError& e) {
    print_error(e.what());
    return kExitUsage;
  } catch (const Interrupted& e) {
    print_error(e.what());
    return 128 + e.signal();
  } catch (const std::bad_alloc&) {
    print_error("out of memory on the host");
  } catch (const std::exception& e) {
    print_error(e.what());
  }
  return kExitFailure;
}
