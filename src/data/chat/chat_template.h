#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "data/chat/conversation.h"
#include "data/records/example.h"
#include "data/tokenizer/tokenizer.h"

namespace octet {

// Which roles' messages are targets. The token that ends a target message is a target too. The markers that begin a
// message are targets only when everything is.
struct LossRoles {
  bool everything = false;
  std::array<bool, kRoles> roles{};
  bool has(ChatRole role) const { return everything || roles[static_cast<size_t>(role)]; }
  // The message's own setting wins.
  bool has(const Message& message) const { return message.is_target.value_or(has(message.role)); }
};
LossRoles parse_loss_roles(const std::string& loss_on);  // see ExampleOptions; ConfigError

// How conversations are written: what a model was trained with, and what it must be asked with.
struct ChatStyle {
  ChatTemplate chat_template = ChatTemplate::Auto;
  // System message of conversations without one. "": none; not set: the template's own.
  std::optional<std::string> default_system = std::nullopt;
  bool operator==(const ChatStyle&) const = default;
};

// Turns conversations into examples, with one template and one tokenizer's special tokens.
class ChatRenderer {
 public:
  // Throws Error, naming both, when the tokenizer lacks a token of the template.
  ChatRenderer(const ChatStyle& style, const Tokenizer& tokenizer, const LossRoles& loss, bool add_eos = true,
               bool add_bos = true);

  // Throws Error that says what the template cannot show: tools, reasoning, an order of roles.
  Example render(const Conversation& conversation) const;
  // The conversation so far and what comes before the assistant's next message.
  Example prompt(const Conversation& conversation) const;

  ChatTemplate chat_template() const { return template_; }  // never Auto or Mistral
  // The system message of conversations without one; "": none.
  std::string default_system() const;
  // The name of the token after an answer; "": the tokenizer has none.
  const std::string& end_token() const { return end_; }
  // The same as a Jinja template for Transformers, which renders the same text. It names its style in a comment, which
  // recognise_chat_template reads back.
  std::string jinja() const;

 private:
  struct Output;  // an example that grows

  Example make(const Conversation& conversation, bool is_prompt) const;
  void render_headers(Output& out, const Conversation& conversation,
                      bool is_prompt) const;  // llama3, llama3.1
  void render_chatml(Output& out, const Conversation& conversation, bool is_prompt) const;  // chatml, qwen3
  void render_inst(Output& out, const Conversation& conversation) const;                    // llama2, mistral
  void render_alpaca(Output& out, const Conversation& conversation, bool is_prompt) const;
  void render_plain(Output& out, const Conversation& conversation, bool is_prompt) const;

  ChatTemplate template_;
  LossRoles loss_;
  std::optional<std::string> default_system_;
  std::string bos_, eos_;  // their names, for templates that use them
  std::string end_;
  std::vector<std::string> prefix_;  // of templates without a beginning of their own
};

// The names of the tokens that the tokenizer puts in front of a text (Llama 3: <|begin_of_text|>).
std::vector<std::string> prefix_tokens(const Tokenizer& tokenizer);

// The template that Auto means for this tokenizer.
ChatTemplate choose_chat_template(const Tokenizer& tokenizer, ExampleFormat format);

// The style that a model's own Jinja template stands for: one that octet wrote, or one of Llama 2 and 3, Qwen2.5,
// Qwen3, Mistral and models that share their form. Nothing for others.
std::optional<ChatStyle> recognise_chat_template(std::string_view jinja);

// Text without Python's white space at both ends, as the templates' `trim` has it.
std::string trimmed(const std::string& text);

}  // namespace octet
