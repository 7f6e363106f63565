// Text is generated from a model in training with its adapters: the logits are those of the model, and training does
// not notice.

#include <gtest/gtest.h>

#include <numeric>

#include "backend/cpu/cpu_device.h"
#include "model/decoder.h"
#include "support/error_of.h"
#include "support/lora_run.h"

namespace octet::test {
namespace {

struct DecoderCase {
  const char* name;
  const char* preset;
  Precision precision;
  Fp8Recipe recipe = Fp8Recipe::Current;
  // ||a - b|| / ||b|| over the logits of a token: in one pass, and token by token.
  double tolerance = 0, tolerance_single = 0;
  bool head = false;
  double dropout = 0;
  int64_t one_copy_layers = 0;
};

void PrintTo(const DecoderCase& c, std::ostream* out) {
  *out << c.name;
}

TinyRunOptions options_of(const DecoderCase& c) {
  return {.preset = c.preset,
          .precision = c.precision,
          .fp8 = {.recipe = c.recipe, .head = c.head ? Fp8Head::All : Fp8Head::None},
          .rows = 2,
          .length = 16,
          .adapters = lora_plan(c.preset, {.rank = 4, .alpha = 8, .dropout = c.dropout}),
          .one_copy_layers = c.one_copy_layers};
}

// In bf16 sums are rounded in another order. With one FP8 scale per tensor, a pass scales inputs by the values of its
// own tokens, and the delayed recipe by those of earlier steps: codes are then rounded differently. The logits of a
// model that has hardly been trained are small differences, so the errors of FP8, some percent per product, are seen in
// full.
constexpr double kBf16 = 0.01, kScaledApart = 0.12;
class LoraDecoder : public testing::TestWithParam<DecoderCase> {};

INSTANTIATE_TEST_SUITE_P(
    , LoraDecoder,
    testing::Values(
        DecoderCase{"fp32", "llama-tiny", Precision::Fp32, {}, 1e-5, 1e-5},
        DecoderCase{"fp32_gpt2", "gpt2-tiny", Precision::Fp32, {}, 1e-5, 1e-5},
        DecoderCase{"fp32_qwen3_dropout", "qwen3-tiny", Precision::Fp32, {}, 1e-5, 1e-5, false, 0.3},
        DecoderCase{"bf16", "qwen2.5-tiny", Precision::Bf16, {}, kBf16, kBf16},
        DecoderCase{"current", "llama-tiny", Precision::Fp8, Fp8Recipe::Current, kBf16, kScaledApart},
        DecoderCase{"current_one_copy", "gpt2-tiny", Precision::Fp8, Fp8Recipe::Current, kBf16, kScaledApart,
                    true, 0, kAllLayers},
        DecoderCase{"delayed", "llama-tiny", Precision::Fp8, Fp8Recipe::Delayed, kScaledApart, kScaledApart,
                    true},
        DecoderCase{"block", "mistral-tiny", Precision::Fp8, Fp8Recipe::Block, kBf16, kBf16, true},
        DecoderCase{"block_dropout", "llama-tiny", Precision::Fp8, Fp8Recipe::Block, kBf16, kBf16, false,
                    0.3},
        DecoderCase{"mxfp8", "qwen3-tiny", Precision::Fp8, Fp8Recipe::Mxfp8, kBf16, kBf16}),
    [](const auto& test) { return std::string(test.param.name); });

// Reads both rows of the batch, whole or token by token.
std::vector<Decoder::Logits> read_batch(TinyRun& run, const Batch& batch, bool token_by_token) {
  Decoder decoder(*run.model, {.sequences = 2, .capacity = 16}, *run.device);
  decoder.allocate();
  const auto ids = [&](int64_t row, int64_t begin, int64_t count) {
    return std::span(batch.tokens).subspan(static_cast<size_t>(row * 16 + begin), static_cast<size_t>(count));
  };
  if (!token_by_token)
    return decoder.read(std::vector<Decoder::Continuation>{{0, ids(0, 0, 16)}, {1, ids(1, 0, 16)}}, true);
  std::vector<Decoder::Logits> logits(32);
  for (int64_t t = 0; t < 16; ++t) {
    auto next = decoder.read(std::vector<Decoder::Continuation>{{0, ids(0, t, 1)}, {1, ids(1, t, 1)}});
    for (int64_t row : {0, 1})
      logits[static_cast<size_t>(row * 16 + t)] = std::move(next[static_cast<size_t>(row)]);
  }
  return logits;
}

TEST_P(LoraDecoder, GivesTheLogitsOfTheModel) {
  const DecoderCase& c = GetParam();
  TinyRun run(options_of(c));
  fill_adapters(*run.device, run.model->parameters());
  run.steps(2);
  const Batch batch = next_batch(run);
  run.model->load(host_view(batch));
  std::vector<int64_t> all(32);
  std::iota(all.begin(), all.end(), 0);
  const std::vector<std::vector<float>> expected = run.model->logits_at(all);
  double worst_whole = 0, worst_single = 0;
  const auto whole = read_batch(run, batch, false), single = read_batch(run, batch, true);
  for (size_t i = 0; i < 32; ++i) {
    worst_whole = std::max(worst_whole, norm_difference(whole[i], expected[i]));
    worst_single = std::max(worst_single, norm_difference(single[i], expected[i]));
  }
  EXPECT_LE(worst_whole, c.tolerance);
  EXPECT_LE(worst_single, c.tolerance_single);
}

TEST_P(LoraDecoder, TrainingDoesNotNoticeIt) {
  const DecoderCase& c = GetParam();
  TinyRun plain(options_of(c)), sampled(options_of(c));
  const Batch batch = next_batch(plain);
  next_batch(sampled);
  read_batch(sampled, batch, false);  // before the first step
  for (int i = 0; i < 3; ++i) {
    const StepResult expected = plain.step(), got = sampled.step();
    EXPECT_EQ(got.loss, expected.loss);
    EXPECT_EQ(got.grad_norm, expected.grad_norm);
    const std::vector<std::byte> before = sampled.model->scales().save(*sampled.device);
    read_batch(sampled, batch, i % 2 == 0);
    EXPECT_TRUE(sampled.model->scales().save(*sampled.device) == before);
  }
  EXPECT_TRUE(adapter_weights(sampled) == adapter_weights(plain));
}

class DeviceThatFails final : public CpuDevice {
 public:
  using CpuDevice::CpuDevice;
  void copy_to_host(void*, Tensor) override { fail("[device] fails"); }
};

// Whoever makes a sample may go on without it.
TEST(LoraDecoding, AFailureLeavesTheScalesOfTrainingAsTheyWere) {
  TinyRun run(
      options_of({.preset = "llama-tiny", .precision = Precision::Fp8, .recipe = Fp8Recipe::Current}));
  if (run.device->name() != "cpu") GTEST_SKIP() << "the device that fails is a CPU";
  fill_adapters(*run.device, run.model->parameters());
  const Batch batch = next_batch(run);
  pass(run, batch);
  const std::vector<std::byte> before = run.model->scales().save(*run.device);
  DeviceThatFails device(1);
  Decoder decoder(*run.model, {.sequences = 1, .capacity = 16}, device);
  decoder.allocate();
  EXPECT_THROW(decoder.read(std::vector<Decoder::Continuation>{{0, std::span(batch.tokens).subspan(3, 5)}}),
               Error);
  EXPECT_TRUE(run.model->scales().save(*run.device) == before);
}

// Whatever the recipe: the scales of training are made for other tokens.
TEST(LoraDecoding, ScalesInputsByTheirOwnValues) {
  TinyRun run(
      options_of({.preset = "llama-tiny", .precision = Precision::Fp8, .recipe = Fp8Recipe::Delayed}));
  fill_adapters(*run.device, run.model->parameters());
  const Batch batch = next_batch(run), other = next_batch(run);
  pass(run, other);  // makes the scales
  pass(run, other);  // uses them
  Decoder decoder(*run.model, {.sequences = 1, .capacity = 32}, *run.device);
  decoder.allocate();
  const auto got = decoder.read(std::vector<Decoder::Continuation>{{0, std::span(batch.tokens).first(16)}});
  TinyRunOptions one_row = options_of({.preset = "llama-tiny", .precision = Precision::Fp8});
  one_row.rows = 1;
  TinyRun model(one_row);
  fill_adapters(*model.device, model.model->parameters());
  model.model->load(host_view(next_batch(model)));
  EXPECT_LE(norm_difference(got.front(), model.model->logits_at({15}).front()), kBf16);
}

// Planning needs no memory. But the decoder's views of the weights are those of when it was made.
TEST(LoraDecoding, IsMadeAfterTheModelIsAllocated) {
  for (const Precision precision : {Precision::Fp32, Precision::Fp8}) {
    const auto device = make_cpu_device(1);
    Transformer model(two_layers("llama-tiny"), {.rows = 2, .length = 16}, {.precision = precision}, *device,
                      {.adapters = lora_plan("llama-tiny")});
    Decoder decoder(model, {.sequences = 1, .capacity = 16}, *device);
    EXPECT_GT(decoder.plan().peak_bytes(), 0);
    EXPECT_EQ(error_of([&] { decoder.allocate(); }),
              "[decoder] was made before allocate() of the model in training");
  }
}

// The adapters of now, not of when the decoder was made.
TEST(LoraDecoding, FollowsTraining) {
  TinyRun run({.rows = 2, .length = 16, .adapters = lora_plan("llama-tiny")});
  Decoder decoder(*run.model, {.sequences = 1, .capacity = 16}, *run.device);
  decoder.allocate();
  const Batch batch = next_batch(run);
  const auto logits = [&] {
    decoder.clear(0);
    return decoder.read(std::vector<Decoder::Continuation>{{0, std::span(batch.tokens).first(4)}}).front();
  };
  const std::vector<float> before = logits();
  EXPECT_EQ(logits(), before);
  run.steps(2);
  EXPECT_GT(norm_difference(logits(), before), 1e-4);
}

}  // namespace
}  // namespace octet::test
