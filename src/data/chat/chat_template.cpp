#include "data/chat/chat_template.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "data/tokenizer/unicode.h"

namespace octet {
namespace {

constexpr const char* kBeginOfText = "<|begin_of_text|>";
constexpr const char* kStartHeader = "<|start_header_id|>";
constexpr const char* kEndHeader = "<|end_header_id|>";
constexpr const char* kEndOfTurn = "<|eot_id|>";
constexpr const char* kImStart = "<|im_start|>";
constexpr const char* kImEnd = "<|im_end|>";

constexpr std::string_view kQwenSystem =
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
// Llama 3.1's template uses this date unless it is given another.
constexpr std::string_view kLlama31Dates =
    "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";

constexpr std::string_view kAlpacaTask = "Below is an instruction that describes a task";
constexpr std::string_view kAlpacaInput = ", paired with an input that provides further context";
constexpr std::string_view kAlpacaRequest = ". Write a response that appropriately completes the request.";

constexpr std::array<std::pair<ChatTemplate, const char*>, 6> kNames = {{{ChatTemplate::Auto, "auto"},
                                                                         {ChatTemplate::Llama3, "llama3"},
                                                                         {ChatTemplate::Llama31, "llama3.1"},
                                                                         {ChatTemplate::Chatml, "chatml"},
                                                                         {ChatTemplate::Alpaca, "alpaca"},
                                                                         {ChatTemplate::Plain, "plain"}}};

std::vector<const char*> special_tokens(ChatTemplate chat_template) {
  switch (chat_template) {
    case ChatTemplate::Llama3:
    case ChatTemplate::Llama31:
      return {kBeginOfText, kStartHeader, kEndHeader, kEndOfTurn};
    case ChatTemplate::Chatml:
      return {kImStart, kImEnd};
    default:
      return {};
  }
}

// What the templates' `trim` removes: Python's white space. It has four more control characters than \s.
bool is_trimmed(uint32_t point) {
  return (char_classes()[point] & kSpace) != 0 || (point >= 0x1c && point <= 0x1f);
}

std::string trimmed(const std::string& text) {
  size_t begin = 0, end = 0;  // end: one past the last character that stays
  bool is_front = true;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char next = decode_utf8(text.data() + i, text.size() - i);
    const bool stays = !next.valid || !is_trimmed(next.point);
    if (is_front && stays) begin = i, is_front = false;
    i += next.length;
    if (stays) end = i;
  }
  return is_front ? std::string() : text.substr(begin, end - begin);
}

bool ends_in_space(const std::string& text) {
  return text.empty() || (class_before(text, text.size()) & kSpace);
}

bool begins_with_space(const std::string& text) {
  return !text.empty() && (char_classes()[decode_utf8(text.data(), text.size()).point] & kSpace);
}

}  // namespace

const char* name_of(ChatTemplate chat_template) {
  for (const auto& [value, name] : kNames) {
    if (value == chat_template) return name;
  }
  return "?";
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
  for (const std::string& name : split_list(loss_on == "completion" ? "assistant" : loss_on)) {
    bool is_known = false;
    for (const ChatRole role : {ChatRole::System, ChatRole::User, ChatRole::Assistant}) {
      if (name != name_of(role)) continue;
      is_known = loss.roles[static_cast<size_t>(role)] = true;
    }
    if (!is_known) {
      fail_config("[dataset] train_on '{}', expected completion, all, or a list of system, user, assistant",
                  printable(loss_on));
    }
  }
  if (split_list(loss_on).empty()) {
    fail_config(
        "[dataset] train_on is empty, expected completion, all, or a list of system, user, assistant");
  }
  return loss;
}

