#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "import/importer.h"

namespace octet {

// One dataset of an imported configuration. The members are named as the keys of an item of `dataset`.
struct ImportedDataset {
  std::string path, split, subset, revision, format;
  std::string text_column, prompt_column, completion_column, messages_column;
  std::string weight, max_samples;  // as written; "": none
  std::string comment, place;       // of the key that names it
};

// Sets dataset and the keys that describe it; several become a list. One that is in it twice is read twice
// per epoch.
void set_datasets(Importer& importer, std::span<const ImportedDataset> datasets);
// Sets eval_dataset; an item of a list has its own columns.
void set_eval_datasets(Importer& importer, std::span<const ImportedDataset> datasets);

// A split as the datasets library writes it: train, train[:500], train[5%:10%], train+validation.
struct SplitSlice {
  std::string name;  // "train"
  std::optional<double> begin, end;
  bool in_percent = false;
  bool is_whole() const { return !begin && !end; }
};
std::optional<SplitSlice> parse_split(std::string_view text);  // nothing for sums and broken brackets

// Reads the split of a dataset into it. Returns what cannot be had, for a warning, or "".
std::string apply_split(ImportedDataset& dataset, std::string_view split);

}  // namespace octet
