#pragma once

#include <string>
#include <vector>

#include "data/records/example_reader.h"

namespace octet {

// The files of the dataset that the options name, in the order in which they are read, downloaded where need be;
// and the options with what a preset says about its columns filled in.
struct ResolvedDataset {
  std::vector<std::string> files;
  ExampleOptions options;
};
ResolvedDataset resolve_dataset(const ExampleOptions& options);
// Whether that asks the hub (which may have the files in its cache).
bool is_on_hub(const ExampleOptions& options);

// The paths of a split. A path belongs to it when its name or one of its folders has the split's name as a word:
// "data/train_1M-00000-of-00003.parquet" is of train_1M and not of train. validation, valid, val and dev are one
// name. Without a split: all, but those named as validation or test where that leaves any.
std::vector<std::string> paths_of_split(const std::vector<std::string>& paths, const std::string& split);

// Error where of the files "...-00000-of-00003..." one is missing: a part of a dataset is not the dataset.
void check_all_parts(const std::vector<std::string>& paths, const std::string& place);

}  // namespace octet
