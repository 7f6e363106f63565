#pragma once

#include <string>
#include <string_view>

#include "import/importer.h"

namespace octet {

// Rules for LLaMA-Factory's own keys.
void stage_rule(Importer&, const TreeLeaf&);
void template_rule(Importer&, const TreeLeaf&);
void adapter_rule(Importer&, const TreeLeaf&);
void lf_packing_rule(Importer&, const TreeLeaf&);
void lf_recompute_rule(Importer&, const TreeLeaf&);
void lf_fp8_backend_rule(Importer&, const TreeLeaf&);
// The finding about fp8_backend auto and torchao; `backend` says which one: "for this backend".
void find_dropped_fp8_recipe(Importer&, const TreeLeaf& leaf, std::string_view backend);
void all_gather_rule(Importer&, const TreeLeaf&);
void pure_bf16_rule(Importer&, const TreeLeaf&);

// Datasets by their names in dataset_info.json; llamafactory_data.cpp.
void dataset_rule(Importer&, const TreeLeaf&);
void eval_dataset_rule(Importer&, const TreeLeaf&);

}  // namespace octet
