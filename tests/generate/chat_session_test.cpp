#include "generate/chat_session.h"

#include <gmock/gmock.h>

#include "data/tokenizer/bytes_tokenizer.h"
#include "support/error_of.h"
#include "support/model_fixture.h"
#include "support/tiny_run.h"

namespace octet {
namespace {

using ::testing::HasSubstr;

struct Chat : testing::Test {
  Chat() : device(make_cpu_device(1)) {}

  // A model of random weights. It answers the same to the same prompt, whatever it has read before.
  ChatSession& session(int64_t context, int64_t max_tokens) {
    ModelConfig config = test::two_layers("llama-tiny");
    config.vocab = tokenizer.vocab_size();
    decoder = std::make_unique<Decoder>(config, DecoderShape{1, context, 16}, DType::F32, *device);
    decoder->allocate();
    decoder->parameters().initialise(*device, 3);
    talk.emplace(*decoder, renderer, tokenizer, SampleOptions{.max_tokens = max_tokens, .temperature = 0},
                 std::vector<int32_t>{BytesTokenizer::kEndOfText});
    return *talk;
  }
  static bool ignore(std::string_view) { return true; }

  BytesTokenizer tokenizer;
  ChatRenderer renderer{{ChatTemplate::Alpaca, ""}, tokenizer, parse_loss_roles("completion")};
  std::unique_ptr<Device> device;
  std::unique_ptr<Decoder> decoder;
  std::optional<ChatSession> talk;
};

TEST_F(Chat, WhatWasReadIsNotReadAgain) {
  ChatSession& kept = session(512, 8);
  const ChatSession::Answer first = kept.ask("one", ignore);
  EXPECT_EQ(first.read_tokens, first.prompt_tokens);
  const ChatSession::Answer second = kept.ask("two", ignore);
  EXPECT_LT(second.read_tokens, second.prompt_tokens - first.prompt_tokens + 1);
  EXPECT_EQ(second.dropped, 0);
  // Without what was kept, the answers are the same.
  kept.reset();
  decoder->clear(0);
  EXPECT_EQ(kept.ask("one", ignore).text, first.text);
  decoder->clear(0);
  EXPECT_EQ(kept.ask("two", ignore).text, second.text);
}

TEST_F(Chat, OldMessagesAreForgottenAndCounted) {
  ChatSession& small = session(128, 8);
  int64_t dropped = 0;
  for (int i = 0; i < 6; ++i) {
    const ChatSession::Answer answer = small.ask("question", ignore);
    EXPECT_LE(answer.prompt_tokens + answer.new_tokens, 129);
    EXPECT_EQ(answer.dropped % 2, 0);
    dropped += answer.dropped;
  }
  EXPECT_GT(dropped, 0);
}

TEST_F(Chat, AMessageLongerThanTheContextIsAnErrorAndForgotten) {
  ChatSession& small = session(64, 8);
  EXPECT_THAT(error_of([&] { small.ask(std::string(100, 'x'), ignore); }),
              HasSubstr("but the context has 64"));
  EXPECT_GT(small.ask("x", ignore).new_tokens, 0);
}

TEST_F(Chat, AfterAnErrorTheConversationIsWhatItWas) {
  ChatSession& one = session(128, 4);
  one.ask("first", ignore);
  const int64_t expected = one.ask("next", ignore).prompt_tokens;
  one.reset();
  one.ask("first", ignore);
  EXPECT_THAT(error_of([&] { one.ask(std::string(200, 'x'), ignore); }), HasSubstr("the context has 128"));
  EXPECT_THAT(error_of([&] { one.ask("x", [](std::string_view) -> bool { fail("no room on the disk"); }); }),
              HasSubstr("no room"));
  const ChatSession::Answer answer = one.ask("next", ignore);
  EXPECT_EQ(answer.prompt_tokens, expected);
  EXPECT_EQ(answer.dropped, 0);
}

TEST_F(Chat, AnAnswerCanBeStopped) {
  ChatSession& one = session(256, 50);
  int parts = 0;
  const ChatSession::Answer answer = one.ask("x", [&](std::string_view) { return ++parts < 3; });
  EXPECT_GE(parts, 3);  // and perhaps the rest of a character
  EXPECT_LT(answer.new_tokens, 50);
  EXPECT_FALSE(answer.is_complete);
}

TEST_F(Chat, TheSystemMessageStays) {
  ChatSession& one = session(256, 4);
  const int64_t without = one.ask("x", ignore).prompt_tokens;
  one.set_system("Be brief.");
  const int64_t with = one.ask("x", ignore).prompt_tokens;
  EXPECT_EQ(with, without + 11);  // and two newlines
  one.reset();
  EXPECT_EQ(one.ask("x", ignore).prompt_tokens, with);
}

}  // namespace
}  // namespace octet
