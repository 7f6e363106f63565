#include "generate/chat_session.h"

#include <algorithm>

#include "base/error.h"
#include "data/records/example_reader.h"
#include "data/tokenizer/stream_decoder.h"

namespace octet {

ChatSession::ChatSession(Decoder& decoder, const ChatRenderer& renderer, const Tokenizer& tokenizer,
                         SampleOptions sample, std::vector<int32_t> end_ids)
    : decoder_(decoder),
      renderer_(renderer),
      tokenizer_(tokenizer),
      sample_(std::move(sample)),
      end_ids_(std::move(end_ids)) {}

namespace {

// A question and its answer. Returns the messages dropped.
int64_t drop_oldest(Conversation& conversation) {
  std::vector<Message>& messages = conversation.messages;
  const auto first = messages.begin() + (conversation.has_system() ? 1 : 0);
  // Up to the next question, and never the last one.
  const auto next = std::find_if(first + 1, messages.end(),
                                 [](const Message& message) { return message.role == ChatRole::User; });
  if (next == messages.end()) return 0;
  const int64_t dropped = next - first;
  messages.erase(first, next);
  return dropped;
}

}  // namespace

ChatSession::Answer ChatSession::ask(const std::string& user,
                                     const std::function<bool(std::string_view)>& on_text) {
  Answer answer;
  Conversation conversation = conversation_;  // kept if the question is answered
  conversation.messages.push_back({ChatRole::User, user});
  const auto prompt_ids = [&] { return encode_example(renderer_.prompt(conversation), tokenizer_).tokens; };
  std::vector<int32_t> prompt = prompt_ids();
  // Room for an answer, but not at the cost of the whole history.
  const int64_t room = std::min(sample_.max_tokens, context() / 4);
  while (std::ssize(prompt) + room > context() + 1) {
    const int64_t dropped = drop_oldest(conversation);
    if (dropped == 0) break;
    answer.dropped += dropped;
    prompt = prompt_ids();
  }
  if (std::ssize(prompt) > context()) {
    fail("the message needs {} tokens with the system message, but the context has {}", prompt.size(),
         context());
  }
  answer.prompt_tokens = std::ssize(prompt);
  StreamDecoder decoder(tokenizer_, true);
  const auto is_end = [&](int32_t id) { return std::ranges::find(end_ids_, id) != end_ids_.end(); };
  const auto give = [&](const std::string& text) {
    answer.text += text;
    return text.empty() || on_text(text);
  };
  const auto on_token = [&](size_t, int32_t id) {
    ++answer.new_tokens;
    answer.is_complete = is_end(id);
    // A vocabulary is often padded.
    if (answer.is_complete || id >= tokenizer_.vocab_size()) return true;
    return give(decoder.push(id));
  };
  const std::span<const int32_t> held(cached_.data(),
                                      std::min(cached_.size(), static_cast<size_t>(decoder_.length(0))));
  const auto shared = std::mismatch(held.begin(), held.end(), prompt.begin(), prompt.end()).first;
  answer.read_tokens = answer.prompt_tokens - (shared - held.begin());
  const std::vector<int32_t> added =
      generate_ids(decoder_, {prompt}, sample_, end_ids_, {.on_token = on_token, .cached = held}).front();
  give(decoder.finish());
  answer.is_full =
      !answer.is_complete && answer.new_tokens < sample_.max_tokens && decoder_.length(0) >= context();
  cached_ = std::move(prompt);
  cached_.insert(cached_.end(), added.begin(), added.end());
  cached_.resize(std::min(cached_.size(), static_cast<size_t>(decoder_.length(0))));
  conversation.messages.push_back({ChatRole::Assistant, answer.text});
  conversation_ = std::move(conversation);
  ++sample_.seed;  // another answer to the same question
  return answer;
}

void ChatSession::reset() {
  std::vector<Message>& messages = conversation_.messages;
  messages.erase(messages.begin() + (conversation_.has_system() ? 1 : 0), messages.end());
}

void ChatSession::set_system(const std::optional<std::string>& text) {
  conversation_.messages.clear();
  if (text) conversation_.messages.push_back({ChatRole::System, *text});
}

}  // namespace octet
