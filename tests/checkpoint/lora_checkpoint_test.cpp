// Checkpoints of models with adapters: what is written, restored to the bit, and refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/snapshot.h"
#include "hf/peft_folder.h"
#include "support/error_of.h"
#include "support/lora_run.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

TinyRunOptions options_of(const char* preset, Precision precision,
                          const LoraConfig& lora = {.rank = 4, .alpha = 8}) {
  TinyRunOptions options{.preset = preset, .precision = precision, .adapters = lora_plan(preset, lora)};
  options.length = 16;
  return options;
}

struct LoraCheckpoint : testing::Test {
  Checkpoint save(TinyRun& run, bool in_place = false) {
    CheckpointStore store(posix_env(), fmt::format("{}/{}", folder.path(), saves++));
    Snapshot snapshot;
    snapshot.take(*run.device, *run.model, {.step = run.done, .loader = run.batches->state()}, "", in_place);
    snapshot.check();
    return store.save(run.done, [&](CheckpointWriter& writer) { snapshot.write(writer); }, {"lora", 1.0});
  }
  std::vector<std::string> restore(TinyRun& run, const Checkpoint& saved) {
    const Restored restored = restore_checkpoint(posix_env(), saved, *run.device, *run.model);
    run.batches->set_state(restored.state.loader);
    run.done = restored.state.step;
    return restored.remarks;
  }
  TemporaryFolder folder;
  int saves = 0;
};

// Weights, remainders and moments of the adapters.
std::vector<std::vector<std::byte>> state_of(TinyRun& run) {
  std::vector<std::vector<std::byte>> state;
  for (const Parameter& p : run.model->parameters().all()) {
    if (!p.spec.is_adapter()) continue;
    for (const NamedTensor& named : p.state()) {
      state.emplace_back(static_cast<size_t>(named.tensor.bytes()));
      run.device->copy_to_host(state.back().data(), named.tensor);
    }
  }
  return state;
}

TEST_F(LoraCheckpoint, AResumedRunHasEveryBit) {
  for (const char* preset : kFamilies) {
    for (const Precision precision : {Precision::Fp32, Precision::Bf16, Precision::Fp8}) {
      TinyRunOptions options = options_of(preset, precision, {.rank = 3, .dropout = 0.1});
      options.moments = precision == Precision::Fp8 ? DType::E4M3 : DType::F32;
      TinyRun run(options);
      run.steps(2);
      const Checkpoint saved = save(run);
      TinyRun again(options);
      EXPECT_THAT(restore(again, saved), IsEmpty());
      EXPECT_TRUE(state_of(again) == state_of(run)) << preset;
      for (int i = 0; i < 2; ++i) {
        const StepResult expected = run.step(), got = again.step();
        EXPECT_EQ(got.loss, expected.loss) << preset;
        EXPECT_EQ(got.grad_norm, expected.grad_norm) << preset;
      }
      EXPECT_TRUE(state_of(again) == state_of(run)) << preset;
      if (precision == Precision::Fp8) {
        EXPECT_TRUE(again.model->scales().save(*again.device) == run.model->scales().save(*run.device));
      }
    }
  }
}

// The file is a PEFT adapter in fp32: what BF16 keeps in 16 and 16 bits is one number there.
TEST_F(LoraCheckpoint, TheWeightsAreExactAndReadableByPeft) {
  TinyRun run(options_of("gpt2-tiny", Precision::Bf16));
  run.steps(3);
  const Checkpoint saved = save(run);
  const SafetensorsFile file =
      SafetensorsFile::open(posix_env(), saved.file_path(checkpoint_file::kAdapterWeights));
  const HfWeights weights([&](std::string_view name) { return file.find(name); }, file.place());
  bool rounded = true;
  size_t tensors = 0;
  for (const Parameter& p : run.model->parameters().all()) {
    if (!p.spec.is_adapter()) continue;
    const std::vector<float> values = weights.values(p.spec);
    EXPECT_EQ(values, ParameterSet::weight_values(*run.device, p)) << p.spec.name;
    for (const float value : values) rounded &= to_float(to_bf16(value)) == value;
    tensors += p.spec.hf.size();
  }
  EXPECT_FALSE(rounded);
  EXPECT_EQ(file.tensors().size(), tensors);
  EXPECT_NE(file.find("base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"), nullptr);
  EXPECT_FALSE(saved.has_file(checkpoint_file::kWeights));
}

TEST_F(LoraCheckpoint, ReadingFromTheDeviceWhileWritingGivesTheSameFiles) {
  TinyRun run(options_of("llama-tiny", Precision::Fp8));
  run.steps(1);
  const Checkpoint copied = save(run);
  const Checkpoint direct = save(run, true);
  for (const char* name :
       {checkpoint_file::kAdapterWeights, checkpoint_file::kOptimizer, checkpoint_file::kFp8})
    EXPECT_TRUE(read_text(copied.file_path(name)) == read_text(direct.file_path(name))) << name;
}

