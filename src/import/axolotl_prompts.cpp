#include "import/axolotl_prompts.h"

#include <fmt/format.h>

#include "base/text.h"
#include "import/rules.h"

namespace octet {

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
