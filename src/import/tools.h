#pragma once

#include <span>
#include <string>
#include <string_view>

#include "import/importer.h"

namespace octet {

// The programs whose files are recognised, one table each.
const Tool& llamafactory_tool();
const Tool& llamafactory_v1_tool();
const Tool& hf_trainer_tool();  // TrainingArguments, SFTConfig of TRL
const Tool& deepspeed_tool();
const Tool& axolotl_tool();
const Tool& accelerate_tool();

// The rows of TrainingArguments, which other tools include.
std::span<const ToolKey> hf_training_keys();

std::span<const Tool* const> tools();
std::string tool_names();  // with commas

inline constexpr int kLikelyScore = 50;  // of a file that belongs to a tool

// The tool that a file belongs to; torchtune is an error. nullptr: octet's own, because every key is octet's or no tool is likely.
const Tool* tool_of(const SettingsTree& tree);

// Whether a file with octet's keys alone could be the Hugging Face Trainer's as well: every key is spelled as there.
bool could_be_hf_trainers(const SettingsTree& tree);

// Whether every key is octet's.
bool is_own_configuration(const SettingsTree& tree);

// Points for detection: `points` for each of the names, separated by spaces, that is in the tree (or has something below
// it).
int count_keys(const SettingsTree& tree, std::string_view names, int points);

}  // namespace octet
