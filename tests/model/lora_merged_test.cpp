// A model with adapters against a full model that has them merged: losses, and gradients of every A and B.

#include <gtest/gtest.h>

#include "support/lora_run.h"

namespace octet::test {
namespace {

// fp32; sums in another order.
constexpr double kLossTolerance = 1e-6;      // of the loss
constexpr double kGradientTolerance = 1e-5;  // of the largest element

// scale * B^T dW of every part of a Linear's adapters, stacked: (R, in).
std::vector<float> expected_da(TinyRun& lora, const Linear& linear, const std::vector<float>& dw) {
  const int64_t in = linear.spec.site.in;
  std::vector<double> sums(static_cast<size_t>(linear.operands.adapter().ranks() * in), 0.0);
  for (const LowRank::Part& part : linear.operands.adapter().parts()) {
    const std::vector<float> b = ParameterSet::weight_values(*lora.device, *part.b);
    for (int64_t row = 0; row < part.columns; ++row) {
      for (int64_t r = 0; r < part.rank; ++r) {
        const double factor = static_cast<double>(part.scale) *
                              static_cast<double>(b[static_cast<size_t>(row * part.rank + r)]);
        for (int64_t col = 0; col < in; ++col)
          sums[static_cast<size_t>((part.first_rank + r) * in + col)] +=
              factor * static_cast<double>(dw[static_cast<size_t>((part.first_column + row) * in + col)]);
      }
    }
  }
  return {sums.begin(), sums.end()};
}

// scale * dW A^T of one part: (columns, rank).
std::vector<float> expected_db(TinyRun& lora, const Linear& linear, const LowRank::Part& part,
                               const std::vector<float>& dw) {
  const int64_t in = linear.spec.site.in;
  const std::vector<float> a = ParameterSet::weight_values(*lora.device, linear.operands.adapter().a());
  std::vector<float> result;
  for (int64_t row = 0; row < part.columns; ++row) {
    for (int64_t r = 0; r < part.rank; ++r) {
      double sum = 0;
      for (int64_t col = 0; col < in; ++col)
        sum += static_cast<double>(dw[static_cast<size_t>((part.first_column + row) * in + col)]) *
               static_cast<double>(a[static_cast<size_t>((part.first_rank + r) * in + col)]);
      result.push_back(static_cast<float>(static_cast<double>(part.scale) * sum));
    }
  }
  return result;
}

// Loss and gradients of one batch. Returns the number of Linears with adapters.
int expect_parity(TinyRun& lora, TinyRun& full, const Batch& batch, const std::string& what) {
  const double expected = pass(full, batch), got = pass(lora, batch);
  EXPECT_NEAR(got / expected, 1.0, kLossTolerance) << what;
  int adapted = 0;
  for (const Linear* linear : lora.model->linears()) {
    if (!linear->operands.adapter()) continue;
    ++adapted;
    const std::string place = what + " " + linear->spec.site.name;
    const std::vector<float> dw =
        gradient_of(full, full.model->parameters()[linear->weight.parameter().spec.name]);
    EXPECT_LE(
        largest_difference(gradient_of(lora, linear->operands.adapter().a()), expected_da(lora, *linear, dw)),
        kGradientTolerance)
        << place;
    for (const LowRank::Part& part : linear->operands.adapter().parts())
      EXPECT_LE(largest_difference(gradient_of(lora, *part.b), expected_db(lora, *linear, part, dw)),
                kGradientTolerance)
          << place << " " << part.b->spec.name;
  }
  return adapted;
}

int expect_parity(const TinyRunOptions& options, const std::string& what) {
  TinyRun lora(options);
  TinyRunOptions without = options;
  without.adapters = {};
  TinyRun full(without);
  fill_adapters(*lora.device, lora.model->parameters());
  fill_vectors(*lora.device, lora.model->parameters());
  merge_into(full, lora);
  const Batch batch = next_batch(lora);
  return expect_parity(lora, full, batch, what);
}

class LoraMerged : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(, LoraMerged, testing::ValuesIn(kFamilies), [](const auto& test) {
  std::string name = test.param;
  std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
  return name;
});

TEST_P(LoraMerged, EqualsTheMergedModel) {
  const bool gpt2 = std::string(GetParam()) == "gpt2-tiny";
  struct Case {
    std::vector<std::string> targets;
    int linears;  // of two layers
  };
  const std::vector<Case> cases = {
      {{"all"}, 8},
      {gpt2 ? std::vector<std::string>{"c_attn"} : std::vector<std::string>{"q_proj", "v_proj"}, 2},
      {gpt2 ? std::vector<std::string>{"attn.c_proj"} : std::vector<std::string>{"k_proj", "o_proj"},
       gpt2 ? 2 : 4},
      {{gpt2 ? "c_fc" : "up_proj"}, 2},
      {{gpt2 ? "mlp.c_proj" : "down_proj"}, 2}};
  for (const Case& c : cases) {
    const AdapterPlan plan = lora_plan(GetParam(), {.rank = 4, .alpha = 10, .targets = c.targets});
    EXPECT_EQ(expect_parity({.preset = GetParam(), .adapters = plan}, c.targets.front()), c.linears);
  }
}

// A rank of one, a rank that is no multiple of anything, and one larger than most; other ranks in other layers.
TEST_P(LoraMerged, RanksMayDifferByModule) {
  const bool gpt2 = std::string(GetParam()) == "gpt2-tiny";
  const LoraConfig lora{.rank = 5,
                        .alpha = 7,
                        .rank_pattern = {{gpt2 ? "h.1.attn.c_attn" : "layers.1.self_attn.v_proj", 1},
                                         {gpt2 ? "c_attn" : "k_proj", 13},
                                         {gpt2 ? "c_fc" : "gate_proj", 24}},
                        .alpha_pattern = {{gpt2 ? "c_fc" : "q_proj", 3}}};
  expect_parity({.preset = GetParam(), .adapters = lora_plan(GetParam(), lora)}, "ranks");
}

TEST_P(LoraMerged, RsloraScalesByTheRootOfTheRank) {
  const AdapterPlan plan = lora_plan(GetParam(), {.rank = 8, .alpha = 4, .rslora = true});
  EXPECT_FLOAT_EQ(plan.adapters.front().scale(), 1.41421356f);
  expect_parity({.preset = GetParam(), .adapters = plan}, "rslora");
}

TEST_P(LoraMerged, PackedDocumentsWithMaskedTargets) {
  expect_parity({.preset = GetParam(), .packed = true, .adapters = lora_plan(GetParam())}, "packed");
}

// The other layer is frozen as a whole, but gradients may have to pass through it.
TEST_P(LoraMerged, OneLayerAlone) {
  EXPECT_EQ(expect_parity({.preset = GetParam(), .adapters = lora_plan(GetParam(), {.layers = {1}})}, "last"),
            4);
  EXPECT_EQ(
      expect_parity({.preset = GetParam(), .adapters = lora_plan(GetParam(), {.layers = {0}})}, "first"), 4);
}

// A third of the targets is masked: the frozen head then computes fewer rows than there are.
TEST_P(LoraMerged, MaskedTargets) {
  for (const int64_t masked : {2, 3}) {
    expect_parity({.preset = GetParam(), .masked_every = masked, .adapters = lora_plan(GetParam())},
                  "every " + std::to_string(masked));
  }
}

TEST_P(LoraMerged, ANewAdapterChangesNothing) {
  const AdapterPlan plan = lora_plan(GetParam());
  for (const Precision precision : {Precision::Fp32, Precision::Bf16}) {
    TinyRun lora({.preset = GetParam(), .precision = precision, .adapters = plan});
    TinyRun full({.preset = GetParam(), .precision = precision});
    const Batch batch = next_batch(lora);
    EXPECT_EQ(pass(lora, batch), pass(full, batch)) << static_cast<int>(precision);
  }
}

TEST_P(LoraMerged, OnlyAdaptersAreTrained) {
  for (const Precision precision : {Precision::Fp32, Precision::Bf16}) {
    TinyRun run({.preset = GetParam(), .precision = precision, .adapters = lora_plan(GetParam())});
    std::vector<std::vector<float>> before;
    for (const Parameter& p : run.model->parameters().all()) {
      EXPECT_EQ(static_cast<bool>(p.gradient), p.spec.is_adapter()) << p.spec.name;
      EXPECT_EQ(static_cast<bool>(p.m), p.spec.is_adapter()) << p.spec.name;
      before.push_back(ParameterSet::weight_values(*run.device, p));
    }
    // The gradient of A is zero while B is: A moves from the second step on.
    run.steps(3);
    size_t i = 0;
    for (const Parameter& p : run.model->parameters().all()) {
      const bool changed = ParameterSet::weight_values(*run.device, p) != before[i++];
      EXPECT_EQ(changed, p.spec.is_adapter()) << p.spec.name;
    }
  }
}

}  // namespace
}  // namespace octet::test
