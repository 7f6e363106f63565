#include "completion_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "base/shell_text.h"
#include "command.h"
#include "config/config.h"

namespace octet {
namespace {

enum class ValueKind { None, Choices, Files, Folders, Free };

// A flag, as a shell needs to know it.
struct Flag {
  std::string name;  // with its dashes
  std::string help;  // one line
  ValueKind kind = ValueKind::None;
  std::vector<std::string> choices;
};

bool names_files(const Key& key) {
  if (key.value_name.find("FILE") != std::string::npos) return true;
  constexpr std::string_view kNames[] = {
      "dataset", "eval_dataset",         "tokenizer",    "model_name_or_path",
      "resume",  "adapter_name_or_path", "chat_template"};
  return std::ranges::find(kNames, key.name) != std::end(kNames);
}

std::string first_sentence(std::string_view text) {
  const size_t end = text.find(". ");
  std::string sentence(text.substr(0, end == text.npos ? text.size() : end));
  while (sentence.ends_with('.')) sentence.pop_back();
  std::ranges::replace(sentence, '\n', ' ');
  return sentence;
}

Flag flag_of(const Key& key) {
  Flag flag{.name = "--" + key.name, .help = first_sentence(key.help)};
  if (key.type == KeyType::Choice) {
    flag.kind = ValueKind::Choices;
    flag.choices = key.choices;
  } else if (key.name == "report_to") {
    flag.kind = ValueKind::Choices;
    flag.choices = {"wandb", "tensorboard", "all", "none"};
  } else if (key.name.ends_with("_dir") || key.value_name == "DIR") {
    flag.kind = ValueKind::Folders;
  } else if (names_files(key)) {
    flag.kind = ValueKind::Files;
  } else if (key.type != KeyType::Bool) {
    flag.kind = ValueKind::Free;
  }
  return flag;
}

std::vector<Flag> flags_of(std::span<const Key> keys) {
  std::vector<Flag> flags;
  for (const Key& key : keys) {
    flags.push_back(flag_of(key));
    if (key.short_name) {
      flags.push_back(flags.back());
      flags.back().name = fmt::format("-{}", key.short_name);
    }
  }
  return flags;
}

std::vector<Flag> own_flags(const CommandLine& line) {
  std::vector<Flag> flags = flags_of(line.keys);
  flags.push_back({.name = "--help", .help = "Print this help"});
  return flags;
}

std::vector<Flag> run_flags() {
  return flags_of(train_keys().keys());
}

bool takes_run_keys(const CommandLine& line) {
  return line.run_keys != RunKeys::No;
}

// The kind of a command's words: "commands", "shells", "yaml", "none", or "files".
std::string_view words_kind(const CommandLine& line) {
  if (line.name == "help" || line.name == "launch") return "commands";
  if (line.name == "completion") return "shells";
  if (takes_run_keys(line)) return "yaml";
  return line.words.empty() || line.name == "keys" ? "none" : "files";
}

std::string command_names() {
  std::vector<std::string> names;
  for (const Command& command : commands()) names.push_back(command.line.name);
  return fmt::format("{}", fmt::join(names, " "));
}

std::string flag_names(const std::vector<Flag>& flags) {
  std::vector<std::string> names;
  for (const Flag& flag : flags) names.push_back(flag.name);
  return fmt::format("{}", fmt::join(names, " "));
}

// The value after a flag, as one word or "=a b c" for choices.
std::string kind_text(const Flag& flag) {
  switch (flag.kind) {
    case ValueKind::None:
      return "none";
    case ValueKind::Choices:
      return fmt::format("={}", fmt::join(flag.choices, " "));
    case ValueKind::Files:
      return "files";
    case ValueKind::Folders:
      return "folders";
    case ValueKind::Free:
      return "free";
  }
  return "none";
}

constexpr const char* kMade = "# Made by 'octet completion'; do not edit.\n";

std::string fish_quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') result += '\\';
    result += c;
  }
  return result + "'";
}

// "octet_values[train:--output]": what follows a flag, for bash and zsh.
std::string value_table(std::string_view name) {
  std::string text;
  const auto add = [&](std::string_view of, const std::vector<Flag>& flags) {
    for (const Flag& flag : flags) {
      if (flag.kind == ValueKind::None) continue;
      text += fmt::format("  {}[{}:{}]={}\n", name, of, flag.name, single_quoted(kind_text(flag)));
    }
  };
  add("run", run_flags());
  for (const Command& command : commands()) add(command.line.name, own_flags(command.line));
  return text;
}

}  // namespace

