#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <string>
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

// What a command takes. It drives the parser, the error messages and --help.
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

// Describes a command whose values land in a struct, and makes the Command that reads them and runs it.
template <class Options>
class CommandBuilder {
 public:
  CommandBuilder(std::string name, std::string summary) {
    line.name = std::move(name);
    line.summary = std::move(summary);
    keys.group("Flags");
  }

  CommandLine line;  // usage, about and notes are set directly
  KeyTable<Options> keys;

  void word(std::string Options::*member, Positional positional) {
    line.words.push_back(std::move(positional));
    writers_.push_back([member](Options& options, std::span<const std::string> given) {
      if (!given.empty()) options.*member = given.front();
    });
  }
  void words(std::vector<std::string> Options::*member, Positional positional) {
    positional.many = true;
    line.words.push_back(std::move(positional));
    writers_.push_back([member](Options& options, std::span<const std::string> given) {
      (options.*member).assign(given.begin(), given.end());
    });
  }
  void run_arguments(RunArguments Options::*member, RunKeys kind = RunKeys::Taken) {
    line.run_keys = kind;
    line.words = {config_file_word()};
    write_run_ = [member](Options& options, const RunArguments& run) { options.*member = run; };
  }
  // Keys of 'octet train' for a command with words of its own.
  void run_settings(RunArguments Options::*member) {
    line.run_keys = RunKeys::Taken;
    line.own_words = true;
    write_run_ = [member](Options& options, const RunArguments& run) { options.*member = run; };
  }
  // Adds errors about values that are valid one by one but not together.
  void check(std::function<void(const Options&, std::vector<std::string>& errors)> function) {
    check_ = std::move(function);
  }

  Command command(int (*run)(const Options&)) {
    line.keys.assign(keys.keys().begin(), keys.keys().end());
    return {line, [builder = *this, run](std::span<const std::string> arguments) {
              const ParsedLine parsed = parse_command_line(builder.line, arguments);
              return parsed.help ? print_help(builder.line) : run(builder.options_from(parsed));
            }};
  }

 private:
  Options options_from(ParsedLine parsed) const {
    Options options;
    for (const KeyAssignment& assignment : parsed.own) keys.set(options, assignment.index, assignment.value);
    if (write_run_) write_run_(options, parsed.run);
    std::span<const std::string> rest = parsed.words;
    for (size_t i = 0; i < writers_.size(); ++i) {
      const size_t count = line.words[i].many ? rest.size() : std::min<size_t>(1, rest.size());
      writers_[i](options, rest.first(count));
      rest = rest.subspan(count);
    }
    if (check_ && !parsed.has_unknown) check_(options, parsed.errors);
    throw_errors(parsed);
    log_notes(parsed.notes);
    return options;
  }

  std::vector<std::function<void(Options&, std::span<const std::string>)>>
      writers_;  // as line.words, except CONFIG.yaml
  std::function<void(Options&, const RunArguments&)> write_run_;
  std::function<void(const Options&, std::vector<std::string>&)> check_;
};

}  // namespace octet
