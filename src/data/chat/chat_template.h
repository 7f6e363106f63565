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
};
LossRoles parse_loss_roles(const std::string& loss_on);  // see ExampleOptions; ConfigError

// Turns conversations into examples, with one template and one tokenizer's special tokens.
class ChatRenderer {
 public:
  // Throws Error, naming both, when the tokenizer lacks a token of the template.
  ChatRenderer(ChatTemplate chat_template, const Tokenizer& tokenizer, const LossRoles& loss,
               std::optional<std::string> default_system, bool add_eos, bool add_bos = true);

  Example render(const Conversation& conversation) const;

 private:
  void render_headers(Example& example, const Conversation& conversation) const;  // llama3, llama3.1
  void render_chatml(Example& example, const Conversation& conversation) const;
  void render_alpaca(Example& example, const Conversation& conversation) const;
  void render_plain(Example& example, const Conversation& conversation) const;
  void add_special(Example& example, const char* token, bool is_target) const;
  void add_text(Example& example, std::string text, bool is_target) const;

  ChatTemplate template_;
  LossRoles loss_;
  std::optional<std::string> default_system_;
  std::string eos_;                  // its name; empty: none is added
  std::vector<std::string> prefix_;  // of templates without a beginning of their own
};

// The names of the tokens that the tokenizer puts in front of a text (Llama 3: <|begin_of_text|>).
std::vector<std::string> prefix_tokens(const Tokenizer& tokenizer);

// What Auto means for this tokenizer.
ChatTemplate choose_chat_template(const Tokenizer& tokenizer, ExampleFormat format);

}  // namespace octet
