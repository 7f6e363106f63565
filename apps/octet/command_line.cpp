#include "command_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "base/error.h"
#include "base/exit_codes.h"
#include "base/text.h"
#include "config/config.h"
#include "import/flags.h"
#include "sweep/sweep_spec.h"

namespace octet {
namespace {

PositionalKind kind_of_words(const CommandLine& line) {
  if (line.run_keys != RunKeys::No && !line.own_words) return PositionalKind::ConfigFile;
  return line.words.empty() ? PositionalKind::None : PositionalKind::Any;
}

// 'a', 'b' and 'c'
std::string quoted_list(std::span<const std::string> words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string_view separator = i == 0 ? "" : i + 1 == words.size() ? " and " : ", ";
    text += fmt::format("{}'{}'", separator, printable(words[i]));
  }
  return text;
}

void check_words(const CommandLine& line, ParsedLine& parsed) {
  const std::vector<Positional>& expected = line.words;
  const bool many = !expected.empty() && expected.back().many;
  if (parsed.words.size() > expected.size() && !many) {
    const std::string limit = expected.empty()       ? "takes flags only"
                              : expected.size() == 1 ? fmt::format("takes one {}", expected.front().what)
                                                     : fmt::format("takes {} words", expected.size());
    parsed.errors.push_back(fmt::format("octet {} {}, got {}", line.name, limit, quoted_list(parsed.words)));
  }
  for (size_t i = 0; i < parsed.words.size(); ++i) {
    if (parsed.words[i].empty() && !expected.empty()) {
      parsed.errors.push_back(
          fmt::format("the name of the {} is empty", expected[std::min(i, expected.size() - 1)].what));
    }
  }
  for (size_t i = parsed.words.size(); i < expected.size() && !parsed.has_unknown; ++i) {
    if (expected[i].required) {
      parsed.errors.push_back(
          fmt::format("octet {} needs {}: {}", line.name, expected[i].name, expected[i].help));
    }
  }
}

// A required key with a bad value is not reported as missing, too.
void check_required(const CommandLine& line, std::span<const KeySetting> given, ParsedLine& parsed) {
  if (parsed.has_unknown) return;
  for (const Key& key : line.keys) {
    const auto sets_key = [&](const KeySetting& setting) {
      return key_called(line.keys, setting.name) == &key;
    };
    if (key.required && std::ranges::none_of(given, sets_key))
      parsed.errors.push_back(fmt::format("octet {} needs {}", line.name, flag_text(key)));
  }
}

// Flags that are not of this command may be of another program.
void translate_flags(const CommandLine& line, std::vector<KeySetting>& settings, ParsedLine& parsed) {
  const auto is_of_command = [&](const KeySetting& setting) { return key_called(line.keys, setting.name); };
  const auto others = std::ranges::stable_partition(settings, is_of_command);
  std::vector<KeySetting> run(std::make_move_iterator(others.begin()), std::make_move_iterator(others.end()));
  settings.erase(others.begin(), others.end());
  std::ranges::move(translate_settings(std::move(run), parsed.notes, parsed.errors),
                    std::back_inserter(settings));
}

// The flag for something else that people give instead of a configuration file; "" if the word may be a configuration.
std::string other_than_config(const std::string& word) {
  namespace fs = std::filesystem;
  std::error_code code;
  const fs::path path(word);
  if (fs::is_directory(path, code)) {
    if (fs::exists(path / "config.json", code) || fs::exists(path / "adapter_config.json", code))
      return fmt::format("'{}' is a folder with a model; give it as --model_name_or_path {}", word, word);
    if (fs::exists(path / "config.yaml", code))
      return fmt::format("'{}' is the folder of a run; continue it with --resume {}, or give its config.yaml",
                         word, word);
    return fmt::format("'{}' is a folder, not a configuration file; give data as --dataset {}", word, word);
  }
  constexpr std::string_view kData[] = {".txt", ".jsonl", ".csv", ".tsv", ".parquet",
                                        ".bin", ".gz",    ".zst", ".md"};
  constexpr std::string_view kWeights[] = {".safetensors", ".pt", ".pth", ".ckpt", ".gguf"};
  const std::string extension = path.extension().string();
  if (std::ranges::find(kData, extension) != std::end(kData))
    return fmt::format("'{}' holds data, not a configuration; give it as --dataset {}", word, word);
  if (std::ranges::find(kWeights, extension) != std::end(kWeights))
    return fmt::format("'{}' holds weights; give their Hugging Face folder as --model_name_or_path", word);
  return "";
}

}  // namespace

