#pragma once

#include <string>
#include <vector>

#include "data/datasets/dataset_part.h"
#include "io/env.h"

namespace octet {

// Output of 'octet prepare' for a list of datasets: a folder with one prepared dataset per item, and this file, which
// lists them with their weights. docs/formats.md describes it.
constexpr const char* kPreparedListName = "datasets.json";

bool has_prepared_list(const std::string& folder);
// The items: path (of the subfolder) and weight are set. Error if the file is damaged.
std::vector<DatasetPart> read_prepared_list(const std::string& folder);
// `parts`: as they are read again, with the names of subfolders as paths.
void write_prepared_list(Env& env, const std::string& folder, const std::vector<DatasetPart>& parts);

}  // namespace octet
