#include "import/trl_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/text.h"
#include "import/dataset_list.h"
#include "import/key_table.h"
#include "import/rules.h"

namespace octet {
namespace {

// A share of a dataset, which is not its weight in a mixture.
void share_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null() || leaf.number().value_or(1) >= 1) {
    importer.derive(leaf, "the whole dataset");
  } else {
    importer.warn(leaf, "a share of the dataset there; octet reads all of it (max_samples takes a part)");
  }
}

void mixer_rule(Importer& importer, const TreeLeaf& leaf) {
  importer.map(leaf, "dataset", leaf.name.substr(leaf.name.find('.') + 1));
  if (leaf.number().value_or(1) < 1) share_rule(importer, leaf);
}

constexpr KeyRules kRules[] = {
    {"dataset_mixer.**", mixer_rule},
    {"dataset_mixture.datasets.*.weight", share_rule},
};

// The first of the splits of a list that is called like this: train_sft, test_sft.
std::string split_called(const TreeLeaf* splits, std::string_view part) {
  for (const std::string& split : splits ? splits->list() : std::vector<std::string>()) {
    if (split.find(part) != split.npos) return split;
  }
  return splits ? "" : std::string(part);
}

std::vector<ImportedDataset> mixed_datasets(Importer& importer, const std::string& train_split) {
  const SettingsTree& tree = importer.tree();
  constexpr std::string_view kMixer = "dataset_mixer.";
  const TreeLeaf* configs = tree.find("dataset_configs");
  std::vector<ImportedDataset> datasets;
  for (const TreeLeaf& leaf : tree.leaves) {
    if (!leaf.name.starts_with(kMixer)) continue;
    ImportedDataset dataset{.path = leaf.name.substr(kMixer.size()), .split = train_split};
    if (configs && configs->list().size() > datasets.size())
      dataset.subset = configs->list()[datasets.size()];
    dataset.comment = leaf.name;
    dataset.place = leaf.place;
    datasets.push_back(std::move(dataset));
  }
  const auto take_list = [&](const char* list, const char* id, const char* subset) {
    for (size_t i = 0;; ++i) {
      const std::string prefix = fmt::format("{}.{}.", list, i);
      const TreeLeaf* name = tree.find(prefix + id);
      if (!name) return;
      ImportedDataset dataset{.path = name->text, .subset = tree.text(prefix + subset)};
      dataset.comment = name->name;
      dataset.place = name->place;
      if (const TreeLeaf* split = tree.find(prefix + "split"); split && !split->is_null()) {
        if (const std::string missing = apply_split(dataset, split->text); !missing.empty())
          importer.warn(*split, missing);
      }
      datasets.push_back(std::move(dataset));
    }
  };
  take_list("dataset_mixture.datasets", "id", "config");
  take_list("datasets", "path", "name");
  return datasets;
}

}  // namespace

std::span<const ToolKey> trl_data_keys() {
  static const std::vector<ToolKey> keys = key_table(kRules, "");
  return keys;
}

void finish_trl_data(Importer& importer) {
  const SettingsTree& tree = importer.tree();
  const TreeLeaf* splits = tree.find("dataset_splits");
  std::vector<ImportedDataset> datasets = mixed_datasets(importer, split_called(splits, "train"));
  set_datasets(importer, datasets);
  if (splits && datasets.empty() && !importer.is_set("dataset_split"))
    importer.set("dataset_split", split_called(splits, "train"), splits->name, splits->place);

  const TreeLeaf* test = tree.find("dataset_test_split");
  const TreeLeaf* from = test ? test : splits;
  if (!from || from->is_null()) return;
  const std::string split = test ? test->text : split_called(splits, "test");
  const std::string when = importer.value("eval_strategy");
  if (split.empty() || !importer.is_set("dataset")) return;
  if (when != "steps" && when != "epoch") {
    importer.derive(*from, "eval_strategy is no: nothing is evaluated");
    return;
  }
  if (datasets.empty())
    datasets.push_back({.path = importer.value("dataset"), .subset = importer.value("dataset_subset")});
  for (ImportedDataset& dataset : datasets) {
    dataset.split = split;
    dataset.comment = from->name;
    dataset.place = from->place;
  }
  set_eval_datasets(importer, datasets);
  importer.derive(*from, fmt::format("evaluation takes the split {}", printable(split)));
}

}  // namespace octet
