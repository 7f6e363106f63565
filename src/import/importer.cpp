#include "import/importer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "config/config.h"
#include "import/diagnosis.h"
#include "import/rules.h"

namespace octet {
namespace {

bool matches(std::string_view pattern, std::string_view name) {
  if (pattern == name) return true;
  if (pattern.find('*') == std::string_view::npos) return false;
  const auto wanted = parts_of(pattern, '.'), given = parts_of(name, '.');
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] == "**") return i + 1 == wanted.size() && given.size() >= i;
    if (i >= given.size() || (wanted[i] != "*" && wanted[i] != given[i])) return false;
  }
  return wanted.size() == given.size();
}

bool is_value(std::string_view value, const TreeLeaf& leaf) {
  if (value == "null") return leaf.is_null();
  if (value == "off") return leaf.is_off();
  if (leaf.kind != TreeLeaf::Kind::Scalar) return false;
  const std::string word = plain_word(leaf.text);
  if (word == value) return true;
  if (const auto number = parse_double(value)) return leaf.number() == number;
  if (!leaf.number() && word.substr(word.rfind('.') + 1) == value) return true;  // IntervalStrategy.STEPS
  return value == "true" && leaf.flag() == true;
}

bool fits(const KeyCase& given, const TreeLeaf& leaf) {
  return given.values.empty() ||
         std::ranges::any_of(given.values, [&](std::string_view value) { return is_value(value, leaf); });
}

}  // namespace

size_t ImportResult::count(Fate fate) const {
  return static_cast<size_t>(std::ranges::count(verdicts, fate, &Verdict::fate));
}

const ImportedSetting* ImportResult::find(std::string_view key) const {
  const auto found = std::ranges::find(settings, key, &ImportedSetting::key);
  return found == settings.end() ? nullptr : &*found;
}

std::string ImportResult::value(std::string_view key) const {
  const ImportedSetting* setting = find(key);
  return setting ? fmt::format("{}", fmt::join(setting->values, ",")) : "";
}

Importer::Importer(const Tool& tool, SettingsTree tree, bool with_defaults)
    : tool_(&tool), main_(std::move(tree)), tree_(&main_), with_defaults_(with_defaults) {
  result_.tool = tool.name;
  result_.file = main_.file;
}

ImportResult Importer::run() {
  work_through();
  for (const ToolDefault& fallback : tool_->defaults) {
    if (!with_defaults_ || is_set(fallback.octet_key)) continue;
    const auto others = parts_of(fallback.unless, ' ');
    if (std::ranges::any_of(others, [&](std::string_view key) { return is_set(key); })) continue;
    set(fallback.octet_key, std::string(fallback.value), fmt::format("default of {}", tool_->name));
  }
  if (with_defaults_) diagnose(*this);
  mark_superseded();
  check_values();
  return std::move(result_);
}

// octet's keys in a file of the tool decide, wherever they stand. Rules ask for their values, so they are set at the start;
// what a rule has changed is set again at the end.
void Importer::set_own_keys() {
  for (const TreeLeaf& leaf : tree_->leaves) {
    if (row_of(*tool_, leaf.name) || leaf.is_null() || (tool_->auto_is_unset && leaf.is_auto())) continue;
    const Key* own = key_called(train_keys().keys(), leaf.name);
    if (own && leaf.kind == TreeLeaf::Kind::Scalar)
      set(own->name, leaf.text, prefix_ + leaf.name, leaf.place);
    if (own && leaf.kind == TreeLeaf::Kind::List)
      set({.key = own->name,
           .values = leaf.items,
           .is_list = true,
           .block = {},
           .comment = prefix_ + leaf.name,
           .place = leaf.place});
  }
}

void Importer::work_through() {
  set_own_keys();
  for (const TreeLeaf& leaf : tree_->leaves) {
    judged_ = false;
    if (tool_->auto_is_unset && leaf.is_auto()) {
      ignore(leaf, "auto: from the trainer's settings");
    } else if (const ToolKey* row = row_of(*tool_, leaf.name)) {
      apply_row(*row, leaf);
    } else {
      apply_unknown(leaf);
    }
    if (!judged_) derive(leaf, "used with other settings");
  }
  const auto postponed = std::exchange(later_, {});
  for (const auto& function : postponed) function(*this);
  if (tool_->finish) tool_->finish(*this);
  set_own_keys();
}

void Importer::include(const Tool& tool, const SettingsTree& tree, std::string prefix) {
  const Tool* const outer_tool = std::exchange(tool_, &tool);
  const SettingsTree* const outer_tree = std::exchange(tree_, &tree);
  const std::string outer_prefix = std::exchange(prefix_, std::move(prefix));
  work_through();
  prefix_ = outer_prefix;
  tool_ = outer_tool;
  tree_ = outer_tree;
}