std::string bash_completion() {
  std::string text = fmt::format(
      "# Completion of octet for bash: eval \"$(octet completion bash)\"\n{}\n"
      "_octet_describe() {{  # sets flags, words and values for the command $1\n"
      "  local run={}\n"
      "  flags= words=files\n"
      "  case $1 in\n",
      kMade, single_quoted(flag_names(run_flags())));
  for (const Command& command : commands()) {
    const CommandLine& line = command.line;
    text +=
        fmt::format("    {}) flags={}{} words={} ;;\n", line.name, single_quoted(flag_names(own_flags(line))),
                    takes_run_keys(line) ? "\" $run\"" : "", words_kind(line));
  }
  text += "  esac\n";
  text += value_table("values");
  text += "}\n";
  text += fmt::format(R"(
_octet() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} command= flag= flags words kind i
  local -A values=()
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; ++i)); do
    [[ ${{COMP_WORDS[i]}} == -* ]] || {{ command=${{COMP_WORDS[i]}}; break; }}
  done
  if [[ -z $command ]]; then
    COMPREPLY=($(compgen -W '{0} --help --version' -- "$cur"))
    return
  fi
  _octet_describe "$command"
  # octet launch [FLAGS] COMMAND: behind COMMAND everything belongs to it.
  if [[ $command == launch ]]; then
    local -i j
    for ((j = i + 1; j < COMP_CWORD; ++j)); do
      if [[ ${{COMP_WORDS[j]}} == -* ]]; then
        [[ ${{COMP_WORDS[j + 1]}} == "=" ]] && ((j += 2)) || ((j += 1))
        continue
      fi
      command=${{COMP_WORDS[j]}}
      _octet_describe "$command"
      break
    done
  fi
  # The shell splits --key=value into three words.
  if [[ $cur == "=" ]]; then
    flag=${{COMP_WORDS[COMP_CWORD - 1]}} cur=
  elif [[ ${{COMP_WORDS[COMP_CWORD - 1]}} == "=" ]]; then
    flag=${{COMP_WORDS[COMP_CWORD - 2]}}
  elif [[ ${{COMP_WORDS[COMP_CWORD - 1]}} == -* ]]; then
    flag=${{COMP_WORDS[COMP_CWORD - 1]}}
  fi
  if [[ $flag == --* ]]; then
    flag=--${{flag#--}}
    flag=--${{flag:2:1}}$(tr - _ <<<"${{flag:3}}")
  fi
  kind=${{values[$command:$flag]:-}}
  [[ -z $kind && " $flags " == *" $flag "* ]] && kind=${{values[run:$flag]:-}}
  [[ -z $flag ]] && kind=
  if [[ -z $kind ]]; then
    if [[ $cur == -* ]]; then
      COMPREPLY=($(compgen -W "$flags" -- "$cur"))
      return
    fi
    kind=$words
  fi
  case $kind in
    =*) COMPREPLY=($(compgen -W "${{kind#=}}" -- "$cur")) ;;
    commands) COMPREPLY=($(compgen -W '{0}' -- "$cur")) ;;
    shells) COMPREPLY=($(compgen -W 'bash zsh fish' -- "$cur")) ;;
    folders) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
    files) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    yaml)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -X '!*.@(yaml|yml|json)' -- "$cur"; compgen -d -- "$cur")
      ;;
  esac
}}
shopt -s extglob
complete -F _octet octet
)",
                      command_names());
  return text;
}

