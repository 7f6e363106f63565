#pragma once

#include "import/importer.h"

namespace octet {

// Rules for the messages of Axolotl's datasets: the roles, and the fields that octet reads.
void roles_rule(Importer&, const TreeLeaf&);          // roles: {assistant: [gpt, model]}
void trained_roles_rule(Importer&, const TreeLeaf&);  // roles_to_train
void training_field_rule(Importer&, const TreeLeaf&);
void tools_field_rule(Importer&, const TreeLeaf&);
void thinking_field_rule(Importer&, const TreeLeaf&);
void property_rule(Importer&, const TreeLeaf&);  // message_property_mappings

// One run of octet has one train_on: datasets with different roles_to_train are refused.
void refuse_different_roles(Importer&);

}  // namespace octet
