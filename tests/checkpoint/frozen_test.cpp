// Runs of which part of the model is frozen: their checkpoints, weights from a folder, and what is said of them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/snapshot.h"
#include "hf/hf_folder.h"
#include "support/error_of.h"
#include "support/model_fixture.h"
#include "support/process.h"
#include "tensor/split_fp32.h"
#include "train/guards.h"

namespace octet::test {
namespace {

using testing::HasSubstr;

// Everything but the second layer's MLP and the final norm.
bool is_trained(const ParameterSpec& spec) {
  return spec.name.starts_with("layers.1.mlp.") || spec.name.starts_with("final_norm.");
}

TinyRunOptions options_of(const char* preset) {
  TinyRunOptions options{.preset = preset, .precision = Precision::Fp8};
  options.fp8.recipe = Fp8Recipe::Delayed;
  options.storage = [](const ParameterSpec& spec) { return ParameterStorage{.trainable = is_trained(spec)}; };
  return options;
}

constexpr const char* kPresets[] = {"gpt2-tiny", "llama-tiny", "qwen2.5-tiny", "qwen3-tiny", "mistral-tiny"};

TEST(Frozen, OnlyWhatIsTrainedChanges) {
  for (const char* preset : kPresets) {
    TinyRun run(options_of(preset));
    std::vector<std::vector<float>> before;
    for (const Parameter& p : run.model->parameters().all())
      before.push_back(ParameterSet::weight_values(*run.device, p));
    run.steps(3);
    size_t i = 0;
    for (const Parameter& p : run.model->parameters().all()) {
      const bool changed = ParameterSet::weight_values(*run.device, p) != before[i++];
      EXPECT_EQ(changed, is_trained(p.spec)) << preset << " " << p.spec.name;
    }
  }
}

TEST(Frozen, AResumedRunHasEveryBit) {
  for (const char* preset : kPresets) {
    const TemporaryFolder folder;
    TinyRun run(options_of(preset));
    run.steps(2);
    CheckpointStore store(posix_env(), folder.path() + "/checkpoints");
    Snapshot snapshot;
    snapshot.take(*run.device, *run.model, {.step = 2, .loader = run.batches->state()}, "");
    const Checkpoint saved =
        store.save(2, [&](CheckpointWriter& writer) { snapshot.write(writer); }, {"fp8", 1.0});
    TinyRun again(options_of(preset));
    const Restored restored = restore_checkpoint(posix_env(), saved, *again.device, *again.model);
    again.batches->set_state(restored.state.loader);
    again.done = restored.state.step;
    const StepResult expected = run.step(), got = again.step();
    EXPECT_EQ(got.loss, expected.loss) << preset;
    EXPECT_EQ(got.grad_norm, expected.grad_norm) << preset;
    EXPECT_EQ(again.weights(), run.weights()) << preset;
  }
}

TEST(Frozen, GradientsThatAreNotThereAreNotLookedAt) {
  TinyRun run(options_of("qwen3-tiny"));
  run.step();
  EXPECT_EQ(describe_nonfinite_gradients(*run.device, run.model->parameters()), "");
  for (Parameter& p : run.model->parameters().all()) {
    if (!p.gradient) continue;
    const std::vector<float> values(static_cast<size_t>(p.gradient.numel()), std::nanf(""));
    run.device->copy_to_device(p.gradient, values.data());
  }
  EXPECT_THAT(describe_nonfinite_gradients(*run.device, run.model->parameters()),
              HasSubstr("no parameter has a finite gradient"));
}

// Weights of a folder go to the ranks that share them, and a share is never taken for the whole.
TEST(Frozen, SharesAreFilledFromAFolder) {
  const TemporaryFolder folder;
  RandomModel whole(two_layers("llama-tiny"), DType::BF16);
  whole.write_folder(folder.path() + "/model");
  const auto device = make_cpu_device(1);
  for (const int64_t rank : {0, 1}) {
    BufferPlanner planner;
    ParameterSet share(
        whole.config, {.weight = DType::BF16}, false, planner, [rank](const ParameterSpec& spec) {
          return cut_storage(spec, {.mode = ShardingMode::Zero1, .rank = rank, .ranks = 2, .group = 2});
        });
    planner.finish();
    const std::shared_ptr<void> memory = device->allocate(planner.plan().peak_bytes());
    planner.bind(memory.get());
    load_hf_folder(*device, share, folder.path() + "/model");
    for (const Parameter& p : share.all()) {
      std::vector<float> expected = ParameterSet::weight_values(*whole.device, whole.parameters[p.spec.name]);
      const int64_t width = p.spec.shape.rank() == 1 ? 1 : p.spec.shape[1];
      const auto begin = expected.begin() + p.first_row() * width;
      for (float& value : expected) value = to_float(Bf16{split_high(std::bit_cast<uint32_t>(value))});
      EXPECT_EQ(ParameterSet::weight_values(*device, p), std::vector<float>(begin, begin + p.own_rows.numel()))
          << p.spec.name << " of rank " << rank;
    }
    EXPECT_THAT(error_of([&] { device_weight_rows(*device, share, SafeDType::BF16)(0, 0, 1); }),
                HasSubstr("is not stored here as one dense tensor"));
  }
}

}  // namespace
}  // namespace octet::test