std::string usage_of(const CommandLine& line) {
  if (!line.usage.empty()) return line.usage;
  std::string text;
  for (const Positional& word : line.words) {
    const std::string name = word.name + (word.many ? "..." : "");
    text += word.required ? fmt::format(" {}", name) : fmt::format(" [{}]", name);
  }
  const bool takes_run_keys = line.run_keys != RunKeys::No;
  bool has_more = takes_run_keys;
  for (const Key& key : line.keys) {
    if (key.required) {
      text += fmt::format(" --{} {}", key.name, key.value_name.empty() ? "VALUE" : key.value_name);
    } else {
      has_more = true;
    }
  }
  if (has_more) text += takes_run_keys ? " [--key value]..." : " [FLAGS]";
  return text.substr(text.empty() ? 0 : 1);
}

Positional config_file_word() {
  return {.name = "CONFIG.yaml",
          .what = "configuration file",
          .help =
              "YAML file with keys of 'octet train', or a configuration of another program (see 'octet help "
              "import'). Flags override it.",
          .required = false};
}

namespace {

// --config FILE, as other programs have it: the same as FILE alone.
std::vector<std::string> without_config_flag(std::span<const std::string> arguments) {
  std::vector<std::string> words;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "--") {
      words.insert(words.end(), arguments.begin() + static_cast<ptrdiff_t>(i), arguments.end());
      break;
    }
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const bool is_flag =
        name == "--config" || name == "--config_file" || name == "--config-file" || name == "-c";
    if (!is_flag) {
      words.push_back(word);
    } else if (equals != std::string::npos) {
      words.push_back(word.substr(equals + 1));
    }
  }
  return words;
}

}  // namespace

ParsedLine parse_command_line(const CommandLine& line, std::span<const std::string> given) {
  const std::vector<std::string> arguments = line.run_keys == RunKeys::No
                                                 ? std::vector<std::string>(given.begin(), given.end())
                                                 : without_config_flag(given);
  // One list, so that a misspelt flag finds the nearest of both kinds.
  std::vector<Key> keys = line.keys;
  if (line.run_keys != RunKeys::No)
    keys.insert(keys.end(), train_keys().keys().begin(), train_keys().keys().end());
  const size_t own_count = keys.size();
  if (line.run_keys != RunKeys::No) std::ranges::copy(foreign_keys(), std::back_inserter(keys));
  ParsedLine parsed;
  KeyArguments read = parse_key_arguments(keys, arguments, parsed.errors, kind_of_words(line));
  if (read.help) return {.help = true};
  keys.resize(own_count);
  if (line.run_keys != RunKeys::No) translate_flags(line, read.settings, parsed);
  parsed.words = std::move(read.positionals);
  parsed.has_unknown = read.has_unknown;

  for (KeyAssignment& assignment : resolve_settings(keys, read.settings, parsed.errors)) {
    if (assignment.index >= line.keys.size()) continue;
    if (!line.keys[assignment.index].repeats && value_text(assignment.value).empty())
      parsed.errors.push_back(fmt::format("{} is empty; expected a value", assignment.origin));
    parsed.own.push_back(std::move(assignment));
  }
  check_words(line, parsed);
  check_required(line, read.settings, parsed);
  if (line.run_keys == RunKeys::No) return parsed;

  if (parsed.words.size() == 1 && !line.own_words) {
    const std::string other = other_than_config(parsed.words.front());
    if (other.empty()) {
      parsed.run.config_file = parsed.words.front();
    } else {
      parsed.errors.push_back(other);
    }
  }
  for (KeySetting& setting : read.settings) {
    if (!key_called(line.keys, setting.name)) parsed.run.settings.push_back(std::move(setting));
  }
  return parsed;
}