const ToolKey* Importer::row_of(const Tool& tool, std::string_view name) {
  const ToolKey* best = nullptr;
  for (const ToolKey& row : tool.keys) {
    if (row.name == name) return &row;
    if (matches(row.name, name) && (!best || row.name.size() > best->name.size())) best = &row;
  }
  return best;
}

void Importer::apply_row(const ToolKey& row, const TreeLeaf& leaf) {
  if (row.rule) {
    row.rule(*this, leaf);
    return;
  }
  const auto found = std::ranges::find_if(row.cases, [&](const KeyCase& one) { return fits(one, leaf); });
  if (found == row.cases.end()) return;
  const bool is_only = row.cases.size() == 1, is_else = found->values.empty();
  const bool is_objection = found->fate == Fate::Warned || found->fate == Fate::Refused;
  if (is_else && (!is_only || found->fate == Fate::Mapped) &&
      (leaf.is_null() || leaf.kind == TreeLeaf::Kind::EmptyMap)) {
    ignore(leaf, "null: the default");
  } else if (is_only && is_objection && leaf.is_off()) {
    ignore(leaf, "off, which is what octet does");
  } else if (is_only && is_objection && row.name.ends_with(".**")) {
    apply_section(row, leaf);
  } else {
    apply_case(row, *found, leaf);
  }
}

void Importer::apply_case(const ToolKey& row, const KeyCase& chosen, const TreeLeaf& leaf) {
  const std::string reason(chosen.reason);
  const std::string_view key = chosen.octet_key.empty() ? row.target() : chosen.octet_key;
  const auto word =
      std::ranges::find_if(chosen.values, [&](std::string_view value) { return is_value(value, leaf); });
  if (chosen.fate != Fate::Mapped) {
    judge(leaf, chosen.fate, reason);
  } else if (!chosen.value.empty()) {
    map(leaf, key, std::string(chosen.value), reason);
  } else if (word != chosen.values.end()) {
    map(leaf, key, std::string(*word), reason);
  } else if (leaf.kind == TreeLeaf::Kind::List) {
    map_list(leaf, key, leaf.items, reason);
  } else {
    map(leaf, key, leaf.text, reason);
  }
}

// One verdict says why a section is refused or left out; more would hide the other keys.
void Importer::apply_section(const ToolKey& row, const TreeLeaf& leaf) {
  const auto first = std::ranges::find_if(tree_->leaves, [&](const TreeLeaf& other) {
    return !other.is_off() && row_of(*tool_, other.name) == &row;
  });
  if (&leaf == &*first) {
    apply_case(row, row.cases.front(), leaf);
  } else {
    derive(leaf, fmt::format("part of {}", row.name.substr(0, row.name.size() - 3)));
  }
}

void Importer::apply_unknown(const TreeLeaf& leaf) {
  if (leaf.is_null()) {
    ignore(leaf, "null: nothing is asked for");
    return;
  }
  const Key* own = key_called(train_keys().keys(), leaf.name);
  if (own && leaf.kind == TreeLeaf::Kind::List) {
    map_list(leaf, own->name, leaf.items, "a key of octet");
  } else if (own && leaf.kind == TreeLeaf::Kind::Scalar) {
    map(leaf, own->name, leaf.text, "a key of octet");
  } else {
    std::vector<std::string> names;
    for (const ToolKey& row : tool_->keys) names.emplace_back(row.name);
    const std::string near = nearest_name(leaf.name, names);
    warn(leaf, fmt::format("not a known key of {}{}; it is not used", tool_->name,
                           near.empty() ? "" : fmt::format(" (did you mean {}?)", near)));
  }
}

void Importer::judge(const TreeLeaf& leaf, Fate fate, std::string reason, std::string key,
                     std::string octet) {
  judged_ = true;
  const std::string name = prefix_ + leaf.name;
  const auto same = std::ranges::find_if(result_.verdicts, [&](const Verdict& verdict) {
    return verdict.leaf.name == name && verdict.leaf.place == leaf.place;
  });
  Verdict verdict{.leaf = leaf,
                  .fate = fate,
                  .key = std::move(key),
                  .octet = std::move(octet),
                  .reason = std::move(reason)};
  verdict.leaf.name = name;
  if (same == result_.verdicts.end()) {
    result_.verdicts.push_back(std::move(verdict));
  } else {
    *same = std::move(verdict);  // finish functions know more than the rows
  }
}

void Importer::map(const TreeLeaf& leaf, std::string_view key, std::string value, std::string reason) {
  const std::string shown = fmt::format("{} {}", key, printable(value));
  set(key, std::move(value), prefix_ + leaf.name, leaf.place);
  judge(leaf, Fate::Mapped, std::move(reason), std::string(key), shown);
}

