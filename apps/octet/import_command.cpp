#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/print.h"
#include "base/text.h"
#include "command.h"
#include "config/notes.h"
#include "import/environment.h"
#include "import/import.h"
#include "import/tools.h"

namespace octet {
namespace {

struct Options {
  std::string file, output, format = "auto";
};

// A file that somebody else wrote is not replaced.
void check_output(const std::string& path) {
  std::error_code code;
  if (!std::filesystem::exists(path, code)) return;
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line) || !line.starts_with(kImportHeader))
    fail_config("--output is {}, which exists and was not written by 'octet import'; choose another name",
                printable(path));
}

int run(const Options& options) {
  if (!options.output.empty()) check_output(options.output);
  const auto tool = std::ranges::find(tools(), options.format, &Tool::word);
  const ImportResult result = import_file(options.file, tool == tools().end() ? nullptr : *tool);
  const std::string report = import_report(result) + environment_report();
  std::vector<std::string> errors = refusals(result);
  if (!errors.empty()) {
    print_stderr("{}\n", report);
    errors.insert(errors.begin(), fmt::format("{} cannot be imported; nothing was written", options.file));
    throw_config_errors(errors);
  }
  const TrainConfig config =
      load_train_config({.path = options.file, .settings = import_settings(result), .errors = {}}, {});
  warn_of_costly_settings({&config, 1});
  const std::string yaml = import_yaml(result);
  if (options.output.empty()) {
    fmt::print("{}", yaml);
    std::fflush(stdout);  // before the report, also in a pipe
    print_stderr("\n{}", report);
    return kExitDone;
  }
  std::ofstream file(options.output, std::ios::binary);
  file << yaml;
  file.close();
  if (!file) fail_config("--output is {}, which cannot be written", printable(options.output));
  print_stderr("{}", report);
  print_stdout("{}: written; use it with 'octet train {}'\n", options.output, options.output);
  return kExitDone;
}

}  // namespace

Command import_command() {
  CommandBuilder<Options> builder("import", "Turn a configuration of another program into one of octet");
  builder.line.about =
      "Reads a configuration of LLaMA-Factory, DeepSpeed, Accelerate, Axolotl, Transformers' "
      "TrainingArguments or TRL, and prints it as a configuration of octet. Every value has a comment that says "
      "where it came from.\n"
      "A report on stderr lists every key: mapped, derived, ignored, warned of or refused, each with the reason. It "
      "also names known mistakes. If a key changes what is trained and octet does not have it, nothing is written "
      "and the exit code is 2.\n"
      "'octet train FILE' does the same and starts the run.";
  builder.word(&Options::file,
               {.name = "FILE", .what = "configuration", .help = "YAML or JSON file of another program."});
  builder.keys.add("output", &Options::output, "Write the configuration to this file instead of stdout.")
      .value("FILE")
      .short_flag('o');
  std::vector<std::string> formats = {"auto"};
  for (const Tool* tool : tools()) formats.emplace_back(tool->word);
  builder.keys
      .add(
          "format", &Options::format, std::move(formats),
          "The program that the file belongs to. auto: the one that its keys tell. hf is Transformers' Trainer and TRL.")
      .also("hf", {"trl", "transformers", "trainer"});
  return builder.command(run);
}

}  // namespace octet
