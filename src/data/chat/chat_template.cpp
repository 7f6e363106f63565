#include "data/chat/chat_template.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "data/chat/template_parts.h"
#include "data/tokenizer/unicode.h"

namespace octet {
namespace {

using namespace template_parts;

constexpr std::array<std::pair<ChatTemplate, const char*>, 12> kNames = {
    {{ChatTemplate::Auto, "auto"},
     {ChatTemplate::Llama3, "llama3"},
     {ChatTemplate::Llama31, "llama3.1"},
     {ChatTemplate::Chatml, "chatml"},
     {ChatTemplate::Qwen3, "qwen3"},
     {ChatTemplate::Llama2, "llama2"},
     {ChatTemplate::Mistral, "mistral"},
     {ChatTemplate::MistralV1, "mistral_v1"},
     {ChatTemplate::MistralV3, "mistral_v3"},
     {ChatTemplate::MistralV3Tekken, "mistral_v3_tekken"},
     {ChatTemplate::Alpaca, "alpaca"},
     {ChatTemplate::Plain, "plain"}}};

std::vector<const char*> special_tokens(ChatTemplate chat_template) {
  switch (chat_template) {
    case ChatTemplate::Llama3:
    case ChatTemplate::Llama31:
      return {kBeginOfText, kStartHeader, kEndHeader, kEndOfTurn};
    case ChatTemplate::Chatml:
    case ChatTemplate::Qwen3:
      return {kImStart, kImEnd};
    case ChatTemplate::MistralV3:
    case ChatTemplate::MistralV3Tekken:
      return {kInst, kEndInst};
    default:
      return {};
  }
}

bool has_tokens_of(const Tokenizer& tokenizer, ChatTemplate chat_template) {
  for (const char* token : special_tokens(chat_template)) {
    if (!tokenizer.find_token(token)) return false;
  }
  return true;
}

// Mistral's SentencePiece vocabularies have 32,000 or 32,768 tokens; Tekken, which follows them, 131,072.
ChatTemplate choose_mistral(const Tokenizer& tokenizer) {
  constexpr int64_t kTekken = 100'000;
  if (!has_tokens_of(tokenizer, ChatTemplate::MistralV3)) return ChatTemplate::MistralV1;
  return tokenizer.vocab_size() > kTekken ? ChatTemplate::MistralV3Tekken : ChatTemplate::MistralV3;
}

std::string token_name(const Tokenizer& tokenizer, std::optional<int32_t> id) {
  return id ? tokenizer.decode(std::vector<int32_t>{*id}) : std::string();
}

}  // namespace

const char* name_of(ChatTemplate chat_template) {
  for (const auto& [value, name] : kNames) {
    if (value == chat_template) return name;
  }
  return "?";
}

std::vector<std::string> chat_template_names() {
  std::vector<std::string> names;
  for (const auto& [value, name] : kNames) names.emplace_back(name);
  return names;
}

ChatTemplate parse_chat_template(const std::string& name) {
  std::string list;
  for (const auto& [value, known] : kNames) {
    if (name == known) return value;
    list += fmt::format("{}{}", list.empty() ? "" : ", ", known);
  }
  fail_config("[dataset] chat template '{}', expected one of {}", printable(name), list);
}

LossRoles parse_loss_roles(const std::string& loss_on) {
  LossRoles loss;
  if (loss_on == "all") {
    loss.everything = true;
    return loss;
  }
  constexpr const char* kExpected = "completion, all, or a list of system, user, assistant, tool";
  for (const std::string& name : split_list(loss_on == "completion" ? "assistant" : loss_on)) {
    bool is_known = false;
    for (const ChatRole role : {ChatRole::System, ChatRole::User, ChatRole::Assistant, ChatRole::Tool}) {
      if (name != name_of(role)) continue;
      is_known = loss.roles[static_cast<size_t>(role)] = true;
    }
    if (!is_known) fail_config("[dataset] train_on '{}', expected {}", printable(loss_on), kExpected);
  }
  if (split_list(loss_on).empty()) fail_config("[dataset] train_on is empty, expected {}", kExpected);
  return loss;
}

ChatTemplate choose_chat_template(const Tokenizer& tokenizer, ExampleFormat format) {
  for (const ChatTemplate chat_template : {ChatTemplate::Llama3, ChatTemplate::Chatml}) {
    if (has_tokens_of(tokenizer, chat_template)) return chat_template;
  }
  if (has_tokens_of(tokenizer, ChatTemplate::MistralV3)) return choose_mistral(tokenizer);
  return format == ExampleFormat::Alpaca ? ChatTemplate::Alpaca : ChatTemplate::Plain;
}

std::vector<std::string> prefix_tokens(const Tokenizer& tokenizer) {
  constexpr int32_t kText =
      -1;  // stands for the text: separates what comes before it from what comes after it
  std::vector<std::string> names;
  for (const int32_t id : tokenizer.add_special({kText})) {
    if (id == kText) break;
    names.push_back(tokenizer.decode(std::vector<int32_t>{id}));
  }
  return names;
}

// It has four more control characters than \s.
bool template_parts::is_space(uint32_t point) {
  return (char_classes()[point] & kSpace) != 0 || (point >= 0x1c && point <= 0x1f);
}

std::string trimmed(const std::string& text) {
  size_t begin = 0, end = 0;  // end: one past the last character that stays
  bool is_front = true;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char next = decode_utf8(text.data() + i, text.size() - i);
    const bool stays = !next.valid || !template_parts::is_space(next.point);
    if (is_front && stays) begin = i, is_front = false;
    i += next.length;
    if (stays) end = i;
  }
  return is_front ? std::string() : text.substr(begin, end - begin);
}

