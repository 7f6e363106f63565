#include "run_arguments.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "config/config.h"

namespace octet {

RunArguments parse_run_arguments(std::string_view command, std::span<const Key> own_keys,
                                 std::span<const std::string> arguments) {
  // One list, so that a mistyped flag finds the nearest of both kinds.
  std::vector<Key> keys(own_keys.begin(), own_keys.end());
  keys.insert(keys.end(), train_keys().keys().begin(), train_keys().keys().end());
  std::vector<std::string> errors;
  KeyArguments parsed = parse_key_arguments(keys, arguments, errors);
  if (parsed.help) return {.help = true};

  RunArguments result;
  for (KeyAssignment& assignment : resolve_settings(keys, parsed.settings, errors)) {
    if (assignment.index >= own_keys.size()) continue;
    if (value_text(assignment.value).empty())
      errors.push_back(fmt::format("{} is empty; expected a value", assignment.origin));
    result.own.push_back(std::move(assignment));
  }
  throw_config_errors(errors);
  if (parsed.positionals.size() > 1) {
    fail_config("octet {} takes one configuration file, got '{}' and '{}'", command,
                printable(parsed.positionals[0]), printable(parsed.positionals[1]));
  }
  if (!parsed.positionals.empty()) {
    result.config_file = parsed.positionals[0];
    if (result.config_file.empty()) fail_config("the name of the configuration file is empty");
  }
  for (KeySetting& setting : parsed.settings) {
    const bool is_own =
        std::ranges::any_of(own_keys, [&](const Key& key) { return key.name == setting.name; });
    if (!is_own) result.settings.push_back(std::move(setting));
  }
  return result;
}

}  // namespace octet
