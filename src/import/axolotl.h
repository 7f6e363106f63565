#pragma once

#include <span>

#include "import/key_table.h"

namespace octet {

// Parts of axolotl_tool(), see tools.h.

// Keys that need no thought.
std::string_view axolotl_keys();

// Rules about data.
std::span<const KeyRules> axolotl_data_rules();
// Sets dataset, eval_dataset, chat_template and what belongs to them. Called after the rows.
void finish_axolotl_data(Importer& importer);

// Rules about adapters and a quantised base.
std::span<const KeyRules> axolotl_adapter_rules();
void finish_axolotl_adapters(Importer& importer);
// Adapters are trained: then the lora_ keys count.
bool axolotl_trains_adapters(const SettingsTree& tree);
// A frozen base in 4 or 8 bits: octet's frozen weights are FP8 then.
bool axolotl_wants_small_base(const SettingsTree& tree);

}  // namespace octet
