#include "import/flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "import/key_table.h"
#include "import/rules.h"
#include "import/tools.h"

namespace octet {
namespace {

// octet's own default is FP8, so a switch that is off asks for something.
void fp8_switch(Importer& importer, const TreeLeaf& leaf) {
  if (!leaf.is_off())
    importer.map(leaf, "mixed_precision", "fp8");
  else if (leaf.is_null())
    importer.ignore(leaf, "off");
  else if (importer.value("mixed_precision") == "fp8")
    importer.warn(leaf, "no effect, because mixed_precision is fp8");
  else if (importer.is_set("mixed_precision"))
    importer.ignore(leaf, "off");
  else
    importer.map(leaf, "mixed_precision", "bf16");
}

// Flags of scripts that people follow. They belong to no tool's file.
constexpr KeyRules kRules[] = {
    {"fp8!", fp8_switch},
    {"bf16! use_bf16!", bf16_rule},
    {"fp16!", fp16_rule},
    {"fsdp_sharding_strategy zero3!", fsdp_rule},
};

constexpr std::string_view kKeys = R"(
use_te! use_transformer_engine! use_flash_attn! no_te! compile! : ignored, octet has its own kernels
empty_cache_freq : ignored, octet plans all memory before the first step
num_workers : ignored, the loader has its own threads; --num_threads sets how many
fsdp_version local_rank : ignored, octet starts and connects its ranks in its own way, see docs/ranks.md
num_gpus n_gpus world_size : refused, start one process per GPU with 'octet launch -n N train ...'
dropout : refused, octet trains without dropout; with LoRA there is lora_dropout
load_in_fp8! : refused, it loads weights for inference; octet trains in FP8 with mixed_precision fp8
fp8_backend : ignored, octet has its own kernels
)";

const Tool& every_tool() {
  static const std::vector<ToolKey> keys = [] {
    std::vector<ToolKey> all = key_table(kRules, kKeys);
    for (const Tool* tool : tools()) all.insert(all.end(), tool->keys.begin(), tool->keys.end());
    return all;
  }();
  static const Tool tool{.name = "other programs",
                         .word = "",
                         .keys = keys,
                         .defaults = {},
                         .score = nullptr,
                         .finish = nullptr};
  return tool;
}

bool is_own(const KeySetting& setting) {
  return key_called(train_keys().keys(), setting.name) != nullptr;
}

TreeLeaf leaf_of(const KeySetting& setting) {
  TreeLeaf leaf{.name = setting.name, .place = setting.place};
  if (setting.is_null) {
    leaf.kind = TreeLeaf::Kind::Null;
  } else if (setting.is_list) {
    leaf.kind = TreeLeaf::Kind::List;
    leaf.items = setting.values;
  } else {
    leaf.text = setting.values.front();
  }
  return leaf;
}

std::string note_of(const Verdict& verdict) {
  std::string text = verdict.leaf.describe();
  if (verdict.leaf.text != "true") text += ' ' + verdict.leaf.shown();
  text += ": " + (verdict.octet.empty() ? verdict.reason : verdict.octet);
  if (!verdict.octet.empty() && !verdict.reason.empty()) text += fmt::format(" ({})", verdict.reason);
  return text;
}

}  // namespace

std::vector<KeySetting> translate_settings(std::vector<KeySetting> settings, SettingsNotes& notes,
                                           std::vector<std::string>& errors) {
  SettingsTree tree;
  std::vector<KeySetting> kept, own;
  for (KeySetting& setting : settings) {
    if (is_own(setting) || !Importer::row_of(every_tool(), setting.name)) {
      if (is_own(setting)) own.push_back(setting);
      kept.push_back(std::move(setting));
    } else {
      tree.leaves.push_back(leaf_of(setting));
      if (tree.file.empty()) tree.file = setting.place;
    }
  }
  if (tree.leaves.empty()) return kept;

  Importer importer(every_tool(), std::move(tree), false);
  std::map<std::string, std::string> given;
  std::vector<std::string> unused;  // reported when the settings are resolved
  for (const KeyAssignment& assignment : resolve_settings(train_keys().keys(), own, unused)) {
    const std::string& key = train_keys().keys()[assignment.index].name;
    given[key] = value_text(assignment.value);
    importer.set(key, given[key], assignment.origin);
  }
  const ImportResult result = importer.run();
  for (const std::string& refusal : refusals(result)) errors.push_back(refusal);
  std::set<std::string> told;  // keys that have their one message
  for (const ImportedSetting& setting : result.settings) {
    const auto mine = given.find(setting.key);
    if (mine == given.end()) {
      kept.push_back({.name = setting.key,
                      .values = setting.values,
                      .is_list = setting.is_list,
                      .place = setting.place});
    } else if (result.value(setting.key) != mine->second) {
      const std::string name = setting.comment.substr(0, setting.comment.find(':'));
      if (told.insert(name).second)
        notes.warnings.push_back(
            fmt::format("{} has no effect: {} is set to {}", name, setting.key, mine->second));
    }
  }
  const auto tell = [&](std::vector<std::string>& list, const Verdict& verdict, const std::string& text) {
    if (told.insert(verdict.leaf.name).second) list.push_back(text);
  };
  const auto finding_of = [&](const Verdict& verdict) {
    return std::ranges::find_if(result.findings, [&](const Finding& finding) {
      return !finding.is_note && finding.where == verdict.leaf.describe();
    });
  };
  for (const Verdict& verdict : result.verdicts) {
    if (verdict.fate == Fate::Refused || verdict.leaf.is_null()) continue;
    const auto finding = finding_of(verdict);
    if (verdict.fate == Fate::Warned)
      tell(notes.warnings, verdict, note_of(verdict));
    else if (finding != result.findings.end())
      tell(notes.warnings, verdict, finding_text(*finding));
    else
      tell(notes.notes, verdict, note_of(verdict));
  }
  for (const Finding& finding : result.findings) {
    const bool is_of_a_key = std::ranges::any_of(
        result.verdicts, [&](const Verdict& verdict) { return finding.where == verdict.leaf.describe(); });
    if (!finding.is_note && !is_of_a_key) notes.warnings.push_back(finding_text(finding));
  }
  return kept;
}

std::span<const Key> foreign_keys() {
  static const std::vector<Key> all = [] {
    std::vector<Key> keys;
    for (const ToolKey& row : every_tool().keys) {
      if (row.name.find_first_of(".*") != row.name.npos || key_called(train_keys().keys(), row.name) ||
          key_called(keys, row.name))
        continue;
      Key key;
      key.name = row.name;
      key.type = row.is_switch ? KeyType::Bool : KeyType::String;
      if (!row.is_switch) key.bool_choices = {{true, "true"}};  // may stand alone
      keys.push_back(std::move(key));
    }
    return keys;
  }();
  return all;
}

}  // namespace octet
