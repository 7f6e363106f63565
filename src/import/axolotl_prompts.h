#pragma once

#include <string>
#include <string_view>

namespace octet {

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
