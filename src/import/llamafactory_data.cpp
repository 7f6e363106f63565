// LLaMA-Factory names its datasets in a dataset_info.json. octet reads that file itself when a run starts; here it is
// only checked for what octet cannot train on.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/keys.h"
#include "base/text.h"
#include "data/datasets/dataset_info.h"
#include "import/dataset_list.h"
#include "import/llamafactory_rules.h"
#include "import/rules.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

// The folder of dataset_info.json: as given, or near the configuration. "" if there is none.
std::string info_folder(const Importer& importer) {
  std::string folder = importer.main_tree().text("dataset_dir");
  if (folder.empty()) folder = "data";
  const std::string file = named_file(importer, (fs::path(folder) / kDatasetInfoName).string());
  if (file.empty()) return "";
  const std::string found = fs::path(file).parent_path().string();
  return found.empty() ? "." : found;
}

// Why octet cannot train on it, or "".
std::string why_not(const std::string& folder, const std::string& name) {
  try {
    find_dataset_info(folder, name);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

// Sets the key to one dataset or a list of them.
void take_datasets(Importer& importer, const TreeLeaf& leaf, const std::string& key,
                   const std::vector<std::string>& names) {
  const SettingsTree& tree = importer.main_tree();
  const bool training = key == "dataset";
  std::vector<std::string> weights;
  if (training && plain_word(tree.text("mix_strategy")).starts_with("interleave")) {
    const TreeLeaf* probabilities = tree.find("interleave_probs");
    if (probabilities && !probabilities->is_null()) weights = probabilities->list();
    if (weights.empty()) weights.assign(names.size(), "1");  // in turn
  }
  const bool are_numbers = std::ranges::all_of(
      weights, [](const std::string& weight) { return parse_double(weight).has_value(); });
  if (!weights.empty() && (weights.size() != names.size() || !are_numbers)) {
    importer.refuse(leaf, fmt::format("interleave_probs is {}: expected a number for each of {} datasets",
                                      printable(fmt::format("{}", fmt::join(weights, ","))), names.size()));
    return;
  }
  std::vector<ImportedDataset> datasets;
  for (size_t i = 0; i < names.size(); ++i) {
    datasets.push_back({.path = names[i],
                        .weight = weights.empty() ? "" : weights[i],
                        .max_samples = training ? tree.text("max_samples") : "",
                        .comment = leaf.name,
                        .place = leaf.place});
  }
  importer.map(leaf, key, fmt::format("{}", fmt::join(names, ",")));
  if (training) {
    set_datasets(importer, datasets);
    if (const TreeLeaf* limit = tree.find("max_samples"); limit && importer.is_set("max_samples"))
      importer.set("max_samples", limit->text, limit->name, limit->place);
  } else {
    set_eval_datasets(importer, datasets);
  }
}

void name_datasets(Importer& importer, const TreeLeaf& leaf, const std::string& key) {
  const std::vector<std::string> names = leaf.list();
  if (names.empty()) {
    importer.ignore(leaf, "null: no dataset is named");
    return;
  }
  const std::string given = importer.main_tree().text("dataset_dir");
  if (given.starts_with("REMOTE:")) {
    importer.refuse(leaf, "dataset_info.json is on the hub (REMOTE); download it and set dataset_dir");
    return;
  }
  if (given == "ONLINE") {
    take_datasets(importer, leaf, key, names);
    return;
  }
  const std::string folder = info_folder(importer);
  if (folder.empty()) {
    take_datasets(importer, leaf, key, names);
    std::error_code error;
    if (std::ranges::all_of(names, [&](const std::string& name) { return fs::exists(name, error); })) return;
    importer.find("no-dataset-info", leaf,
                  fmt::format("LLaMA-Factory looks {} up in {}/dataset_info.json, which is not here",
                              fmt::join(names, ", "), given.empty() ? "data" : given),
                  "needs that file (set dataset_dir), or paths or hub ids as dataset");
    if (const TreeLeaf* named = importer.main_tree().find("dataset_dir"); named && !given.empty()) {
      importer.later([leaf = *named](Importer& after) {
        after.map(leaf, "dataset_dir", leaf.text, "without dataset_info.json at the moment");
      });
    }
    return;
  }
  const std::vector<std::string> known = dataset_info_names(folder);
  for (const std::string& name : names) {
    if (std::ranges::find(known, name) == known.end()) {
      const std::string near = nearest_name(name, known);
      importer.refuse(leaf, fmt::format("'{}' is not in {}/dataset_info.json{}", printable(name), folder,
                                        near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
      return;
    }
    if (const std::string why = why_not(folder, name); !why.empty()) {
      importer.refuse(leaf, why);
      return;
    }
  }
  take_datasets(importer, leaf, key, names);
  const TreeLeaf* named = importer.main_tree().find("dataset_dir");
  importer.set("dataset_dir", folder, named ? "dataset_dir" : "default of LLaMA-Factory",
               named ? named->place : std::string());
}

}  // namespace

void dataset_rule(Importer& importer, const TreeLeaf& leaf) {
  name_datasets(importer, leaf, "dataset");
}

void eval_dataset_rule(Importer& importer, const TreeLeaf& leaf) {
  name_datasets(importer, leaf, "eval_dataset");
}

}  // namespace octet
