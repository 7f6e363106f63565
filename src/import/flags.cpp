#include "import/flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "import/rules.h"
#include "import/tools.h"

namespace octet {
namespace {

// octet's own default is FP8, so a switch that is off asks for something.
void fp8_switch(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null() || !leaf.is_off())
    fp8_rule(importer, leaf);
  else if (importer.value("mixed_precision") == "fp8")
    importer.warn(leaf, "no effect, because mixed_precision is fp8");
  else if (importer.is_set("mixed_precision"))
    importer.ignore(leaf, "off");
  else
    importer.map(leaf, "mixed_precision", "bf16");
}

// Flags of scripts that people follow. They belong to no tool's file.
constexpr ToolKey kScriptKeys[] = {
    {"use_te", Fate::Ignored, "", "not needed: octet has its own FP8 kernels, Transformer Engine is not used",
     nullptr, true},
    {"use_transformer_engine", Fate::Ignored, "",
     "not needed: octet has its own FP8 kernels, Transformer Engine is not used", nullptr, true},
    {"fp8_backend", Fate::Ignored, "", "", fp8_backend_rule},
    {"empty_cache_freq", Fate::Ignored, "", "not needed: memory is planned before the first step"},
    {"num_workers", Fate::Ignored, "", "not needed: the loader uses its own threads (num_threads)"},
    {"use_flash_attn", Fate::Ignored, "", "not needed: octet always uses fused attention", nullptr, true},
    {"num_gpus", Fate::Refused, "", "start one process per GPU with 'octet launch -n N train ...'"},
    {"n_gpus", Fate::Refused, "", "start one process per GPU with 'octet launch -n N train ...'"},
    {"world_size", Fate::Refused, "", "start one process per GPU with 'octet launch -n N train ...'"},
    {"dropout", Fate::Refused, "", "octet trains without dropout; with LoRA there is lora_dropout"},
    {"no_te", Fate::Ignored, "", "not needed: Transformer Engine is not used", nullptr, true},
    {"fp8", Fate::Mapped, "", "", fp8_switch, true},
    {"bf16", Fate::Mapped, "", "", bf16_rule, true},
    {"use_bf16", Fate::Mapped, "", "", bf16_rule, true},
    {"fp16", Fate::Warned, "", "", fp16_rule, true},
    {"load_in_fp8", Fate::Refused, "",
     "it loads weights for inference; octet trains in FP8 with mixed_precision fp8", nullptr, true},
    {"compile", Fate::Ignored, "", "not needed: the kernels are compiled and fused already", nullptr, true},
    {"fsdp_sharding_strategy", Fate::Mapped, "", "", fsdp_rule},
    {"fsdp_version", Fate::Ignored, "", "not needed: sharding_mode says what ranks share"},
    {"zero3", Fate::Mapped, "sharding_mode", "", fsdp_rule, true},
    {"local_rank", Fate::Ignored, "", "not needed: ranks are found from the launcher's environment"},
};

const Tool& every_tool() {
  static const std::vector<ToolKey> keys = [] {
    std::vector<ToolKey> all(std::begin(kScriptKeys), std::end(kScriptKeys));
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