void throw_errors(const ParsedLine& parsed) {
  if (parsed.errors.empty()) return;
  std::vector<std::string> errors;
  if (!parsed.run.config_file.empty() && !is_sweep_file(parsed.run.config_file)) {
    try {
      SettingsNotes unused;
      const FileSettings file = read_run_file(parsed.run.config_file, unused);
      errors = file.errors;
      resolve_settings(train_keys().keys(), file.settings, errors);
    } catch (const ConfigError& error) {
      errors.emplace_back(error.what());
    }
  }
  errors.insert(errors.end(), parsed.errors.begin(), parsed.errors.end());
  throw_config_errors(errors);
}

std::string help_text(const CommandLine& line) {
  std::string text = help_paragraphs(fmt::format("Usage: octet {} {}", line.name, usage_of(line)));
  text += '\n' + help_paragraphs(line.about.empty() ? line.summary + "." : line.about);
  if (!line.words.empty()) text += "\nArguments\n";
  for (const Positional& word : line.words)
    text += help_entry(word.name + (word.many ? "..." : ""), word.help);
  const std::string help = help_entry("-h, --help", "Print this help.");
  if (line.run_keys == RunKeys::Listed) {
    text += keys_help(line.keys) + keys_help(train_keys().keys()) + '\n' + help;
  } else {
    text += (line.keys.empty() ? "\nFlags\n" : keys_help(line.keys)) + help;
  }
  if (line.run_keys == RunKeys::Taken)
    text += "\nAll keys of 'octet train' may be given, too. 'octet help train' lists them.\n";
  if (!line.notes.empty()) text += '\n' + help_paragraphs(line.notes);
  return text;
}

int print_help(const CommandLine& line) {
  fmt::print("{}", help_text(line));
  return kExitDone;
}

CommandReader::CommandReader(std::string_view name, std::string_view summary) {
  line.name = name;
  line.summary = summary;
}
CommandReader::CommandReader(const CommandReader&) = default;
CommandReader::~CommandReader() = default;

void CommandReader::add_word(Positional positional, size_t offset) {
  line.words.push_back(std::move(positional));
  words_.push_back(offset);
}

void CommandReader::add_words(Positional positional, size_t offset) {
  positional.many = true;
  add_word(std::move(positional), offset);
}

void CommandReader::add_run_arguments(RunKeys kind, size_t offset) {
  line.run_keys = kind;
  line.words = {config_file_word()};
  run_ = offset;
}

void CommandReader::add_run_settings(size_t offset) {
  line.run_keys = RunKeys::Taken;
  line.own_words = true;
  run_ = offset;
}

void CommandReader::read_into(void* options, const KeyTableBase& keys, const ParsedLine& parsed) const {
  char* const begin = static_cast<char*>(options);
  for (const KeyAssignment& assignment : parsed.own) keys.set_in(options, assignment.index, assignment.value);
  if (run_) *reinterpret_cast<RunArguments*>(begin + *run_) = parsed.run;
  std::span<const std::string> rest = parsed.words;
  for (size_t i = 0; i < words_.size(); ++i) {
    if (line.words[i].many) {
      reinterpret_cast<std::vector<std::string>*>(begin + words_[i])->assign(rest.begin(), rest.end());
      rest = {};
    } else if (!rest.empty()) {
      *reinterpret_cast<std::string*>(begin + words_[i]) = rest.front();
      rest = rest.subspan(1);
    }
  }
}

Command CommandReader::make_command(const CommandLine& line, std::function<int(ParsedLine& parsed)> run) {
  return {line, [line, run = std::move(run)](std::span<const std::string> arguments) {
            ParsedLine parsed = parse_command_line(line, arguments);
            return parsed.help ? print_help(line) : run(parsed);
          }};
}

void CommandReader::finish(const ParsedLine& parsed) {
  throw_errors(parsed);
  log_notes(parsed.notes);
}

}  // namespace octet
