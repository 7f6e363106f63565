#pragma once

#include <string>
#include <vector>

#include "data/records/example_reader.h"

namespace octet {

// The files of the dataset that the options name, in reading order, downloaded if needed. The options also get the
// columns that a preset defines.
struct ResolvedDataset {
  std::vector<std::string> files;
  ExampleOptions options;
};
ResolvedDataset resolve_dataset(const ExampleOptions& options);
// Whether this asks the hub (the files may already be in the hub's cache).
bool is_on_hub(const ExampleOptions& options);

// The paths of a split. A path belongs to it when its name or one of its folders has the split's name as a word:
// "data/train_1M-00000-of-00003.parquet" belongs to train_1M, not to train. validation, valid, val and dev are one
// name. Without a split: all files except those with a validation or test name, unless all files have such a name.
std::vector<std::string> paths_of_split(const std::vector<std::string>& paths, const std::string& split);

// Throws Error when one of the files "...-00000-of-00003..." is missing, because a part of a dataset is not the
// dataset.
void check_all_parts(const std::vector<std::string>& paths, const std::string& place);

}  // namespace octet
