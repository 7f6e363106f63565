#pragma once

#include <functional>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "generate/generate.h"

namespace octet {

// A conversation with a model. What the decoder has read of it is kept between the answers.
class ChatSession {
 public:
  // The decoder has one sequence; its capacity is the context. All must outlive the session.
  ChatSession(Decoder& decoder, const ChatRenderer& renderer, const Tokenizer& tokenizer,
              SampleOptions sample, std::vector<int32_t> end_ids);

  struct Answer {
    std::string text;
    int64_t dropped = 0;  // messages at the beginning that no longer fit, and were forgotten
    int64_t prompt_tokens = 0, read_tokens = 0, new_tokens = 0;  // read: of the prompt, not read before
    bool is_complete = false;                                    // it ended itself
    bool is_full = false;  // the context was full before the limit of tokens
  };
  // The assistant's answer. `on_text` is called with each new part of the text, which is valid UTF-8; false stops the
  // answer. Error if the message alone is longer than the context. After an error the conversation is what it was.
  Answer ask(const std::string& user, const std::function<bool(std::string_view text)>& on_text);

  void reset();  // forgets all messages but the system message
  void set_system(
      const std::optional<std::string>& text);  // and forgets the rest; not set: the template's own

  int64_t context() const { return decoder_.shape().capacity; }

 private:
  Decoder& decoder_;
  const ChatRenderer& renderer_;
  const Tokenizer& tokenizer_;
  SampleOptions sample_;
  std::vector<int32_t> end_ids_;
  Conversation conversation_;
  std::vector<int32_t> cached_;  // what the decoder's sequence holds
};

}  // namespace octet
