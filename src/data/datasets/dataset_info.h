#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/datasets/dataset_part.h"

namespace octet {

// The file in which LLaMA-Factory describes the datasets of a folder: a map from names to files or hub ids, columns and
// roles. docs/datasets.md says what octet reads of it.
constexpr const char* kDatasetInfoName = "dataset_info.json";

bool has_dataset_info(const std::string& folder);
// Error if the file is not a JSON object.
std::vector<std::string> dataset_info_names(const std::string& folder);

// The dataset of this name as an item of `dataset`: path, split, subset, max_samples, format and columns are set.
// Nothing if the folder has no such file, or the file no such name. ConfigError that gives the reason if octet cannot
// train on it: pairs for preference training, images, columns or roles that it does not know.
std::optional<DatasetPart> find_dataset_info(const std::string& folder, const std::string& name);

}  // namespace octet