std::string zsh_completion() {
  const auto described = [](const std::vector<Flag>& flags) {
    std::string text;
    for (const Flag& flag : flags) {
      std::string help = flag.help;
      for (size_t at = 0; (at = help.find(':', at)) != help.npos; at += 2) help.replace(at, 1, "\\:");
      text += fmt::format("    {}\n", single_quoted(flag.name + ":" + help));
    }
    return text;
  };
  std::string text = fmt::format(
      "#compdef octet\n"
      "# Completion of octet for zsh: save it as _octet in a folder of $fpath, or: source <(octet completion zsh)\n{}\n"
      "_octet_describe() {{  # sets flags, words and values for the command $1\n"
      "  local -a run=(\n{}  )\n"
      "  flags=() words_kind=files\n"
      "  case $1 in\n",
      kMade, described(run_flags()));
  std::string names;
  for (const Command& command : commands()) {
    const CommandLine& line = command.line;
    names += fmt::format("    {}\n", single_quoted(line.name + ":" + line.summary));
    text +=
        fmt::format("    {}) flags=(\n{}{}    ) words_kind={} ;;\n", line.name, described(own_flags(line)),
                    takes_run_keys(line) ? "    $run\n" : "", words_kind(line));
  }
  text += "  esac\n";
  text += value_table("values");
  text += "}\n";
  text += fmt::format(R"(
_octet() {{
  local command= flag= cur=${{words[CURRENT]}} words_kind kind
  local -a flags octet_commands=(
{0}  )
  local -A values
  local -i i
  for ((i = 2; i < CURRENT; ++i)); do
    [[ ${{words[i]}} == -* ]] || {{ command=${{words[i]}}; break }}
  done
  if [[ -z $command ]]; then
    _describe -t commands 'command' octet_commands
    compadd -- --help --version
    return
  fi
  _octet_describe $command
  if [[ $command == launch ]]; then
    for ((++i; i < CURRENT; ++i)); do
      if [[ ${{words[i]}} == *=* ]]; then continue; fi
      if [[ ${{words[i]}} == -* ]]; then ((++i)); continue; fi
      command=${{words[i]}}
      _octet_describe $command
      break
    done
  fi
  if [[ $cur == --*=* ]]; then
    flag=${{cur%%=*}}
    compset -P '*='
  elif [[ ${{words[CURRENT - 1]}} == -* ]]; then
    flag=${{words[CURRENT - 1]}}
  fi
  [[ $flag == --* ]] && flag=--${{${{flag#--}}//-/_}}
  if [[ -n $flag ]]; then
    kind=${{values[$command:$flag]}}
    [[ -z $kind && -n ${{(M)flags:#$flag:*}} ]] && kind=${{values[run:$flag]}}
  fi
  if [[ -z $kind ]]; then
    if [[ $cur == -* ]]; then
      _describe -o -t flags 'flag' flags
      return
    fi
    kind=$words_kind
  fi
  case $kind in
    "="*) compadd -- ${{=kind#=}} ;;
    commands) _describe -t commands 'command' octet_commands ;;
    shells) compadd -- bash zsh fish ;;
    folders) _files -/ ;;
    files) _files ;;
    yaml) _files -g '*.(yaml|yml|json)' ;;
  esac
}}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  _octet "$@"
else
  compdef _octet octet
fi
)",
                      names);
  return text;
}

std::string fish_completion() {
  std::string text =
      fmt::format("# Completion of octet for fish: octet completion fish | source\n{}\n", kMade);
  text += fmt::format("set -l octet_commands {}\ncomplete -c octet -f\n", command_names());
  text += "complete -c octet -n '__fish_use_subcommand' -l help -d 'Print the help'\n";
  text += "complete -c octet -n '__fish_use_subcommand' -l version -d 'Print the version'\n";
  std::string takers;
  const auto add_flags = [&](const std::string& when, const std::vector<Flag>& flags) {
    for (const Flag& flag : flags) {
      const bool is_short = !flag.name.starts_with("--");
      text += fmt::format("complete -c octet -n {} {} {}", fish_quoted(when), is_short ? "-s" : "-l",
                          flag.name.substr(is_short ? 1 : 2));
      if (flag.kind == ValueKind::Choices)
        text += fmt::format(" -x -a {}", fish_quoted(fmt::format("{}", fmt::join(flag.choices, " "))));
      if (flag.kind == ValueKind::Files) text += " -r -F";
      if (flag.kind == ValueKind::Folders) text += " -x -a '(__fish_complete_directories)'";
      if (flag.kind == ValueKind::Free) text += " -x";
      text += fmt::format(" -d {}\n", fish_quoted(flag.help));
    }
  };
  for (const Command& command : commands()) {
    const CommandLine& line = command.line;
    const std::string when = "__fish_seen_subcommand_from " + line.name;
    text += fmt::format("complete -c octet -n '__fish_use_subcommand' -a {} -d {}\n", line.name,
                        fish_quoted(line.summary));
    const std::string_view kind = words_kind(line);
    if (kind == "commands")
      text += fmt::format("complete -c octet -n {} -a \"$octet_commands\"\n", fish_quoted(when));
    if (kind == "shells")
      text += fmt::format("complete -c octet -n {} -a 'bash zsh fish'\n", fish_quoted(when));
    if (kind == "files" || kind == "yaml")
      text += fmt::format("complete -c octet -n {} -F\n", fish_quoted(when));
    if (takes_run_keys(line)) takers += ' ' + line.name;
    add_flags(when, own_flags(line));
  }
  add_flags("__fish_seen_subcommand_from" + takers, run_flags());
  return text;
}

}  // namespace octet
