#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "command.h"

namespace octet {
namespace {

// docs/configuration.md is this text, and a test holds it to that.
std::string configuration_markdown() {
  return fmt::format(
      "# Configuration\n\n"
      "<!-- Written by `octet keys --markdown > docs/configuration.md`; edit src/config/config_keys.cpp "
      "instead. -->\n\n"
      "`octet train [CONFIG.yaml] [--key value]...` reads its keys from a YAML file and from flags.\n\n"
      "- The file is one flat map: `key: value` lines. Nested maps, duplicate keys and unknown keys are "
      "errors.\n"
      "- Every key is also a flag: `--key value` or `--key=value`; a bool may stand alone (`--fp8_head`). "
      "Dashes\n"
      "  may replace underscores (`--max-steps`). Flags win over the file.\n"
      "- An alias is an older or shorter spelling; giving a key and its alias together is an error.\n"
      "- Numbers may be written as `6e-4`; integers too where that is exact (`1e6`). `null` leaves the "
      "default.\n"
      "- A list is `[a, b]` in YAML and `a,b` as a flag.\n"
      "- The run's folder gets the resolved `config.yaml`, from which the same run can be started again.\n"
      "- A wrong configuration ends the program with exit code 2 before anything starts.\n"
      "{}",
      keys_markdown(train_keys().keys()));
}

}  // namespace

int keys_command(std::span<const std::string> arguments) {
  CLI::App app("Lists the configuration keys of octet train.", "octet keys");
  bool markdown = false;
  app.add_flag("--markdown", markdown, "As the page docs/configuration.md");
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // CLI11 takes them from the back
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return kExitDone;
  }
  fmt::print("{}", markdown ? configuration_markdown() : keys_help(train_keys().keys()).substr(1));
  return kExitDone;
}

}  // namespace octet
