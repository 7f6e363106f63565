#pragma once

#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "train/exit_codes.h"

namespace octet {

// `run` gets what follows the command's name and returns the exit code. Errors are thrown: ConfigError exits
// with kExitUsage, every other exception with kExitFailure.
struct Command {
  const char* name;
  const char* summary;
  int (*run)(std::span<const std::string> arguments);
};

// Every command, in the order of --help.
std::span<const Command> commands();

int train_command(std::span<const std::string> arguments);
int plan_command(std::span<const std::string> arguments);
int bench_command(std::span<const std::string> arguments);
int generate_command(std::span<const std::string> arguments);
int eval_command(std::span<const std::string> arguments);
int checkpoints_command(std::span<const std::string> arguments);
int export_command(std::span<const std::string> arguments);
int plot_command(std::span<const std::string> arguments);
int prepare_command(std::span<const std::string> arguments);
int tokenize_command(std::span<const std::string> arguments);
int keys_command(std::span<const std::string> arguments);

}  // namespace octet
