#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/keys.h"

namespace octet {

// What follows the name of a command that takes the keys of a run, and keys of its own as flags beside them.
struct RunArguments {
  bool help = false;                 // then nothing else is filled in
  std::string config_file;           // "": none is named
  std::vector<KeySetting> settings;  // of the run's keys
  std::vector<KeyAssignment> own;    // of the command's keys, by their index in its table
};

// Both kinds of keys are read by the same rules; their names must differ. Text given to a key of the command must not
// be empty. Throws ConfigError with everything that is wrong.
RunArguments parse_run_arguments(std::string_view command, std::span<const Key> own_keys,
                                 std::span<const std::string> arguments);

// The same, with the values of the command's keys written into `own`.
template <class Own>
RunArguments parse_run_arguments(std::string_view command, const KeyTable<Own>& table, Own& own,
                                 std::span<const std::string> arguments) {
  RunArguments parsed = parse_run_arguments(command, table.keys(), arguments);
  for (const KeyAssignment& assignment : parsed.own) table.set(own, assignment.index, assignment.value);
  return parsed;
}

}  // namespace octet
