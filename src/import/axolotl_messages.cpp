#include "import/axolotl_messages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/text.h"
#include "import/rules.h"

namespace octet {
namespace {

// The roles of a message and the names that octet knows for them.
struct RoleNames {
  std::string_view role, names;
};
constexpr RoleNames kRoles[] = {
    {"user", " user human "},
    {"assistant", " assistant gpt chatgpt model bot function_call "},
    {"system", " system developer "},
    {"tool", " tool function observation ipython tool_response "},
};

bool has_word(std::string_view words, std::string_view word) {
  return words.find(fmt::format(" {} ", word)) != words.npos;
}

// The role that octet reads from this name, or "".
std::string_view role_named(std::string_view name) {
  const auto found =
      std::ranges::find_if(kRoles, [&](const RoleNames& r) { return has_word(r.names, name); });
  return found == std::end(kRoles) ? "" : found->role;
}

// The value of train_on for roles_to_train.
std::string trained_roles(const TreeLeaf& leaf) {
  std::vector<std::string> roles;
  for (const std::string& name : leaf.list()) {
    const std::string_view role = role_named(name);
    roles.emplace_back(role.empty() ? std::string_view(name) : role);
  }
  const bool is_usual = roles == std::vector<std::string>{"assistant"};
  return is_usual ? "completion" : fmt::format("{}", fmt::join(roles, ","));
}

// A field of the data that octet reads under these names only.
void read_under(Importer& importer, const TreeLeaf& leaf, std::string_view names, std::string_view what) {
  if (leaf.is_off() || has_word(names, leaf.text)) {
    importer.ignore(leaf, "octet reads it");
  } else {
    importer.refuse(leaf, fmt::format("octet reads {} from:{}; rename '{}' in the data", what,
                                      names.substr(0, names.size() - 1), printable(leaf.text)));
  }
}

}  // namespace

// The old names input and output stand for everybody else and the assistant.
void roles_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string target = leaf.name.substr(leaf.name.rfind('.') + 1);
  for (const std::string& name : leaf.is_off() ? std::vector<std::string>() : leaf.list()) {
    const std::string_view role = role_named(name);
    const bool fits = target == "input"    ? !role.empty() && role != "assistant"
                      : target == "output" ? role == "assistant"
                                           : role == role_named(target) && !role.empty();
    if (fits) continue;
    importer.refuse(leaf,
                    fmt::format("octet knows the roles system, user (human), assistant (gpt, model) and tool "
                                "(function, observation), not '{}' for {}; rename it in the data",
                                printable(name), printable(target)));
    return;
  }
  importer.ignore(leaf, "octet knows these roles");
}

void trained_roles_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off()) {
    importer.ignore(leaf, "the default: the assistant");
  } else {
    importer.map(leaf, "train_on", trained_roles(leaf));
  }
}

void refuse_different_roles(Importer& importer) {
  const SettingsTree& tree = importer.tree();
  const TreeLeaf* general = tree.find("roles_to_train");
  const std::string otherwise = general && !general->is_off() ? trained_roles(*general) : "completion";
  const TreeLeaf* last = nullptr;  // that names roles
  std::set<std::string> values;
  for (size_t i = 0; tree.has(fmt::format("datasets.{}", i)); ++i) {
    if (prompt_type(tree.text(fmt::format("datasets.{}.type", i))).chat_template != "chat") continue;
    const TreeLeaf* roles = tree.find(fmt::format("datasets.{}.roles_to_train", i));
    const bool is_given = roles && !roles->is_off();
    if (is_given) last = roles;
    values.insert(is_given ? trained_roles(*roles) : otherwise);
  }
  if (values.size() > 1 && last)
    importer.refuse(*last, "the datasets train on different roles; octet has one train_on for all of them");
}

void training_field_rule(Importer& importer, const TreeLeaf& leaf) {
  read_under(importer, leaf, " training train weight ", "the mark of a message for the loss");
}
void tools_field_rule(Importer& importer, const TreeLeaf& leaf) {
  read_under(importer, leaf, " tools ", "tools");
}
void thinking_field_rule(Importer& importer, const TreeLeaf& leaf) {
  read_under(importer, leaf, " reasoning_content reasoning thinking ", "reasoning");
}

// role and content are looked at with their dataset.
void property_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string property = leaf.name.substr(leaf.name.rfind('.') + 1);
  if (property == "training" || property == "train" || property == "weight") {
    training_field_rule(importer, leaf);
  } else if (property == "reasoning_content" || property == "thinking" || property == "reasoning") {
    thinking_field_rule(importer, leaf);
  } else if (property == "tool_calls") {
    read_under(importer, leaf, " tool_calls function_call ", "tool calls");
  } else {
    importer.ignore(leaf, "octet's templates do not show it");
  }
}

TemplateChoice template_named(std::string_view given) {
  const std::string word = plain_word(given);
  if (word.empty() || word.starts_with("tokenizer_default")) return {"auto", false, ""};
  if (word == "chatml") return {"chatml", true, ""};
  if (word == "qwen_25") return {"chatml", false, ""};
  if (word == "qwen3") return {"qwen3", false, ""};
  if (word == "mistral_v1" || word == "mistral_v3_tekken") return {word, false, ""};
  if (word == "mistral_v2v3") return {"mistral_v3", false, ""};
  if (word == "llama3" || word == "llama-3") return {"llama3", false, ""};
  if (word == "alpaca") return {"alpaca", false, ""};
  return {
      "", false,
      fmt::format(
          "octet has no template '{}'; it has llama3, llama3.1, chatml, qwen3, mistral, llama2, alpaca and plain, or "
          "tokenizer_default here to choose by the tokenizer",
          printable(given))};
}

PromptType prompt_type(std::string_view given) {
  std::string word = plain_word(given);
  if (word.ends_with(".load")) word.resize(word.size() - 5);
  const size_t colon = word.find(':');
  const std::string base = word.substr(0, colon), style = colon == word.npos ? "" : word.substr(colon + 1);
  if (base == "alpaca" || base == "alpaca_w_system" || base == "gpteacher") {
    if (!style.empty() && style != "instruct")
      return {"", "", "",
              fmt::format("octet has no prompt style '{}'; it has alpaca and the chat templates",
                          printable(style))};
    return {"alpaca", base == "gpteacher" ? "response" : "", "alpaca", ""};
  }
  if (base == "chat_template" || base == "chat_template.default" || base == "sharegpt" ||
      base == "messages.chat" || base == "messages" || base == "sharegpt_simple")
    return {"messages", "", "chat", ""};
  if (base == "completion" || base == "pretrain") return {"text", "", "", ""};
  if (base.empty())
    return {"", "", "", "a dataset without a type; expected one such as alpaca or chat_template"};
  if (base == "input_output")
    return {"", "", "", "octet has no segments with labels of their own; use messages and train_on"};
  if (base.starts_with("stepwise") || base.starts_with("bradley_terry") || base.ends_with(".ultra") ||
      base.ends_with(".intel") || base.ends_with(".argilla") || base.ends_with(".icr"))
    return {"", "", "", "a dataset of preferences or rewards; octet trains on next tokens"};
  return {"", "", "",
          fmt::format("octet has no prompt format '{}'; it has alpaca, chat templates and plain text",
                      printable(given))};
}

}  // namespace octet
