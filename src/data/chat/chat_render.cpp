// How each template writes a conversation.
#include <algorithm>

#include "base/error.h"
#include "data/chat/chat_template.h"
#include "data/chat/template_parts.h"
#include "data/tokenizer/unicode.h"

namespace octet {
namespace {

using namespace template_parts;

bool ends_in_space(const std::string& text) {
  if (text.empty()) return true;
  size_t last = text.size() - 1;
  while (last > 0 && (static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
  return is_space(decode_utf8(text.data() + last, text.size() - last).point);
}

bool begins_with_space(const std::string& text) {
  return !text.empty() && is_space(decode_utf8(text.data(), text.size()).point);
}

std::string strip_newlines(std::string text, bool front, bool back) {
  while (back && text.ends_with('\n')) text.pop_back();
  if (front) text.erase(0, std::min(text.find_first_not_of('\n'), text.size()));
  return text;
}

// Throws Error for what the template has no form for. Nothing may be dropped silently.
void check_content(const Conversation& conversation, ChatTemplate chat_template) {
  const bool shows_tools = is_chatml_template(chat_template) || chat_template == ChatTemplate::Llama31;
  const auto refuse_tools = [&](const char* what) {
    require(
        shows_tools,
        "{}, which template {} cannot show; set chat_template to chatml, qwen3 or llama3.1 (if the tokenizer has "
        "their tokens), or skip such records with on_error: skip",
        what, name_of(chat_template));
  };
  if (!conversation.tools.empty()) refuse_tools("the record has tools");
  for (const Message& message : conversation.messages) {
    if (message.role == ChatRole::Tool) refuse_tools("a message has the role tool");
    if (!message.tool_calls.empty()) refuse_tools("a message calls a tool");
    require(
        message.reasoning.empty() || chat_template == ChatTemplate::Qwen3,
        "a message has reasoning, which template {} cannot show; set chat_template to qwen3, or put the reasoning "
        "into the content",
        name_of(chat_template));
  }
}

// The templates with [INST] have a place for one system message, and user and assistant in turn.
void check_turns(const Conversation& conversation, ChatTemplate chat_template) {
  ChatRole expected = ChatRole::User;
  for (size_t i = conversation.has_system() ? 1 : 0; i < conversation.messages.size(); ++i) {
    const ChatRole role = conversation.messages[i].role;
    require(
        role == expected,
        "message {} is of role {}, expected {}: template {} takes user and assistant in turn, after at most one "
        "system message",
        i + 1, name_of(role), name_of(expected), name_of(chat_template));
    expected = role == ChatRole::User ? ChatRole::Assistant : ChatRole::User;
  }
}

std::string qwen_call(const ToolCall& call) {
  return fmt::format("<tool_call>\n{{\"name\": \"{}\", \"arguments\": {}}}\n</tool_call>", call.name,
                     template_json(call.arguments));
}

// Qwen3 keeps the reasoning only of answers after the last question, which is no answer of a tool.
size_t last_question(const std::vector<Message>& messages) {
  for (size_t i = messages.size(); i-- > 0;) {
    const std::string text = messages[i].text();
    const bool is_response = text.starts_with("<tool_response>") && text.ends_with("</tool_response>");
    if (messages[i].role == ChatRole::User && !is_response) return i;
  }
  return messages.size() - 1;
}

// Reasoning in the content itself counts as such.
Message with_reasoning_split(Message message) {
  constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";
  const size_t end = message.content.find(kThinkEnd);
  if (!message.reasoning.empty() || end == message.content.npos) return message;
  std::string before = strip_newlines(message.content.substr(0, end), false, true);
  const size_t begin = before.rfind(kThink);
  if (begin != before.npos) before = before.substr(begin + kThink.size());
  message.reasoning = strip_newlines(std::move(before), true, false);
  message.content = strip_newlines(
      message.content.substr(message.content.rfind(kThinkEnd) + kThinkEnd.size()), true, false);
  return message;
}

std::string qwen_answer(const Message& message, ChatTemplate chat_template, bool is_after_question,
                        bool is_last) {
  std::string text = message.text();
  if (chat_template == ChatTemplate::Qwen3) {
    const Message split = with_reasoning_split(message);
    text = split.text();
    if (is_after_question && (is_last || !split.reasoning.empty())) {
      text = fmt::format("<think>\n{}\n</think>\n\n{}", strip_newlines(split.reasoning, true, true),
                         strip_newlines(split.text(), true, false));
    }
    const bool has_content = !split.text().empty();
    for (size_t i = 0; i < message.tool_calls.size(); ++i) {
      if (i > 0 || has_content) text += '\n';
      text += qwen_call(message.tool_calls[i]);
    }
    return text;
  }
  for (const ToolCall& call : message.tool_calls) {
    if (!text.empty()) text += '\n';
    text += qwen_call(call);
  }
  return text;
}

}  // namespace

struct ChatRenderer::Output {
  Example example = {};
  const LossRoles& loss;

  void special(const std::string& token, bool is_target) {
    example.pieces.push_back({token, true, is_target});
  }
  void text(std::string text, bool is_target) {
    if (!text.empty()) example.pieces.push_back({std::move(text), false, is_target});
  }
  // Markers belong to no role.
  void marker(std::string words) { text(std::move(words), loss.everything); }
  void marker_token(const char* token) { special(token, loss.everything); }
};

Example ChatRenderer::render(const Conversation& conversation) const {
  return make(conversation, false);
}

Example ChatRenderer::prompt(const Conversation& conversation) const {
  return make(conversation, true);
}

Example ChatRenderer::make(const Conversation& conversation, bool is_prompt) const {
  check_content(conversation, template_);
  Output out{.loss = loss_};
  for (const std::string& token : prefix_) out.special(token, false);
  switch (template_) {
    case ChatTemplate::Llama3:
    case ChatTemplate::Llama31:
      render_headers(out, conversation, is_prompt);
      break;
    case ChatTemplate::Chatml:
    case ChatTemplate::Qwen3:
      render_chatml(out, conversation, is_prompt);
      break;
    case ChatTemplate::Llama2:
    case ChatTemplate::Mistral:
    case ChatTemplate::MistralV1:
    case ChatTemplate::MistralV3:
    case ChatTemplate::MistralV3Tekken:
      render_inst(out, conversation);
      break;
    case ChatTemplate::Alpaca:
      render_alpaca(out, conversation, is_prompt);
      break;
    case ChatTemplate::Auto:
    case ChatTemplate::Plain:
      render_plain(out, conversation, is_prompt);
      break;
  }
  return std::move(out.example);
}

void ChatRenderer::render_headers(Output& out, const Conversation& conversation, bool is_prompt) const {
  const auto header = [&](const char* name) {
    out.marker_token(kStartHeader);
    out.marker(name);
    out.marker_token(kEndHeader);
    out.marker("\n\n");
  };
  const auto add = [&](const char* name, const std::string& text, bool is_target) {
    header(name);
    out.text(text, is_target);
    out.special(kEndOfTurn, is_target);
  };
  const std::vector<Message>& messages = conversation.messages;
  const bool has_tools = !conversation.tools.empty();
  out.special(kBeginOfText, false);  // no target: no token comes before it
  const bool has_system = conversation.has_system();
  const std::string system = trimmed(has_system ? messages[0].text() : default_system());
  const bool is_target = has_system ? loss_.has(messages[0]) : loss_.has(ChatRole::System);
  if (template_ == ChatTemplate::Llama31) {
    add("system",
        fmt::format("{}{}Today Date: {}\n\n{}", has_tools ? kLlama31Environment : "", kLlama31Cutoff,
                    kLlama31Date, system),
        is_target);
  } else if (has_system || !system.empty()) {
    add("system", system, is_target);
  }
  const size_t first = has_system ? 1 : 0;
  require(
      !has_tools || (first < messages.size() && messages[first].role == ChatRole::User),
      "the record has tools, and template llama3.1 shows them in the first message of the user, but the first "
      "message is of another role");
  for (size_t i = first; i < messages.size(); ++i) {
    const Message& message = messages[i];
    std::string text = trimmed(message.text());
    if (i == first && has_tools) {
      std::string tools(kLlama31Tools);
      for (const auto& tool : conversation.tools) tools += template_json(tool, 4) + "\n\n";
      text = tools + text;
    }
    if (message.role == ChatRole::Tool) {
      // The template quotes a text, too.
      add("ipython", template_json(message.content), loss_.has(message));
      continue;
    }
    if (!message.tool_calls.empty()) {
      require(message.tool_calls.size() == 1,
              "a message calls {} tools, but template llama3.1 shows one call per message",
              message.tool_calls.size());
      require(text.empty(),
              "a message has both a text and a tool call, but template llama3.1 shows only one of them");
      const ToolCall& call = message.tool_calls[0];
      text =
          fmt::format("{{\"name\": \"{}\", \"parameters\": {}}}", call.name, template_json(call.arguments));
    }
    add(name_of(message.role), text, loss_.has(message));
  }
  if (is_prompt) header(name_of(ChatRole::Assistant));
}

void ChatRenderer::render_chatml(Output& out, const Conversation& conversation, bool is_prompt) const {
  const auto begin = [&](const char* name) {
    out.marker_token(kImStart);
    out.marker(name);
    out.marker("\n");
  };
  const auto end = [&](bool is_target) {
    out.special(kImEnd, is_target);
    out.marker("\n");
  };
  const std::vector<Message>& messages = conversation.messages;
  const bool has_system = conversation.has_system();
  std::string system = has_system ? messages[0].text() : default_system();
  if (!conversation.tools.empty()) {
    if (has_system || !system.empty()) system += "\n\n";
    system += kQwenToolsBegin;
    for (const auto& tool : conversation.tools) system += fmt::format("\n{}", template_json(tool));
    system += kQwenToolsEnd;
  }
  if (has_system || !system.empty()) {
    const bool is_target = has_system ? loss_.has(messages[0]) : loss_.has(ChatRole::System);
    begin("system");
    out.text(system, is_target);
    end(is_target);
  }
  const size_t question = last_question(messages);
  for (size_t i = has_system ? 1 : 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    const bool is_target = loss_.has(message);
    const auto is_tool = [&](size_t at) {
      return at < messages.size() && messages[at].role == ChatRole::Tool;
    };
    if (message.role == ChatRole::Tool) {
      if (i == 0 || !is_tool(i - 1)) {
        begin("user");
      } else {
        out.marker("\n");
      }
      out.text(fmt::format("<tool_response>\n{}\n</tool_response>", message.text()), is_target);
      if (!is_tool(i + 1)) end(is_target);
      continue;
    }
    begin(name_of(message.role));
    out.text(message.role == ChatRole::Assistant
                 ? qwen_answer(message, template_, i > question, i + 1 == messages.size())
                 : message.text(),
             is_target);
    end(is_target);
  }
  if (is_prompt) begin(name_of(ChatRole::Assistant));
}

void ChatRenderer::render_inst(Output& out, const Conversation& conversation) const {
  check_turns(conversation, template_);
  const std::vector<Message>& messages = conversation.messages;
  const size_t first = conversation.has_system() ? 1 : 0;
  require(first < messages.size(), "a conversation of a system message alone, which template {} cannot show",
          name_of(template_));
  const std::string system = first == 1 ? messages[0].text() : default_system();
  const bool has_system = first == 1 || !system.empty();
  const bool is_llama = template_ == ChatTemplate::Llama2, is_v1 = template_ == ChatTemplate::MistralV1;
  const bool is_tekken = template_ == ChatTemplate::MistralV3Tekken;
  const bool begins_with_system = is_llama || is_v1;
  size_t last_user = first;
  for (size_t i = first; i < messages.size(); ++i) {
    if (messages[i].role == ChatRole::User) last_user = i;
  }
  const auto inst = [&](const char* name) {
    if (is_llama || is_v1) {
      out.marker(name);
    } else {
      out.marker_token(name);
    }
  };
  if (!is_llama) out.special(bos_, false);
  for (size_t i = first; i < messages.size(); ++i) {
    const bool is_target = loss_.has(messages[i]);
    std::string text = messages[i].text();
    if (messages[i].role == ChatRole::Assistant) {
      if (is_llama) text = fmt::format(" {} ", trimmed(text));
      if (is_v1) text = fmt::format(" {}", text);
      if (template_ == ChatTemplate::MistralV3) text = fmt::format(" {}", trimmed(text));
      out.text(text, is_target);
      out.special(eos_, is_target);
      continue;
    }
    if (has_system && i == (begins_with_system ? first : last_user)) {
      text = is_llama ? fmt::format("<<SYS>>\n{}\n<</SYS>>\n\n{}", system, text)
                      : fmt::format("{}\n\n{}", system, text);
    }
    if (is_llama) {
      out.special(bos_, i > first && loss_.everything);
      text = trimmed(text);
    }
    if (is_v1) out.marker(" ");
    inst(kInst);
    if (!is_tekken) out.marker(" ");
    out.text(text, is_target);
    if (is_llama || is_v1) out.marker(" ");
    inst(kEndInst);
  }
}

void ChatRenderer::render_alpaca(Output& out, const Conversation& conversation, bool is_prompt) const {
  const std::vector<Message>& messages = conversation.messages;
  const size_t first = conversation.has_system() ? 1 : 0;
  const bool has_input = first < messages.size() && !messages[first].input.empty();
  if (first == 1) {
    out.text(fmt::format("{}\n\n", messages[0].content), loss_.has(messages[0]));
  } else if (default_system_) {
    out.marker(default_system_->empty() ? "" : fmt::format("{}\n\n", *default_system_));
  } else {
    out.marker(fmt::format("{}{}{}\n\n", kAlpacaTask, has_input ? kAlpacaInput : "", kAlpacaRequest));
  }
  for (size_t i = first; i < messages.size(); ++i) {
    const Message& message = messages[i];
    const bool is_target = loss_.has(message);
    if (i > first) out.marker("\n\n");
    if (message.role == ChatRole::Assistant) {
      out.marker("### Response:\n");
      out.text(message.content, is_target);
      if (!eos_.empty()) out.special(eos_, is_target);
      continue;
    }
    out.marker("### Instruction:\n");
    out.text(message.content, is_target);
    if (message.input.empty()) continue;
    out.marker("\n\n### Input:\n");
    out.text(message.input, is_target);
  }
  if (is_prompt) out.marker("\n\n### Response:\n");
}

void ChatRenderer::render_plain(Output& out, const Conversation& conversation, bool is_prompt) const {
  std::string before;
  const auto add = [&](ChatRole role, const std::string& text, bool is_target) {
    if (!ends_in_space(before) && !begins_with_space(text)) out.marker("\n");
    out.text(text, is_target);
    before = text;
    if (role != ChatRole::Assistant || eos_.empty()) return;
    out.special(eos_, is_target);
    before.clear();
  };
  if (!conversation.has_system() && !default_system().empty())
    add(ChatRole::System, default_system(), loss_.has(ChatRole::System));
  for (const Message& message : conversation.messages) add(message.role, message.text(), loss_.has(message));
  if (is_prompt && !ends_in_space(before)) out.marker("\n");
}

}  // namespace octet
