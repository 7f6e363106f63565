#pragma once

#include <span>

#include "import/importer.h"

namespace octet {

// The datasets of TRL and the alignment handbook: dataset_name, dataset_mixer, dataset_mixture and datasets, with their
// splits.
std::span<const ToolKey> trl_data_keys();
// Sets dataset, eval_dataset and what belongs to them. Called after the rows.
void finish_trl_data(Importer& importer);

}  // namespace octet
