#include "data/datasets/dataset_part.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace octet {

const KeyTable<DatasetPart>& dataset_part_keys() {
  using P = DatasetPart;
  static const KeyTable<P> table = [] {
    KeyTable<P> keys;
    keys.add("path", &P::path, "The dataset: everything that dataset takes as one word.")
        .alias("name")
        .alias("dataset")
        .alias("file");
    keys.add("weight", &P::weight,
             "Share of the training sequences, relative to the weights of the other items. Give every item a "
             "weight, or none.")
        .above(0)
        .at_most(1e9)
        .note("none: every example once per epoch");
    keys.add("max_samples", &P::max_samples, "Maximum number of examples of this item.")
        .at_least(0)
        .at_most(1e12)
        .alias("num_samples")
        .note("max_samples of the run");
    const auto as_in_run = [&](const char* name, std::string P::*member, const char* help,
                               const char* of_run) -> Key& {
      return keys.add(name, member, help).note(fmt::format("{} of the run", of_run));
    };
    as_in_run("split", &P::split, "Split of this item.", "dataset_split").alias("dataset_split");
    as_in_run("subset", &P::subset, "Configuration of a hub dataset.", "dataset_subset")
        .alias("dataset_subset")
        .alias("dataset_config_name");
    as_in_run("revision", &P::revision, "Branch, tag or commit of a hub dataset.", "dataset_revision")
        .alias("dataset_revision");
    as_in_run("dataset_dir", &P::dataset_dir, "Folder with the files of a preset, or a dataset_info.json.",
              "dataset_dir")
        .alias("data_dir");
    keys.add("format", &P::format, example_format_names(), "What the columns of a record mean.")
        .alias("dataset_format")
        .alias("formatting")
        .note("dataset_format of the run");
    as_in_run("text_column", &P::text_column, "Column with the text.", "text_column")
        .alias("dataset_text_field")
        .alias("text_field");
    as_in_run("prompt_column", &P::prompt_column, "Column with the prompt.", "prompt_column");
    as_in_run("completion_column", &P::completion_column, "Column with the answer.", "completion_column");
    as_in_run("messages_column", &P::messages_column, "Column with the conversation.", "messages_column");
    return keys;
  }();
  return table;
}

void check_dataset_parts(std::span<const DatasetPart> parts, const std::string& key,
                         std::vector<std::string>& errors) {
  const auto weighted = std::ranges::find_if(parts, [](const DatasetPart& part) { return part.weight > 0; });
  if (weighted == parts.end()) return;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].weight > 0) continue;
    errors.push_back(
        fmt::format("item {} of {} ({}) has no weight, but {} has; give all items a weight, or none", i + 1,
                    key, parts[i].path, weighted->path));
  }
}

std::string names_text(std::span<const DatasetPart> parts) {
  if (parts.empty()) return "none";
  if (parts.size() == 1) return parts[0].path;
  if (parts.size() == 2) return fmt::format("{} and {}", parts[0].path, parts[1].path);
  return fmt::format("{} and {} more", parts[0].path, parts.size() - 1);
}

std::vector<std::string> part_names(std::span<const DatasetPart> parts) {
  std::vector<std::string> names;
  const auto add_unique = [&](const std::vector<std::string>& candidates) {
    for (const std::string& name : candidates) {
      if (std::ranges::find(names, name) == names.end()) return names.push_back(name);
    }
    names.push_back(fmt::format("{}-{}", candidates.back(), names.size() + 1));
  };
  for (const DatasetPart& part : parts) {
    const std::filesystem::path path = std::filesystem::path(part.path).lexically_normal();
    std::string stem = (path.has_filename() ? path : path.parent_path()).filename().string();
    for (bool more = true; more;) {
      more = false;
      for (const std::string_view ending :
           {".gz", ".zst", ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt", ".parquet", ".bin"}) {
        if (!stem.ends_with(ending) || stem.size() == ending.size()) continue;
        stem.erase(stem.size() - ending.size());
        more = true;
      }
    }
    if (!part.split.empty())
      add_unique({stem, stem + "-" + part.split, part.path + "-" + part.split});
    else
      add_unique({stem, part.path});
  }
  return names;
}

}  // namespace octet
