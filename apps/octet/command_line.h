#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/keys.h"
#include "import/import.h"

namespace octet {

// A word of a call that is not a flag.
struct Positional {
  std::string name;  // in help: "MODEL"
  std::string what;  // in messages: "model"
  std::string help;
  bool required = true;
  bool many = false;  // any number from one; only the last positional may be so
};

enum class RunKeys {
  No,
  Taken,   // CONFIG.yaml and the keys of 'octet train' may be given; help refers to 'octet train'
  Listed,  // the same, and help lists the keys
};

// The arguments and flags of a command. They drive the parser, the error messages and --help.
struct CommandLine {
  std::string name;
  std::string summary;             // one line without a full stop, for the list of commands
  std::string usage;               // what follows "octet NAME"; empty: made from the rest
  std::string about;               // paragraphs, one per line; wrapped when printed
  std::vector<Positional> words;   // in their order
  std::vector<Key> keys;           // only of this command
  RunKeys run_keys = RunKeys::No;  // if taken, the only word is the configuration file, unless
  bool own_words = false;          // the words are the command's own
  std::string notes;               // paragraphs behind the flags
};

// The part of a call that describes a run: the configuration file ("": none) and keys of 'octet train'.
struct RunArguments {
  std::string config_file;
  std::vector<KeySetting> settings;
};

struct ParsedLine {
  bool help = false;               // then nothing else is filled in
  std::vector<std::string> words;  // counted, and none is empty, where there are no errors
  std::vector<KeyAssignment> own;  // by their index in CommandLine::keys
  RunArguments run;
  SettingsNotes notes;              // about flags of other programs
  bool has_unknown = false;         // an unknown flag: what seems to be missing may be that flag, misspelt
  std::vector<std::string> errors;  // messages for the user
};

Positional config_file_word();  // CONFIG.yaml

ParsedLine parse_command_line(const CommandLine& line, std::span<const std::string> arguments);

// Throws ConfigError if there are errors, together with those in the configuration file.
void throw_errors(const ParsedLine& parsed);

std::string usage_of(const CommandLine& line);  // what follows "octet NAME" in help
std::string help_text(const CommandLine& line);
int print_help(const CommandLine& line);  // to stdout; returns the exit code

struct Command {
  CommandLine line;
  // Gets what follows the command's name and returns the exit code. Errors are thrown: ConfigError exits with
  // kExitUsage, every other exception with kExitFailure.
  std::function<int(std::span<const std::string> arguments)> run;
};

// The part of CommandBuilder that does not depend on the struct, whose members it knows by their places.
class CommandReader {
 public:
  CommandReader(std::string_view name, std::string_view summary);
  CommandReader(const CommandReader&);
  ~CommandReader();

  CommandLine line;  // usage, about and notes are set directly

 protected:
  void add_word(Positional positional, size_t offset);
  void add_words(Positional positional, size_t offset);
  void add_run_arguments(RunKeys kind, size_t offset);
  void add_run_settings(size_t offset);

  // Writes what the call gives into a struct with the default values.
  void read_into(void* options, const KeyTableBase& keys, const ParsedLine& parsed) const;
  // Parses the words, and calls `run` unless help was asked for.
  static Command make_command(const CommandLine& line, std::function<int(ParsedLine& parsed)> run);
  static void finish(const ParsedLine& parsed);  // throws the errors, logs the notes

 private:
  std::vector<size_t> words_;  // where line.words go, except CONFIG.yaml
  std::optional<size_t> run_;
};

// Describes a command whose values land in a struct, and makes the Command that reads them and runs it.
template <class Options>
class CommandBuilder : public CommandReader {
 public:
  using Check = void (*)(const Options&, std::vector<std::string>& errors);

  CommandBuilder(std::string_view name, std::string_view summary) : CommandReader(name, summary) {
    keys.group("Flags");
  }

  KeyTable<Options> keys;

  void word(std::string Options::*member, Positional positional) {
    add_word(std::move(positional), offset_of(member));
  }
  void words(std::vector<std::string> Options::*member, Positional positional) {
    add_words(std::move(positional), offset_of(member));
  }
  void run_arguments(RunArguments Options::*member, RunKeys kind = RunKeys::Taken) {
    add_run_arguments(kind, offset_of(member));
  }
  // Keys of 'octet train' for a command with words of its own.
  void run_settings(RunArguments Options::*member) { add_run_settings(offset_of(member)); }
  // Adds errors about values that are valid one by one but not together.
  void check(Check function) { check_ = function; }

  Command command(int (*run)(const Options&)) {
    line.keys.assign(keys.keys().begin(), keys.keys().end());
    return make_command(line, [builder = std::make_shared<const CommandBuilder>(*this), run](ParsedLine& parsed) {
      Options options;
      builder->read_into(&options, builder->keys, parsed);
      if (builder->check_ && !parsed.has_unknown) builder->check_(options, parsed.errors);
      finish(parsed);
      return run(options);
    });
  }

 private:
  template <class T>
  static size_t offset_of(T Options::*member) {
    const Options options;
    return static_cast<size_t>(reinterpret_cast<const char*>(&(options.*member)) - reinterpret_cast<const char*>(&options));
  }

  Check check_ = nullptr;
};

}  // namespace octet
