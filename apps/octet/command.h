#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/exit_codes.h"
#include "command_line.h"

namespace octet {

// Every command, in the order of --help.
std::span<const Command> commands();

// ConfigError with the nearest name where there is no such command.
const Command& find_command(std::string_view name);

// The help of the program itself.
std::string program_help();

struct ExitCodeText {
  const char* code;
  const char* meaning;
};
std::span<const ExitCodeText> exit_code_texts();

Command train_command();
Command launch_command();
Command submit_command();
Command sweep_command();
Command plan_command();
Command doctor_command();
Command bench_command();
Command generate_command();
Command eval_command();
Command checkpoints_command();
Command export_command();
Command plot_command();
Command compare_command();
Command watch_command();
Command tensorboard_command();
Command wandb_command();
Command lr_command();
Command prepare_command();
Command tokenize_command();
Command import_command();
Command session_command();
Command keys_command();
Command completion_command();
Command man_command();
Command help_command();

// Prints the candidates for the last of these words of a call, for the scripts of 'octet completion'.
int print_candidates(std::span<const std::string> arguments);

// The command 'octet checkpoints DIRECTORY'. Returns the exit code.
int list_checkpoints(const std::string& directory);

// The argument of all commands that read a model.
inline constexpr const char* kModelHelp =
    "Hugging Face folder or hub id, adapter folder, checkpoint folder (step_N), or run folder.";
inline constexpr const char* kBestHelp =
    "For a run: use the checkpoint with the best evaluation loss instead of the latest one.";

// The options of such a command have a member adapter_name_or_path.
template <class Options>
void add_adapter_key(KeyTable<Options>& keys) {
  keys.add("adapter_name_or_path", &Options::adapter_name_or_path,
           "Adapter to add to the base model MODEL: a PEFT folder, or a LoRA checkpoint or run.")
      .value("ADAPTER")
      .note("none; if MODEL is an adapter, that one");
}

}  // namespace octet
