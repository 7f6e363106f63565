// What the user is shown of an import.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/text.h"
#include "import/import.h"

namespace octet {
namespace {

constexpr std::array<std::pair<Fate, std::string_view>, 5> kFates = {{
    {Fate::Mapped, "mapped"},
    {Fate::Derived, "derived"},
    {Fate::Ignored, "ignored"},
    {Fate::Warned, "warned of"},
    {Fate::Refused, "refused"},
}};

bool is_default(const ImportedSetting& setting) {
  return setting.comment.starts_with("default of ");
}

// In the order of octet's keys.
std::vector<const ImportedSetting*> ordered(const ImportResult& result) {
  std::vector<const ImportedSetting*> settings;
  for (const Key& key : train_keys().keys()) {
    for (const ImportedSetting& setting : result.settings) {
      if (key_called(train_keys().keys(), setting.key) == &key) settings.push_back(&setting);
    }
  }
  return settings;
}

// The value as YAML, in the form of the key's type.
std::string yaml_of(const ImportedSetting& setting) {
  const KeySetting given{
      .name = setting.key, .values = setting.values, .is_list = setting.is_list, .place = "import"};
  std::vector<std::string> errors;
  const auto resolved = resolve_settings(train_keys().keys(), std::span(&given, 1), errors);
  if (!resolved.empty()) return value_yaml(resolved.front().value);
  return value_yaml(KeyValue(fmt::format("{}", fmt::join(setting.values, ","))));
}

std::string verdict_line(const Verdict& verdict) {
  std::string line = fmt::format("  {}: {}", printable(verdict.leaf.name), verdict.leaf.shown());
  const std::string as_it_is = fmt::format("{} {}", verdict.leaf.name, verdict.leaf.text);
  if (!verdict.octet.empty() && verdict.octet != as_it_is) line += fmt::format(" -> {}", verdict.octet);
  if (!verdict.reason.empty()) line += fmt::format(" ({})", verdict.reason);
  return line + '\n';
}

}  // namespace

std::vector<std::string> refusals(const ImportResult& result) {
  std::vector<std::string> messages;
  for (const Verdict& verdict : result.verdicts) {
    if (verdict.fate != Fate::Refused) continue;
    const std::string where = verdict.leaf.describe();
    // Messages about values name the place themselves.
    messages.push_back(verdict.reason.starts_with(where)
                           ? verdict.reason
                           : fmt::format("{} is {}: {}", where, verdict.leaf.shown(), verdict.reason));
  }
  return messages;
}

std::string finding_text(const Finding& finding) {
  const std::string where = finding.where.empty() ? "" : fmt::format("{}: ", finding.where);
  return fmt::format("{}{}. octet {}", where, finding.there, finding.here);
}

std::string import_summary(const ImportResult& result) {
  const auto defaults = std::ranges::count_if(result.settings, is_default);
  std::string text = fmt::format("{} keys:", result.verdicts.size());
  for (const auto& [fate, name] : kFates) text += fmt::format(" {} {},", result.count(fate), name);
  text.back() = ';';
  text +=
      fmt::format(" {} {} of {} written out", defaults, defaults == 1 ? "default" : "defaults", result.tool);
  return text;
}

std::string missing_parts(const ImportResult& result) {
  const bool model = result.find("model_name_or_path"), data = result.find("dataset");
  if (result.count(Fate::Refused) > 0 || (model && data)) return "";
  return fmt::format("the file names no {}: add {} to the result, or give {} as {}",
                     model  ? "dataset"
                     : data ? "model"
                            : "model and no dataset",
                     model  ? "dataset"
                     : data ? "model_name_or_path"
                            : "model_name_or_path and dataset",
                     model || data ? "it" : "them", model || data ? "a flag" : "flags");
}

std::string import_yaml(const ImportResult& result) {
  std::string text =
      fmt::format("{} from {}, a configuration of {}.\n", kImportHeader, printable(result.file), result.tool);
  std::string group;
  for (const ImportedSetting* setting : ordered(result)) {
    const Key& key = *key_called(train_keys().keys(), setting->key);
    if (key.group != group) text += fmt::format("\n# {}\n", key.group);
    group = key.group;
    std::string line = setting->block.empty() ? fmt::format("{}: {}", setting->key, yaml_of(*setting))
                                              : fmt::format("{}:", setting->key);
    if (!setting->comment.empty() && setting->comment != setting->key) {
      line = fmt::format("{:<50}  # {}", line, printable(setting->comment));
    }
    text += line + '\n';
    if (!setting->block.empty()) text += setting->block;
  }
  return text;
}

std::string import_report(const ImportResult& result) {
  std::string text = fmt::format("{}: a configuration of {}\n", printable(result.file), result.tool);
  for (const auto& [fate, name] : kFates) {
    if (result.count(fate) == 0) continue;
    text += fmt::format("\n{} ({})\n", name, result.count(fate));
    for (const Verdict& verdict : result.verdicts) {
      if (verdict.fate == fate) text += verdict_line(verdict);
    }
  }
  std::vector<std::string> defaults;
  for (const ImportedSetting* setting : ordered(result)) {
    if (is_default(*setting)) defaults.push_back(fmt::format("{} {}", setting->key, yaml_of(*setting)));
  }
  if (!defaults.empty()) {
    text += fmt::format("\ndefaults of {} that differ from octet's, written out ({})\n", result.tool,
                        defaults.size());
    for (const std::string& line : defaults) text += fmt::format("  {}\n", line);
  }
  if (!result.findings.empty()) text += fmt::format("\nfindings ({})\n", result.findings.size());
  for (const Finding& finding : result.findings) {
    for (size_t i = 0; const std::string& line :
                       wrap_words(fmt::format("[{}] {}", finding.name, finding_text(finding)), 108)) {
      text += fmt::format("  {}{}\n", i++ == 0 ? "" : "  ", line);
    }
  }
  if (const std::string missing = missing_parts(result); !missing.empty())
    text += fmt::format("\n{}\n", missing);
  return text + fmt::format("\n{}\n", import_summary(result));
}

std::vector<KeySetting> import_settings(const ImportResult& result) {
  std::vector<KeySetting> settings;
  std::vector<std::string> errors;
  for (const ImportedSetting* imported : ordered(result)) {
    const std::string file = fmt::format("{} ({})", result.file, imported->comment);
    for (KeySetting& setting : key_settings(*imported, file, errors)) settings.push_back(std::move(setting));
  }
  throw_config_errors(errors);
  return settings;
}

}  // namespace octet