ChatTemplate choose_chat_template(const Tokenizer& tokenizer, ExampleFormat format) {
  for (const ChatTemplate chat_template : {ChatTemplate::Llama3, ChatTemplate::Chatml}) {
    bool has_all = true;
    for (const char* token : special_tokens(chat_template)) has_all = has_all && tokenizer.find_token(token);
    if (has_all) return chat_template;
  }
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

ChatRenderer::ChatRenderer(ChatTemplate chat_template, const Tokenizer& tokenizer, const LossRoles& loss,
                           std::optional<std::string> default_system, bool add_eos, bool add_bos)
    : template_(chat_template), loss_(loss), default_system_(std::move(default_system)) {
  for (const char* token : special_tokens(chat_template)) {
    require(tokenizer.find_token(token).has_value(),
            "[chat template {}] the tokenizer has no token {}; choose another template (alpaca and plain "
            "need no special tokens) or the model's own tokenizer",
            name_of(chat_template), token);
  }
  const bool is_text = chat_template == ChatTemplate::Alpaca || chat_template == ChatTemplate::Plain;
  if (add_eos && tokenizer.eos()) eos_ = tokenizer.decode(std::vector<int32_t>{*tokenizer.eos()});
  if (add_eos && is_text && eos_.empty()) {
    log_warning(
        "data: the tokenizer has no end-of-text token, so template {} cannot mark where an answer ends; a "
        "model trained on it will not stop",
        name_of(chat_template));
  }
  // The same prefix that a prompt for the model has.
  if (add_bos && is_text) prefix_ = prefix_tokens(tokenizer);
}

void ChatRenderer::add_special(Example& example, const char* token, bool is_target) const {
  example.pieces.push_back({token, true, is_target});
}

void ChatRenderer::add_text(Example& example, std::string text, bool is_target) const {
  if (!text.empty()) example.pieces.push_back({std::move(text), false, is_target});
}

Example ChatRenderer::render(const Conversation& conversation) const {
  Example example;
  for (const std::string& token : prefix_) add_special(example, token.c_str(), false);
  switch (template_) {
    case ChatTemplate::Llama3:
    case ChatTemplate::Llama31:
      render_headers(example, conversation);
      break;
    case ChatTemplate::Chatml:
      render_chatml(example, conversation);
      break;
    case ChatTemplate::Alpaca:
      render_alpaca(example, conversation);
      break;
    case ChatTemplate::Auto:
    case ChatTemplate::Plain:
      render_plain(example, conversation);
      break;
  }
  return example;
}

void ChatRenderer::render_headers(Example& example, const Conversation& conversation) const {
  const auto add = [&](ChatRole role, const std::string& text) {
    add_special(example, kStartHeader, loss_.everything);
    add_text(example, name_of(role), loss_.everything);
    add_special(example, kEndHeader, loss_.everything);
    add_text(example, "\n\n", loss_.everything);
    add_text(example, text, loss_.has(role));
    add_special(example, kEndOfTurn, loss_.has(role));
  };
  add_special(example, kBeginOfText, false);  // no target: no token comes before it
  const bool has_system = conversation[0].role == ChatRole::System;
  std::string system = has_system ? conversation[0].text() : default_system_.value_or("");
  if (template_ == ChatTemplate::Llama31) {
    add(ChatRole::System, fmt::format("{}{}", kLlama31Dates, trimmed(system)));
  } else if (has_system || !system.empty()) {
    add(ChatRole::System, trimmed(system));
  }
  for (size_t i = has_system ? 1 : 0; i < conversation.size(); ++i) {
    add(conversation[i].role, trimmed(conversation[i].text()));
  }
}

void ChatRenderer::render_chatml(Example& example, const Conversation& conversation) const {
  const auto add = [&](ChatRole role, const std::string& text) {
    add_special(example, kImStart, loss_.everything);
    add_text(example, fmt::format("{}\n", name_of(role)), loss_.everything);
    add_text(example, text, loss_.has(role));
    add_special(example, kImEnd, loss_.has(role));
    add_text(example, "\n", loss_.everything);
  };
  if (conversation[0].role != ChatRole::System) {
    const std::string system = default_system_.value_or(std::string(kQwenSystem));
    if (!system.empty()) add(ChatRole::System, system);
  }
  for (const Message& message : conversation) add(message.role, message.text());
}

void ChatRenderer::render_alpaca(Example& example, const Conversation& conversation) const {
  const bool has_system = conversation[0].role == ChatRole::System;
  const size_t first = has_system ? 1 : 0;
  const bool has_input = first < conversation.size() && !conversation[first].input.empty();
  if (has_system) {
    add_text(example, fmt::format("{}\n\n", conversation[0].content), loss_.has(ChatRole::System));
  } else if (default_system_) {
    add_text(example, default_system_->empty() ? "" : fmt::format("{}\n\n", *default_system_),
             loss_.everything);
  } else {
    add_text(example, fmt::format("{}{}{}\n\n", kAlpacaTask, has_input ? kAlpacaInput : "", kAlpacaRequest),
             loss_.everything);
  }
  for (size_t i = first; i < conversation.size(); ++i) {
    const Message& message = conversation[i];
    const bool is_target = loss_.has(message.role);
    if (i > first) add_text(example, "\n\n", loss_.everything);
    if (message.role == ChatRole::Assistant) {
      add_text(example, "### Response:\n", loss_.everything);
      add_text(example, message.content, is_target);
      if (!eos_.empty()) add_special(example, eos_.c_str(), is_target);
      continue;
    }
    add_text(example, "### Instruction:\n", loss_.everything);
    add_text(example, message.content, is_target);
    if (message.input.empty()) continue;
    add_text(example, "\n\n### Input:\n", loss_.everything);
    add_text(example, message.input, is_target);
  }
}

void ChatRenderer::render_plain(Example& example, const Conversation& conversation) const {
  std::string before;
  const auto add = [&](ChatRole role, const std::string& text) {
    if (!ends_in_space(before) && !begins_with_space(text)) add_text(example, "\n", loss_.everything);
    add_text(example, text, loss_.has(role));
    before = text;
    if (role != ChatRole::Assistant || eos_.empty()) return;
    add_special(example, eos_.c_str(), loss_.has(role));
    before.clear();
  };
  if (conversation[0].role != ChatRole::System && default_system_ && !default_system_->empty()) {
    add(ChatRole::System, *default_system_);
  }
  for (const Message& message : conversation) add(message.role, message.text());
}

}  // namespace octet
