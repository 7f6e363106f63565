#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/key_lookup.h"
#include "base/text.h"

namespace octet {
namespace {

bool is_named_as_config(const std::string& word) {
  return word.ends_with(".yaml") || word.ends_with(".yml");
}

bool may_be_config_file(const std::string& word) {
  std::error_code code;
  return is_named_as_config(word) || std::filesystem::exists(word, code);
}

bool is_short_flag(std::span<const Key> keys, std::string_view word) {
  return word.size() == 2 && word[0] == '-' &&
         std::ranges::any_of(keys, [&](const Key& key) { return key.short_name == word[1]; });
}

// Whether a word after a flag is the next flag, not a value: --max_steps, -h. "-1" and "--- a title" are values.
bool is_written_as_flag(std::span<const Key> keys, std::string_view word) {
  if (word == "-h" || word == "--" || is_short_flag(keys, word)) return true;
  if (!word.starts_with("--")) return false;
  const std::string_view name = word.substr(2, word.find('=') - 2);
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  return !name.empty() && is_letter(name[0]) && std::ranges::all_of(name, [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

// Reads one call from left to right.
class ArgumentReader {
 public:
  ArgumentReader(std::span<const Key> keys, std::span<const std::string> arguments,
                 PositionalKind positionals, std::vector<std::string>& errors)
      : keys_(keys), arguments_(arguments), positionals_(positionals), errors_(errors) {}

  KeyArguments read() {
    while (at_ < arguments_.size()) {
      const std::string& argument = arguments_[at_++];
      if (argument == "-h" || argument == "--help") {
        result_.help = true;
      } else if (argument == "--") {
        result_.positionals.insert(result_.positionals.end(),
                                   arguments_.begin() + static_cast<ptrdiff_t>(at_), arguments_.end());
        break;
      } else if (!argument.starts_with("-") || argument == "-") {
        result_.positionals.push_back(argument);
      } else {
        read_flag(argument);
      }
    }
    return std::move(result_);
  }

 private:
  void read_flag(const std::string& argument) {
    const size_t equals = argument.find('=');
    const std::string written = argument.substr(0, equals);
    KeySetting setting;
    if (written.starts_with("--")) {
      setting.name = written.substr(2);
      std::ranges::replace(setting.name, '-', '_');
    } else if (is_short_flag(keys_, written)) {
      setting.name = std::ranges::find(keys_, written[1], &Key::short_name)->name;
    } else {
      errors_.push_back(
          fmt::format("'{}' is not a flag; flags are written --key value", printable(argument)));
      result_.has_unknown = true;
      skip_value();
      return;
    }
    const std::optional<FoundKey> found = find_key(keys_, setting.name);
    if (!found) result_.has_unknown = true;
    if (equals != std::string::npos) {
      setting.values = {argument.substr(equals + 1)};
    } else if (!found) {
      skip_value();
      setting.values = {""};
    } else if (found->negated) {
      setting.values = {has_next() && parse_bool(next()) ? arguments_[at_++] : "true"};
    } else if (takes_bool(keys_[found->index], found->alias)) {
      setting.values = {has_next() && is_value_of_bool(*found, next()) ? arguments_[at_++] : "true"};
    } else if (const std::string& alone = keys_[found->index].alone;
               !alone.empty() && !has_value_of_optional()) {
      setting.values = {alone};
    } else if (has_next() && !is_written_as_flag(keys_, next())) {
      setting.values = {arguments_[at_++]};
    } else {
      const Key& key = keys_[found->index];
      errors_.push_back(
          key.type == KeyType::String || key.repeats
              ? fmt::format("--{} needs a value. {}", setting.name, key.help)
              : fmt::format("--{} needs a value; expected {}", setting.name, allowed_text(key)));
      setting.is_null = true;  // counts as given: a required key is not also reported as missing
    }
    // Such as --resume "$FOLDER" without a FOLDER, which must not mean a new run.
    if (found && !keys_[found->index].alone.empty() && setting.values == std::vector<std::string>{""}) {
      errors_.push_back(fmt::format("--{} is empty; give it a value, or leave it out", setting.name));
      setting.is_null = true;
    }
    result_.settings.push_back(std::move(setting));
  }

  bool has_next() const { return at_ < arguments_.size(); }
  const std::string& next() const { return arguments_[at_]; }

  // After an unknown flag: a value that follows is not a positional.
  void skip_value() {
    if (has_next() && !next().starts_with("-")) ++at_;
  }

  // For a flag that may stand alone: a configuration file behind it is not its value.
  bool has_value_of_optional() const {
    return has_next() && !is_written_as_flag(keys_, next()) && !is_named_as_config(next());
  }

  bool is_value_of_bool(const FoundKey& found, const std::string& word) const {
    const Key& key = keys_[found.index];
    const bool value_is_bool = key.type == KeyType::Bool || (found.alias && !found.alias->values.empty());
    if (value_is_bool ? parse_bool(word).has_value() : parse_scalar(key, word).has_value()) return true;
    if (word.starts_with("-") || positionals_ == PositionalKind::Any) return false;
    // --dry_run run.yaml is a flag and a file. A word that is neither is reported as a wrong value.
    return positionals_ == PositionalKind::None || !may_be_config_file(word);
  }

  std::span<const Key> keys_;
  std::span<const std::string> arguments_;
  PositionalKind positionals_;
  std::vector<std::string>& errors_;
  size_t at_ = 0;
  KeyArguments result_;
};

}  // namespace

KeyArguments parse_key_arguments(std::span<const Key> keys, std::span<const std::string> arguments,
                                 std::vector<std::string>& errors, PositionalKind positionals) {
  return ArgumentReader(keys, arguments, positionals, errors).read();
}

}  // namespace octet
