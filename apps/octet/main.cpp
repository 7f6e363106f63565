#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>

#include "base/error.h"
#include "base/print.h"
#include "base/version.h"
#include "command.h"
#include "plan/data_prepare.h"

namespace octet {
namespace {

struct ProgramFlags {
  bool version = false;
};

// Flags before a command. Flags of a command go after its name.
int run_program_flags(std::span<const std::string> arguments) {
  KeyTable<ProgramFlags> table;
  table.add("version", &ProgramFlags::version, "Print the version.");
  std::vector<std::string> errors;
  const KeyArguments read = parse_key_arguments(table.keys(), arguments.first(1), errors);
  const std::vector<KeyAssignment> assignments = resolve_settings(table.keys(), read.settings, errors);
  if (!errors.empty()) errors.emplace_back("flags of a command go after its name: octet COMMAND --key value");
  throw_config_errors(errors);
  ProgramFlags flags;
  for (const KeyAssignment& assignment : assignments) table.set(flags, assignment.index, assignment.value);
  fmt::print("{}", flags.version ? fmt::format("octet {}\n", octet_version()) : program_help());
  return kExitDone;
}

// Everything after the name of a command belongs to it: a dataset called "train" is not read as another command.
int run_program(std::span<const std::string> arguments) {
  if (arguments.empty()) return find_command("help").run({});
  if (arguments.front() == "__complete") return print_candidates(arguments.subspan(1));
  if (arguments.front().starts_with("-")) return run_program_flags(arguments);
  return find_command(arguments.front()).run(arguments.subspan(1));
}

void print_error(std::string_view message) {
  while (!message.empty()) {
    const size_t end = std::min(message.find('\n'), message.size());
    if (end > 0) print_stderr("error: {}\n", message.substr(0, end));
    message.remove_prefix(std::min(end + 1, message.size()));
  }
}

}  // namespace
}  // namespace octet

int main(int argc, char** argv) {
  using namespace octet;
  // A file that grows beyond a limit (ulimit -f) is an error of the write, as a full disk is, and not the end of a run.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const std::vector<std::string> arguments(argv + (argc > 0), argv + argc);
    const int code = run_program(arguments);
    // A full disk or a closed pipe is only seen here.
    if (std::fflush(stdout) != 0) fail("cannot write to the standard output");
    return code;
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
