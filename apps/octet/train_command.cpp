#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/resume.h"
#include "command.h"
#include "train/trainer.h"

namespace octet {
namespace {

std::string train_help() {
  return fmt::format(
      "Usage: octet train [CONFIG.yaml] [--key value]...\n\n"
      "Pretrains or fine-tunes a model. Without arguments it trains the built-in demo.\n"
      "Each key below may stand in the YAML file or be given as a flag (--key value, --key=value; a bool\n"
      "may stand alone); flags win over the file.\n{}\n"
      "  -h, --help                      Print this.\n",
      keys_help(train_keys().keys()));
}

}  // namespace

int train_command(std::span<const std::string> arguments) {
  std::vector<std::string> errors;
  const KeyArguments parsed = parse_key_arguments(train_keys().keys(), arguments, errors);
  if (parsed.help) {
    fmt::print("{}", train_help());
    return kExitDone;
  }
  throw_config_errors(errors);
  if (parsed.positionals.size() > 1) {
    fail_config("octet train takes one configuration file, got '{}' and '{}'",
                printable(parsed.positionals[0]), printable(parsed.positionals[1]));
  }
  const std::string path = parsed.positionals.empty() ? "" : parsed.positionals[0];
  if (!parsed.positionals.empty() && path.empty()) fail_config("the name of the configuration file is empty");
  return train(load_resumable_config(path, parsed.settings));
}

}  // namespace octet
