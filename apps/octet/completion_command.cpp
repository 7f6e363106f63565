#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"
#include "command.h"
#include "config/config.h"

namespace octet {
namespace {

// Each script asks 'octet __complete WORDS...' what may stand in the place of the last word. The answer has a line for
// each candidate, with a tab before its description, or one line :files, :folders or :yaml.

constexpr const char* kBash = R"sh(# Completion of octet for bash: eval "$(octet completion bash)"
# Made by 'octet completion'; do not edit.
_octet() {
  local word help cur=${COMP_WORDS[COMP_CWORD]}
  [[ $cur == "=" ]] && cur=  # the shell splits --key=value into three words
  COMPREPLY=()
  while IFS=$'\t' read -r word help; do
    [[ $word == :* ]] && compopt -o filenames 2>/dev/null
    case $word in
      :folders) mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
      :files) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
      :yaml) mapfile -t COMPREPLY < <(compgen -f -X '!*.@(yaml|yml|json)' -- "$cur"; compgen -d -- "$cur") ;;
      "$cur"*) COMPREPLY+=("$word") ;;
    esac
  done < <("${COMP_WORDS[0]/#\~/$HOME}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
shopt -s extglob
complete -F _octet octet
)sh";

constexpr const char* kZsh = R"sh(#compdef octet
# Completion of octet for zsh: save it as _octet in a folder of $fpath, or: source <(octet completion zsh)
# Made by 'octet completion'; do not edit.
_octet() {
  local line
  local -a found
  [[ ${words[CURRENT]} == --*=* ]] && compset -P '*='
  for line in ${(f)"$(${~words[1]} __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)"}; do
    case $line in
      :folders) _files -/ ;;
      :files) _files ;;
      :yaml) _files -g '*.(yaml|yml|json)' ;;
      *) found+=("${line/$'\t'/:}") ;;
    esac
  done
  (( $#found )) && _describe octet found
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  _octet "$@"
else
  compdef _octet octet
fi
)sh";

constexpr const char* kFish = R"sh(# Completion of octet for fish: octet completion fish | source
# Made by 'octet completion'; do not edit.
function __octet_complete
  set -l words (commandline -opc)
  set -l word (commandline -ct)
  set -l key (string match -r -- '^--[^=]*=' $word)
  set -l value (string replace -r -- '^--[^=]*=' '' $word)
  for line in (eval $words[1] __complete (string escape -- $words[2..-1] "$word"))
    switch $line
      case :folders
        __fish_complete_directories "$value"
      case :files :yaml
        __fish_complete_path "$value"
      case '*'
        echo $line
    end
  end | string replace -r -- '^' "$key"
end
complete -c octet -f -a '(__octet_complete)'
)sh";

struct Shell {
  std::string_view name;
  const char* script;
};
constexpr std::array kShells = {Shell{"bash", kBash}, Shell{"zsh", kZsh}, Shell{"fish", kFish}};

std::string first_sentence(std::string_view text) {
  std::string sentence(text.substr(0, text.find(". ")));
  while (sentence.ends_with('.')) sentence.pop_back();
  std::ranges::replace(sentence, '\n', ' ');
  return sentence;
}

bool names_files(const Key& key) {
  constexpr std::string_view kNames[] = {
      "dataset", "eval_dataset",         "tokenizer",    "model_name_or_path",
      "resume",  "adapter_name_or_path", "chat_template"};
  return key.value_name.find("FILE") != std::string::npos ||
         std::ranges::find(kNames, key.name) != std::end(kNames);
}

void print_values(const Key& key) {
  if (key.type == KeyType::Choice) {
    for (const std::string& choice : key.choices) fmt::print("{}\n", choice);
  } else if (key.name == "report_to") {
    fmt::print("wandb\ntensorboard\nall\nnone\n");
  } else if (key.name.ends_with("_dir") || key.value_name == "DIR") {
    fmt::print(":folders\n");
  } else if (names_files(key)) {
    fmt::print(":files\n");
  }
}