ChatRenderer::ChatRenderer(const ChatStyle& style, const Tokenizer& tokenizer, const LossRoles& loss,
                           bool add_eos, bool add_bos)
    : template_(style.chat_template), loss_(loss), default_system_(style.default_system) {
  if (template_ == ChatTemplate::Mistral) template_ = choose_mistral(tokenizer);
  if (template_ == ChatTemplate::Auto) template_ = choose_chat_template(tokenizer, ExampleFormat::Auto);
  for (const char* token : special_tokens(template_)) {
    require(tokenizer.find_token(token).has_value(),
            "[chat template {}] the tokenizer has no token {}; choose another template (alpaca and plain "
            "need no special tokens) or the model's own tokenizer",
            name_of(template_), token);
  }
  const bool is_text = template_ == ChatTemplate::Alpaca || template_ == ChatTemplate::Plain;
  const bool is_inst = is_inst_template(template_);
  if (is_inst || (add_eos && is_text)) eos_ = token_name(tokenizer, tokenizer.eos());
  if (is_inst) {
    bos_ = token_name(tokenizer, tokenizer.bos());
    require(
        !bos_.empty() && !eos_.empty(),
        "[chat template {}] needs the tokens that begin and end a text (<s> and </s>), and the tokenizer has "
        "none; choose another template or the model's own tokenizer",
        name_of(template_));
  }
  if (add_eos && is_text && eos_.empty()) {
    log_warning(
        "data: the tokenizer has no end-of-text token, so template {} cannot mark where an answer ends; a "
        "model trained on it will not stop",
        name_of(template_));
  }
  // The same prefix that a prompt for the model has.
  if (add_bos && is_text) prefix_ = prefix_tokens(tokenizer);
  end_ = is_text || is_inst              ? eos_
         : is_chatml_template(template_) ? std::string(kImEnd)
                                         : std::string(kEndOfTurn);
}

std::string ChatRenderer::default_system() const {
  return default_system_.value_or(template_ == ChatTemplate::Chatml ? std::string(kQwenSystem)
                                                                    : std::string());
}

}  // namespace octet
