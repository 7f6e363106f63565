// Adapters on a base in FP8: which copies exist, how they are filled, that they never change, and how far the results
// are from those in fp32 and BF16.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "backend/cpu/cpu_device.h"
#include "support/error_of.h"
#include "support/lora_run.h"

namespace octet::test {
namespace {

using testing::HasSubstr;

constexpr Fp8Recipe kRecipes[] = {Fp8Recipe::Delayed, Fp8Recipe::Current, Fp8Recipe::Block, Fp8Recipe::Mxfp8};

TinyRunOptions fp8_options(const char* preset, Fp8Recipe recipe, bool head = false) {
  return {.preset = preset,
          .precision = Precision::Fp8,
          .fp8 = {.recipe = recipe, .head = head ? Fp8Head::All : Fp8Head::None},
          .adapters = lora_plan(preset)};
}

std::vector<uint8_t> host_bytes(const Tensor& tensor) {
  if (!tensor) return {};
  const auto* bytes = static_cast<const uint8_t*>(tensor.data);
  return {bytes, bytes + tensor.bytes()};
}

// Codes, scales and slot of a weight.
struct WeightState {
  std::vector<uint8_t> codes, scales, transposed, transposed_scales;
  float scale = 0, inverse = 0, transposed_inverse = 0;
  bool operator==(const WeightState&) const = default;
};

WeightState state_of(Linear& linear) {
  const Quantized& weight = *linear.weight.copies();
  WeightState state{.codes = host_bytes(weight.rowwise.codes),
                    .scales = host_bytes(weight.rowwise.scales),
                    .scale = weight.slot->scale_rowwise,
                    .inverse = weight.slot->inverse_rowwise,
                    .transposed_inverse = weight.slot->inverse_colwise};
  if (linear.weight.transposes()) return state;  // memory that all Linears share
  state.transposed = host_bytes(weight.colwise.codes);
  state.transposed_scales = host_bytes(weight.colwise.scales);
  return state;
}

std::vector<WeightState> weight_states(TinyRun& run) {
  std::vector<WeightState> states;
  for (Linear* linear : run.model->linears()) {
    if (linear->weight.copies()) states.push_back(state_of(*linear));
  }
  return states;
}

TEST(LoraFp8, AMatrixOfTheBaseHasNoDenseCopy) {
  for (const char* preset : kFamilies) {
    for (const Fp8Recipe recipe : kRecipes) {
      const TinyRunOptions options = fp8_options(preset, recipe);
      TinyRun run(options);
      int64_t elements = 0;
      for (const Parameter& p : run.model->parameters().all()) {
        const bool matrix_of_layer =
            p.spec.name.starts_with("layers.") && p.spec.shape.rank() == 2 && !p.spec.is_adapter();
        EXPECT_EQ(p.storage.has_dense_rows(), !matrix_of_layer) << preset << " " << p.spec.name;
        EXPECT_EQ(static_cast<bool>(p.weight), !matrix_of_layer) << preset << " " << p.spec.name;
        if (!matrix_of_layer) continue;
        elements += p.spec.shape.numel();
        EXPECT_EQ(planned_bytes(run.model->plan(), p.spec.name), 0) << p.spec.name;
      }
      // One byte per element and copy, in memory that is never used for anything else.
      EXPECT_EQ(planned_bytes(run.model->plan(), ".weight.fp8"), elements) << preset;
      EXPECT_EQ(planned_bytes(run.model->plan(), ".weight.fp8_transposed"), elements) << preset;
      EXPECT_EQ(planned_bytes(run.model->plan(), ".input.fp8_transposed"), 0) << "kept for a weight gradient";
    }
  }
}

// The dense weight of a head takes part in the corrections of its gradients.
TEST(LoraFp8, AHeadInFp8KeepsItsDenseWeight) {
  for (const bool tied : {false, true}) {
    ModelConfig config = two_layers("llama-tiny");
    config.tied_head = tied;
    CpuDevice device(1);
    Transformer model(
        config, {.rows = 2, .length = 32},
        {.precision = Precision::Fp8, .fp8 = {.recipe = Fp8Recipe::Current, .head = Fp8Head::All}}, device,
        {.adapters = plan_adapters(config, {.rank = 4})});
    const Linear& head = *model.linears().back();
    EXPECT_TRUE(head.spec.choice[Product::Forward].fp8);
    EXPECT_TRUE(head.weight.parameter().storage.has_dense_rows());
    EXPECT_EQ(planned_bytes(model.plan(), "head.weight") > 0, !tied);
  }
}

// A layer that stays in BF16 keeps its dense weight, and only that.
TEST(LoraFp8, ASkippedLayerIsDense) {
  TinyRunOptions options = fp8_options("llama-tiny", Fp8Recipe::Delayed);
  options.fp8.skip_layers = {"last:1", "layers.0.mlp.down"};
  TinyRun run(options);
  for (const Linear* linear : run.model->linears()) {
    const bool fp8 = linear->spec.site.layer == 0 && linear->spec.site.name != "layers.0.mlp.down";
    EXPECT_EQ(linear->weight.parameter().storage.has_dense_rows(), !fp8) << linear->spec.site.name;
  }
  for (const StepResult& result : run.steps(2)) EXPECT_FALSE(result.skipped);
}

// One copy: W alone. Its transpose is made before dgrad in memory that all Linears share.
TEST(LoraFp8, OneCopyAndTwoGiveTheSameBits) {
  for (const Fp8Recipe recipe : {Fp8Recipe::Delayed, Fp8Recipe::Current, Fp8Recipe::Block}) {
    for (const Checkpointing level : {Checkpointing::None, Checkpointing::Block}) {
      const bool head = level == Checkpointing::Block;
      TinyRunOptions two = fp8_options("qwen2.5-tiny", recipe, head);
      two.checkpointing = level;
      TinyRunOptions one = two;
      one.one_copy_layers = kAllLayers;
      TinyRun with_two(two), with_one(one);
      EXPECT_EQ(planned_bytes(with_one.model->plan(), ".weight.fp8_transposed"), 0);
      EXPECT_GT(planned_bytes(with_one.model->plan(), "fp8.weight_transposed"), 0);
      EXPECT_EQ(planned_bytes(with_two.model->plan(), "fp8.weight_transposed"), 0);
      EXPECT_LT(with_one.model->plan().peak_bytes(), with_two.model->plan().peak_bytes());
      for (int i = 0; i < 2; ++i) {
        const StepResult a = with_one.step(), b = with_two.step();
        EXPECT_EQ(a.loss, b.loss);
        EXPECT_EQ(a.grad_norm, b.grad_norm);
      }
      EXPECT_TRUE(adapter_gradients(with_one) == adapter_gradients(with_two)) << name_of(recipe);
      EXPECT_TRUE(adapter_weights(with_one) == adapter_weights(with_two)) << name_of(recipe);
    }
  }
}

// The transposed copy of MXFP8 has other blocks, so it cannot be made from the first one.
TEST(LoraFp8, Mxfp8KeepsTwoCopies) {
  TinyRunOptions options = fp8_options("llama-tiny", Fp8Recipe::Mxfp8);
  const TinyRun two(options);
  options.one_copy_layers = kAllLayers;
  const TinyRun one(options);
  for (const Linear* linear : one.model->linears()) EXPECT_FALSE(linear->weight.transposes());
  EXPECT_EQ(one.model->plan().peak_bytes(), two.model->plan().peak_bytes());
}

// Rows that are no multiple of 128, for the last range.
ModelConfig uneven_model() {
  ModelConfig config = two_layers("llama-tiny");
  config.ffn = 208;
  return config;
}

struct FilledModel {
  FilledModel(const Fp8Config& fp8, int64_t one_copy_layers = 0)
      : device(1),
        model(uneven_model(), {.rows = 1, .length = 32}, {.precision = Precision::Fp8, .fp8 = fp8}, device,
              {.adapters = plan_adapters(uneven_model(), {.rank = 4}), .one_copy_layers = one_copy_layers}) {
    model.allocate();
    model.initialise(5);
  }
  CpuDevice device;
  Transformer model;
};

TEST(LoraFp8, FillingRangeByRangeIsQuantisingAtOnce) {
  std::vector<Fp8Config> configs;
  for (const Fp8Recipe recipe : kRecipes) configs.push_back({.recipe = recipe});
  configs.push_back({.recipe = Fp8Recipe::Delayed, .format = Fp8Format::E5M2, .margin = 2});
  configs.push_back({.recipe = Fp8Recipe::Block, .pow2_block_scales = false});
  for (const Fp8Config& config : configs) {
    FilledModel ranges(config), whole(config);
    for (size_t i = 0; i + 1 < ranges.model.linears().size(); ++i) {
      Linear& filled = *ranges.model.linears()[i];
      Linear& quantised = *whole.model.linears()[i];
      const int64_t out = filled.spec.site.out, in = filled.spec.site.in;
      // Another weight than before. Its largest values are in the last rows, and in the second layer in the first ones.
      std::vector<Bf16> values(static_cast<size_t>(out * in));
      for (size_t k = 0; k < values.size(); ++k) {
        const size_t size = i / 4 == 0 ? k + 1 : values.size() - k;
        values[k] = to_bf16(std::sin(static_cast<float>(k)) * static_cast<float>(size));
      }
      const Tensor dense{values.data(), DType::BF16, {out, in}};
      quantised.weight.copies()->pass = &kScaleFromValues;
      whole.device.ops().quantize({.dense = dense, .fp8 = quantised.weight.copies()});
      const WeightState expected = state_of(quantised);

      for (const int64_t rows : {int64_t{128}, int64_t{300}, out}) {
        const int64_t step = filled.weight.fill_rows(rows);
        std::vector<Bf16> memory(static_cast<size_t>(step * in));
        int64_t next = 0, calls = 0;
        filled.weight.fill(ranges.device, {memory.data(), DType::U8, {2 * step * in}}, DType::BF16,
                           [&](Tensor part, int64_t begin) {
                             EXPECT_TRUE(begin == next || begin == 0);
                             EXPECT_LE(part.rows(), step);
                             std::memcpy(part.data, values.data() + begin * in,
                                         static_cast<size_t>(part.bytes()));
                             next = begin + part.rows();
                             ++calls;
                           });
        EXPECT_EQ(next, out);
        const bool twice =
            quantize_rule(config, Role::Weight).granularity == Granularity::Tensor && step < out;
        EXPECT_EQ(calls, (twice ? 2 : 1) * div_up(out, step)) << filled.spec.site.name;
        EXPECT_TRUE(state_of(filled) == expected)
            << name_of(config.recipe) << " " << filled.spec.site.name << " by " << step << " rows";
      }
    }
  }
}

TEST(LoraFp8, TooLittleStagingMemoryIsRefused) {
  FilledModel filled({.recipe = Fp8Recipe::Current});
  Linear& linear = *filled.model.linears()[2];
  std::vector<uint8_t> memory(static_cast<size_t>(127 * 2 * linear.spec.site.in));
  EXPECT_THAT(error_of([&] {
                linear.weight.fill(filled.device, {memory.data(), DType::U8, {std::ssize(memory)}},
                                   DType::BF16, [](Tensor, int64_t) {});
              }),
              HasSubstr("layers.0.mlp.up: 32512 bytes of staging memory, expected 32768"));
}

// A random base in FP8 is the random base in BF16, quantised.
TEST(LoraFp8, RandomWeightsAreThoseOfADenseModel) {
  for (const Fp8Recipe recipe : kRecipes) {
    TinyRun fp8(fp8_options("gpt2-tiny", recipe));
    TinyRun bf16({.preset = "gpt2-tiny", .precision = Precision::Bf16, .adapters = lora_plan("gpt2-tiny")});
    const std::vector<WeightState> drawn = weight_states(fp8);
    for (Linear* linear : fp8.model->linears()) {
      if (!linear->weight.copies()) continue;
      linear->weight.copies()->pass = &kScaleFromValues;
      fp8.device->ops().quantize(
          {.dense = bf16.model->parameters()[linear->weight.parameter().spec.name].weight,
           .fp8 = linear->weight.copies()});
    }
    EXPECT_TRUE(weight_states(fp8) == drawn) << name_of(recipe);
    EXPECT_EQ(adapter_weights(fp8), adapter_weights(bf16));
  }
}

TEST(LoraFp8, AFrozenWeightKeepsItsCodesAndScale) {
  for (const int64_t one_copy_layers : {int64_t{0}, kAllLayers}) {
    TinyRunOptions options = fp8_options("llama-tiny", Fp8Recipe::Delayed, true);
    options.length = 16;
    options.one_copy_layers = one_copy_layers;
    TinyRun run(options);
    const std::vector<WeightState> before = weight_states(run);
    run.steps(40);  // longer than the history of 16
    EXPECT_TRUE(weight_states(run) == before);
    for (const WeightState& state : before) {
      EXPECT_NE(state.scale, 1.0f);
      EXPECT_EQ(state.inverse, 1.0f / state.scale);
    }
  }
}

// The distance of loss and gradients from the same model in fp32. Every FP8 operand has an error of some percent (e4m3
// has 3 bits, e5m2 2), and gradients have passed up to eight products.
TEST(LoraFp8, GradientsAreNearThoseOfFp32) {
  for (const char* preset : {"llama-tiny", "gpt2-tiny"}) {
    TinyRun exact({.preset = preset, .adapters = lora_plan(preset)});
    fill_adapters(*exact.device, exact.model->parameters());
    const Batch batch = next_batch(exact);
    const double loss = pass(exact, batch);
    const std::vector<float> gradients = adapter_gradients(exact);

    TinyRun bf16({.preset = preset, .precision = Precision::Bf16, .adapters = lora_plan(preset)});
    fill_adapters(*bf16.device, bf16.model->parameters());
    const double bf16_loss = pass(bf16, batch);
    EXPECT_NEAR(bf16_loss / loss, 1.0, 1e-4) << preset;
    EXPECT_LE(norm_difference(adapter_gradients(bf16), gradients), 0.01) << preset;
    for (const Fp8Recipe recipe : kRecipes) {
      for (const Fp8Format format : {Fp8Format::Hybrid, Fp8Format::E4M3}) {
        TinyRunOptions options = fp8_options(preset, recipe);
        options.fp8.format = format;
        TinyRun fp8(options);
        fill_adapters(*fp8.device, fp8.model->parameters());
        const double fp8_loss = pass(fp8, batch);
        EXPECT_NEAR(fp8_loss / bf16_loss, 1.0, 1e-3) << preset << " " << name_of(recipe);
        EXPECT_LE(norm_difference(adapter_gradients(fp8), gradients),
                  format == Fp8Format::Hybrid ? 0.12 : 0.10)
            << preset << " " << name_of(recipe);
      }
    }
  }
}

// With many ranks, forward reads the dense input, and backward the dequantised codes and dense gradients.
TEST(LoraFp8, ManyRanksAreAsNearToFp32) {
  const AdapterPlan plan = lora_plan("llama-tiny", {.rank = 64, .alpha = 8});
  TinyRun exact({.preset = "llama-tiny", .adapters = plan});
  fill_adapters(*exact.device, exact.model->parameters());
  const Batch batch = next_batch(exact);
  const double loss = pass(exact, batch);
  const std::vector<float> gradients = adapter_gradients(exact);
  for (const int64_t one_copy_layers : {int64_t{0}, kAllLayers}) {
    TinyRunOptions options = fp8_options("llama-tiny", Fp8Recipe::Current);
    options.adapters = plan;
    options.one_copy_layers = one_copy_layers;
    TinyRun fp8(options);
    fill_adapters(*fp8.device, fp8.model->parameters());
    EXPECT_NEAR(pass(fp8, batch) / loss, 1.0, 2e-3);
    EXPECT_LE(norm_difference(adapter_gradients(fp8), gradients), 0.12);
  }
}

}  // namespace
}  // namespace octet::test