void Importer::map_list(const TreeLeaf& leaf, std::string_view key, std::vector<std::string> values,
                        std::string reason) {
  const std::string shown = fmt::format("{} [{}]", key, fmt::join(values, ", "));
  set({.key = std::string(key),
       .values = std::move(values),
       .is_list = true,
       .block = {},
       .comment = prefix_ + leaf.name,
       .place = leaf.place});
  judge(leaf, Fate::Mapped, std::move(reason), std::string(key), shown);
}

void Importer::set(std::string_view key, std::string value, std::string comment, std::string place) {
  set({.key = std::string(key),
       .values = {std::move(value)},
       .is_list = false,
       .block = {},
       .comment = std::move(comment),
       .place = std::move(place)});
}

void Importer::set(ImportedSetting setting) {
  const auto same = std::ranges::find(result_.settings, setting.key, &ImportedSetting::key);
  if (same == result_.settings.end()) {
    result_.settings.push_back(std::move(setting));
  } else {
    *same = std::move(setting);
  }
}

void Importer::unset(std::string_view key) {
  std::erase_if(result_.settings, [&](const ImportedSetting& setting) { return setting.key == key; });
}

void Importer::find(Finding finding) {
  if (std::ranges::find(result_.findings, finding.name, &Finding::name) == result_.findings.end())
    result_.findings.push_back(std::move(finding));
}

void Importer::find(std::string name, const TreeLeaf& leaf, std::string there, std::string here) {
  find({.name = std::move(name),
        .where = leaf.describe(),
        .there = std::move(there),
        .here = std::move(here)});
}

bool Importer::skips_off(const TreeLeaf& leaf) {
  if (leaf.is_off()) ignore(leaf, "off");
  return leaf.is_off();
}

bool Importer::skips_null(const TreeLeaf& leaf) {
  if (leaf.is_null()) ignore(leaf, "null: the default");
  return leaf.is_null();
}

// Of several keys that land in one of octet's, the last one decides, unless they are its items.
void Importer::mark_superseded() {
  for (Verdict& verdict : result_.verdicts) {
    if (verdict.fate != Fate::Mapped) continue;
    const ImportedSetting* setting = result_.find(verdict.key);
    if (setting && setting->comment == verdict.leaf.name && setting->place == verdict.leaf.place) continue;
    const auto is_it = [&](const std::string& value) {
      return verdict.octet == fmt::format("{} {}", verdict.key, printable(value));
    };
    if (setting && setting->is_list && std::ranges::any_of(setting->values, is_it)) continue;
    const bool says_the_same = is_it(result_.value(verdict.key));
    verdict.fate = Fate::Derived;
    verdict.octet.clear();
    verdict.reason = !setting        ? "other settings decide"
                     : says_the_same ? fmt::format("{} says the same", setting->comment)
                     : verdict.key == "mixed_precision" && result_.value(verdict.key) == "fp8"
                         ? "everything outside the FP8 matrix products is BF16 anyway"
                         : fmt::format("{} decides", setting->comment);
  }
}

// A value that octet does not take is refused where it stands in the file.
void Importer::check_values() {
  for (const ImportedSetting& setting : std::vector(result_.settings)) {
    std::vector<std::string> errors;
    const std::vector<KeySetting> as_given = key_settings(setting, result_.file, errors);
    if (errors.empty()) resolve_settings(train_keys().keys(), as_given, errors);
    if (errors.empty()) continue;
    const auto verdict = std::ranges::find_if(result_.verdicts, [&](const Verdict& v) {
      return v.leaf.name == setting.comment && v.leaf.place == setting.place;
    });
    TreeLeaf leaf{.name = setting.key,
                  .text = fmt::format("{}", fmt::join(setting.values, ",")),
                  .place = setting.place};
    if (verdict != result_.verdicts.end()) leaf = verdict->leaf;
    refuse(leaf, errors.front());
  }
}

std::vector<KeySetting> key_settings(const ImportedSetting& setting, const std::string& file,
                                     std::vector<std::string>& errors) {
  const std::string place = setting.place.empty() ? file : setting.place;
  if (setting.block.empty())
    return {{.name = setting.key, .values = setting.values, .is_list = setting.is_list, .place = place}};
  const std::string yaml = fmt::format("{}:\n{}", setting.key, setting.block);
  std::vector<KeySetting> settings = parse_settings(yaml, place, errors);
  // Its lines are not those of the file.
  for (KeySetting& one : settings) {
    one.place = place;
    for (KeySetting::Item& item : one.items) {
      item.place = place;
      for (KeySetting& field : item.fields) field.place = place;
    }
  }
  return settings;
}

}  // namespace octet
