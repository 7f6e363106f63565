#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/records/example_reader.h"

namespace octet {

// A dataset known by name: where it is on the hub, and its files and columns.
struct DatasetPreset {
  std::string_view name;
  std::string_view hub_id;
  std::string_view revision;
  std::string_view files;   // globs of the repository, separated by commas
  std::string_view split;   // default split; empty: the files have no splits
  std::string_view splits;  // all, for messages
  ExampleFormat format;
  std::string_view text_column;  // of the format text
};

std::span<const DatasetPreset> dataset_presets();
const DatasetPreset* find_dataset_preset(std::string_view name);       // null: none of that name
const DatasetPreset* find_dataset_preset_of(std::string_view hub_id);  // null: none reads that repository

}  // namespace octet
