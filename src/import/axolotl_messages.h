#pragma once

#include <string>
#include <string_view>

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

// A chat template of Axolotl as one of octet's.
struct TemplateChoice {
  std::string name;             // of chat_template
  bool without_system = false;  // no system message of its own
  std::string refusal;
};

TemplateChoice template_named(std::string_view given);

// What the `type` of a dataset means.
struct PromptType {
  std::string format;             // of octet; "" if refused
  std::string completion_column;  // if it is not the usual one
  std::string chat_template;      // "chat": that of the run
  std::string refusal;
};

PromptType prompt_type(std::string_view given);

}  // namespace octet
