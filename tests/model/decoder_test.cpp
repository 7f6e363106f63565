// Reading token by token, in chunks and in batches against the full forward pass and Transformers' logits.

#include "model/decoder.h"

#include <gtest/gtest.h>

#include "hf/hf_folder.h"
#include "support/golden_model.h"
#include "support/plain_choice.h"

namespace octet {
namespace {

// fp32; ||a - b|| / ||b|| over all logits.
constexpr double kTolerance = 1e-5;

struct DecoderParity : testing::TestWithParam<const char*> {
  DecoderParity() : golden(GetParam()), device(make_cpu_device(2)), expected(golden.floats("logits")) {}

  std::unique_ptr<Decoder> make(int64_t sequences, int64_t capacity, int64_t chunk) {
    auto decoder = std::make_unique<Decoder>(golden.config, DecoderShape{sequences, capacity, chunk},
                                             DType::F32, *device);
    decoder->allocate();
    HfWeights([this](std::string_view name) { return golden.file.find(name); }, GetParam(), "weights.")
        .load(*device, decoder->parameters());
    return decoder;
  }
  std::span<const int32_t> row(int64_t r) const {
    return std::span(golden.tokens)
        .subspan(static_cast<size_t>(r * golden.length), static_cast<size_t>(golden.length));
  }
  // Logits of token t of row r as Transformers gave them.
  std::span<const float> expected_at(int64_t r, int64_t t) const {
    return std::span(expected).subspan(static_cast<size_t>((r * golden.length + t) * golden.config.vocab),
                                       static_cast<size_t>(golden.config.vocab));
  }

  GoldenModel golden;
  std::unique_ptr<Device> device;
  std::vector<float> expected;
};

TEST_P(DecoderParity, OneTokenAtATime) {
  const auto decoder = make(1, golden.length, 128);
  for (int64_t t = 0; t < golden.length; ++t) {
    const Decoder::Continuation next{0, row(0).subspan(static_cast<size_t>(t), 1)};
    const auto logits = decoder->read({&next, 1});
    ASSERT_EQ(logits.size(), 1u);
    EXPECT_LE(relative_error(logits[0], expected_at(0, t)), kTolerance) << "token " << t;
  }
  EXPECT_EQ(decoder->length(0), golden.length);
}

TEST_P(DecoderParity, PromptsInChunksOfEverySize) {
  for (const int64_t chunk : {1, 3, 7, 64}) {
    const auto decoder = make(golden.rows, golden.length + 2, chunk);
    std::vector<Decoder::Continuation> prompts;
    for (int64_t r = 0; r < golden.rows; ++r) prompts.push_back({r, row(r)});
    const auto logits = decoder->read(prompts, true);
    ASSERT_EQ(std::ssize(logits), golden.rows * golden.length);
    for (int64_t i = 0; i < std::ssize(logits); ++i) {
      EXPECT_LE(
          relative_error(logits[static_cast<size_t>(i)], expected_at(i / golden.length, i % golden.length)),
          kTolerance)
          << "chunk " << chunk << ", token " << i;
    }
  }
}

// Sequences of different lengths side by side, then a slot used again for another text.
TEST_P(DecoderParity, BatchesOfUnequalSequences) {
  const auto decoder = make(3, golden.length, 128);
  const auto part = [&](int64_t r, int64_t begin, int64_t count) {
    return row(r).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
  };
  const std::vector<Decoder::Continuation> prompts = {{2, part(0, 0, 3)}, {0, part(1, 0, 5)}};
  auto logits = decoder->read(prompts);
  ASSERT_EQ(logits.size(), 2u);
  EXPECT_LE(relative_error(logits[0], expected_at(0, 2)), kTolerance);
  EXPECT_LE(relative_error(logits[1], expected_at(1, 4)), kTolerance);
  decoder->clear(0);
  const std::vector<Decoder::Continuation> next = {
      {0, part(0, 0, 2)}, {1, part(1, 0, 1)}, {2, part(0, 3, 1)}};
  logits = decoder->read(next);
  ASSERT_EQ(logits.size(), 3u);
  EXPECT_LE(relative_error(logits[0], expected_at(0, 1)), kTolerance);
  EXPECT_LE(relative_error(logits[1], expected_at(1, 0)), kTolerance);
  EXPECT_LE(relative_error(logits[2], expected_at(0, 3)), kTolerance);
}

// More sequences than the head works on at once, prompts that begin and end inside passes.
TEST_P(DecoderParity, ChoosesFromTheLogitsItReads) {
  constexpr int64_t kSequences = 20;
  for (const int64_t chunk : {7, 128}) {
    const auto decoder = make(kSequences, golden.length, chunk);
    std::vector<Decoder::Continuation> prompts;
    std::vector<TokenChoice> choices;
    for (int64_t s = 0; s < kSequences; ++s) {
      prompts.push_back({s, row(s % golden.rows).first(static_cast<size_t>(1 + s % golden.length))});
      choices.push_back({.top_p = s % 3 == 0 ? 0.9 : 1.0,
                         .temperature = s % 4 == 0 ? 0.0f : 1.0f,
                         .uniform = static_cast<float>(s) / kSequences,
                         .top_k = s % 5 == 0 ? 10 : 0});
    }
    const std::vector<Decoder::Logits> logits = decoder->read(prompts);
    for (int64_t s = 0; s < kSequences; ++s) decoder->clear(s);
    const std::vector<int32_t> ids = decoder->choose(prompts, choices);
    for (size_t s = 0; s < ids.size(); ++s) {
      const std::vector<double> exact(logits[s].begin(), logits[s].end());
      EXPECT_EQ(ids[s], test::plain_choice(exact, choices[s])) << "chunk " << chunk << ", sequence " << s;
    }
  }
}

TEST_P(DecoderParity, RefusesWhatDoesNotFit) {
  const auto decoder = make(1, 4, 128);
  const Decoder::Continuation too_long{0, row(0).first(5)};
  EXPECT_THROW(decoder->read({&too_long, 1}), Error);
  const std::vector<int32_t> wrong = {static_cast<int32_t>(golden.config.vocab)};
  const Decoder::Continuation outside{0, wrong};
  EXPECT_THROW(decoder->read({&outside, 1}), Error);
}

INSTANTIATE_TEST_SUITE_P(Families, DecoderParity,
                         testing::Values("gpt2", "llama_untied", "llama_rope_scaled", "qwen2_tied",
                                         "qwen2_untied", "qwen3_tied", "mistral_window"));

}  // namespace
}  // namespace octet