void print_flags(std::span<const Key> keys) {
  for (const Key& key : keys) fmt::print("--{}\t{}\n", key.name, first_sentence(key.help));
}

void print_commands() {
  for (const Command& command : commands()) fmt::print("{}\t{}\n", command.line.name, command.line.summary);
}

void print_words(const CommandLine& line) {
  if (line.name == "help" || line.name == "launch") {
    print_commands();
  } else if (line.name == "completion") {
    for (const Shell& shell : kShells) fmt::print("{}\n", shell.name);
  } else if (line.run_keys != RunKeys::No) {
    fmt::print(":yaml\n");
  } else if (!line.words.empty() && line.name != "keys") {
    fmt::print(":files\n");
  }
}

// The key that a word with dashes names.
const Key* key_of(const CommandLine& line, std::string_view word) {
  if (!word.starts_with("-")) return nullptr;
  if (!word.starts_with("--")) {
    const auto is_it = [&](const Key& key) {
      return key.short_name && word.substr(1) == std::string_view(&key.short_name, 1);
    };
    const auto found = std::ranges::find_if(line.keys, is_it);
    return found == line.keys.end() ? nullptr : &*found;
  }
  std::string name(word.substr(2));
  std::ranges::replace(name, '-', '_');
  const Key* key = key_called(line.keys, name);
  return !key && line.run_keys != RunKeys::No ? key_called(train_keys().keys(), name) : key;
}

struct Options {
  std::string shell;
};

int run(const Options& options) {
  const auto shell = std::ranges::find(kShells, std::string_view(options.shell), &Shell::name);
  if (shell == kShells.end())
    fail_config("there is no completion for '{}'; expected bash, zsh or fish", printable(options.shell));
  fmt::print("{}", shell->script);
  return kExitDone;
}

}  // namespace

int print_candidates(std::span<const std::string> arguments) {
  std::vector<std::string> words(arguments.begin(), arguments.end());
  if (words.empty()) words.emplace_back();
  if (words.back() == "=") words.back().clear();
  std::erase(words, "=");
  if (words.back().starts_with("--")) {
    const size_t equals = words.back().find('=');
    if (equals != std::string::npos) {
      words.push_back(words.back().substr(equals + 1));
      words[words.size() - 2].resize(equals);
    }
  }
  const size_t last = words.size() - 1;
  size_t at = 0;
  while (at < last && words[at].starts_with('-')) ++at;
  if (at == last) {
    print_commands();
    fmt::print("--help\tPrint the help\n--version\tPrint the version\n");
    return kExitDone;
  }
  const CommandLine* line = &find_command(words[at]).line;
  // octet launch [FLAGS] COMMAND: behind COMMAND everything belongs to it.
  if (line->name == "launch") {
    for (++at; at < last && words[at].starts_with('-');)
      at += words[at].find('=') == std::string::npos ? 2 : 1;
    if (at < last) line = &find_command(words[at]).line;
  }
  const Key* key = key_of(*line, words[last - 1]);
  if (key && key->type != KeyType::Bool) {
    print_values(*key);
  } else if (words[last].starts_with('-')) {
    print_flags(line->keys);
    fmt::print("--help\tPrint this help\n");
    if (line->run_keys != RunKeys::No) print_flags(train_keys().keys());
  } else {
    print_words(*line);
  }
  return kExitDone;
}

Command completion_command() {
  CommandBuilder<Options> builder("completion", "Print the completion script of a shell");
  builder.line.about =
      "Prints a script that completes octet's commands, flags, choices and files. 'make install' installs it for all "
      "three shells. For this shell only:\n"
      "bash: eval \"$(octet completion bash)\"\n"
      "zsh: source <(octet completion zsh)\n"
      "fish: octet completion fish | source";
  builder.word(&Options::shell, {.name = "SHELL", .what = "shell", .help = "bash, zsh or fish."});
  return builder.command(run);
}

}  // namespace octet