TEST_F(LoraCheckpoint, TheBytesOfTheStateAreThoseOfAdapters) {
  TinyRun run(options_of("llama-tiny", Precision::Bf16));
  int64_t elements = 0;
  for (const Parameter& p : run.model->parameters().all()) {
    if (p.spec.is_adapter()) elements += p.spec.shape.numel();
  }
  EXPECT_EQ(state_bytes(run.model->parameters()), (2 + 2 + 4 + 4) * elements);
}

TEST_F(LoraCheckpoint, TheOtherKindIsRefused) {
  TinyRunOptions options = options_of("llama-tiny", Precision::Bf16);
  TinyRun lora(options);
  options.adapters = {};
  TinyRun full(options);
  lora.steps(1);
  const Checkpoint adapters = save(lora), weights = save(full);
  EXPECT_EQ(error_of([&] { restore(full, adapters); }),
            fmt::format("[{}] holds adapters, but this run trains all weights", adapters.path));
  EXPECT_EQ(error_of([&] { restore(lora, weights); }),
            fmt::format("[{}] holds all weights of a model, but this run trains adapters", weights.path));
}

TEST_F(LoraCheckpoint, OtherAdaptersAreRefusedAndNothingIsChanged) {
  TinyRun run(options_of("llama-tiny", Precision::Fp32));
  run.steps(1);
  const Checkpoint saved = save(run);
  const auto refusal = [&](const LoraConfig& lora) {
    TinyRun other(options_of("llama-tiny", Precision::Fp32, lora));
    const auto before = state_of(other);
    const std::string text = error_of([&] { restore(other, saved); });
    EXPECT_TRUE(state_of(other) == before);
    return text;
  };
  EXPECT_THAT(refusal({.rank = 8}),
              AllOf(HasSubstr("optimizer.safetensors] does not fit the model"),
                    HasSubstr("layers.0.attention.qkv.lora_a.m has shape (12, 128), expected (24, 128)")));
  // A checkpoint with more adapters than the model has is no checkpoint of this model.
  EXPECT_THAT(refusal({.rank = 4, .targets = {"q_proj"}}), HasSubstr("does not fit the model"));
}

TEST_F(LoraCheckpoint, ValuesThatAreNotFiniteAreNotSaved) {
  TinyRun run(options_of("llama-tiny", Precision::Bf16));
  Parameter& p = run.model->parameters()["layers.1.mlp.down.lora_b.down_proj"];
  std::vector<float> values = ParameterSet::weight_values(*run.device, p);
  values[5] = std::nanf("");
  ParameterSet::set_weight(*run.device, p, values);
  EXPECT_THAT(error_of([&] { save(run); }),
              HasSubstr("layers.1.mlp.down.lora_b.down_proj holds values that are not finite"));
}

// A base in BF16 resumes as FP8 and back: the adapters keep every bit.
TEST_F(LoraCheckpoint, AnotherPrecisionKeepsAdaptersAndMoments) {
  TinyRun bf16(options_of("qwen3-tiny", Precision::Bf16)), fp8(options_of("qwen3-tiny", Precision::Fp8)),
      fp32(options_of("qwen3-tiny", Precision::Fp32));
  bf16.steps(2);
  const Checkpoint saved = save(bf16);
  restore(fp8, saved);
  EXPECT_TRUE(state_of(fp8) == state_of(bf16));
  restore(fp32, saved);
  EXPECT_EQ(adapter_weights(fp32), adapter_weights(bf16));
  fp8.steps(2);
  const Checkpoint back = save(fp8);
  restore(bf16, back);
  EXPECT_TRUE(state_of(bf16) == state_of(fp8));
  restore(fp32, back);
  EXPECT_EQ(adapter_weights(fp32), adapter_weights(fp8));
}

// The codes of the base are not part of a checkpoint, and restoring leaves them as they are.
TEST_F(LoraCheckpoint, TheBaseInFp8IsUntouched) {
  for (const Fp8Recipe recipe : {Fp8Recipe::Delayed, Fp8Recipe::Current, Fp8Recipe::Block}) {
    TinyRunOptions options = options_of("llama-tiny", Precision::Fp8);
    options.fp8.recipe = recipe;
    options.fp8.head = Fp8Head::All;
    TinyRun run(options), again(options);
    run.steps(3);
    const Checkpoint saved = save(run);
    restore(again, saved);
    for (size_t i = 0; i < run.model->linears().size(); ++i) {
      const Quantized* a = run.model->linears()[i]->weight.copies();
      const Quantized* b = again.model->linears()[i]->weight.copies();
      const auto codes_a = a->rowwise.codes.span<uint8_t>(), codes_b = b->rowwise.codes.span<uint8_t>();
      EXPECT_TRUE(std::ranges::equal(codes_a, codes_b)) << i;
      EXPECT_EQ(a->slot->inverse_rowwise, b->slot->inverse_rowwise) << i;
      EXPECT_EQ(a->slot->amax, b->slot->amax) << i;
    }
  }
}

}  // namespace
}  // namespace octet::test
