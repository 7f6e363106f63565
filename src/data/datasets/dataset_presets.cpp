#include "data/datasets/dataset_presets.h"

#include <algorithm>
#include <array>

namespace octet {
namespace {

constexpr std::array kPresets = {
    DatasetPreset{"fineweb-edu", "HuggingFaceFW/fineweb-edu", "main", "sample/10BT/*.parquet", "", "",
                  ExampleFormat::Text, "text"},
    DatasetPreset{"openwebtext", "Skylion007/openwebtext", "main", "plain_text/*.parquet", "train", "train",
                  ExampleFormat::Text, "text"},
    // The repository itself holds only a program; the hub keeps the program's output on this branch.
    DatasetPreset{"tinyshakespeare", "karpathy/tiny_shakespeare", "refs/convert/parquet", "*.parquet",
                  "train", "train, validation, test", ExampleFormat::Text, "text"},
    DatasetPreset{"openmathinstruct-2", "nvidia/OpenMathInstruct-2", "main", "data/*.parquet", "train_1M",
                  "train_1M, train_2M, train_5M, train", ExampleFormat::ProblemSolution, ""},
    DatasetPreset{"gsm8k", "openai/gsm8k", "main", "main/*.parquet", "train", "train, test",
                  ExampleFormat::QuestionAnswer, ""},
    DatasetPreset{"alpaca", "tatsu-lab/alpaca", "main", "data/*.parquet", "train", "train",
                  ExampleFormat::Alpaca, ""}};

}  // namespace

std::span<const DatasetPreset> dataset_presets() {
  return kPresets;
}

const DatasetPreset* find_dataset_preset(std::string_view name) {
  const auto found = std::find_if(kPresets.begin(), kPresets.end(),
                                  [&](const DatasetPreset& preset) { return preset.name == name; });
  return found == kPresets.end() ? nullptr : &*found;
}

const DatasetPreset* find_dataset_preset_of(std::string_view hub_id) {
  const auto found = std::ranges::find(kPresets, hub_id, &DatasetPreset::hub_id);
  return found == kPresets.end() ? nullptr : &*found;
}

}  // namespace octet
