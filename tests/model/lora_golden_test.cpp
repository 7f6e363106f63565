// Models with adapters against PEFT and Transformers, through golden files made by scripts/make_lora_goldens.py.

#include <gtest/gtest.h>

#include <set>

#include "hf/hf_folder.h"
#include "hf/peft_config.h"
#include "support/golden_model.h"
#include "support/tiny_run.h"

namespace octet {
namespace {

// fp32 against a float64 reference. ||a - b|| / ||b|| per tensor of the file: each A and each B by itself, also where
// octet stacks them. Losses and norms per value.
constexpr double kTolerance = 1e-5;

Batch batch_of(const GoldenModel& golden) {
  return {.rows = golden.rows,
          .length = golden.length,
          .tokens = golden.tokens,
          .targets = golden.targets,
          .positions = golden.positions,
          .document_starts = golden.starts,
          .token_count = golden.rows * golden.length,
          .target_count = golden.target_count()};
}

class LoraGolden : public testing::TestWithParam<const char*> {
 protected:
  LoraGolden() : golden(GetParam(), "lora"), device(make_cpu_device(2)) {
    const std::string& text = golden.file.metadata().at("adapter_config");
    plan = plan_of(peft_config_from_json(text, GetParam()), golden.config, GetParam());
    const RunShape shape{.rows = golden.rows, .length = golden.length, .head_chunk_bytes = 16 * 1024};
    model = std::make_unique<Transformer>(golden.config, shape, Numerics{.precision = Precision::Fp32},
                                          *device, Finetuning{.adapters = plan});
    model->allocate();
    model->initialise(1);
    tensors("weights.").load(*device, model->parameters());
    for (Parameter& p : model->parameters().all()) {
      if (p.spec.is_adapter()) ParameterSet::set_weight(*device, p, tensors("adapters.").values(p.spec));
    }
    model->weights_changed();
    model->load(golden.batch(), 1.0f / static_cast<float>(golden.target_count()));
  }

  HfWeights tensors(const std::string& prefix) const {
    return HfWeights([this](std::string_view name) { return golden.file.find(name); }, GetParam(), prefix);
  }

  float setting(const std::string& key) const { return std::stof(golden.file.metadata().at(key)); }

  // Compares every A and B with the tensor of the file that has this prefix.
  template <class Values>
  void expect_adapters(const std::string& prefix, const Values& values_of) {
    for (const Parameter& p : model->parameters().all()) {
      if (!p.spec.is_adapter()) continue;
      const std::vector<float> actual = values_of(p);
      for (const HfPart& part : p.spec.hf) {
        const std::vector<float> expected = golden.floats(prefix + part.name);
        const size_t begin = static_cast<size_t>(part.row_begin * p.spec.shape[1]);
        ASSERT_LE(begin + expected.size(), actual.size()) << part.name;
        EXPECT_LE(relative_error(std::span(actual).subspan(begin, expected.size()), expected), kTolerance)
            << part.name;
      }
    }
  }

  // The weights of the base, one after another.
  std::vector<float> base_weights() {
    std::vector<float> all;
    for (const Parameter& p : model->parameters().all()) {
      if (p.spec.is_adapter()) continue;
      const std::vector<float> values = ParameterSet::weight_values(*device, p);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  GoldenModel golden;
  std::unique_ptr<Device> device;
  AdapterPlan plan;
  std::unique_ptr<Transformer> model;
};

TEST_P(LoraGolden, ThePlanHasTheTensorsOfTheFile) {
  std::set<std::string> expected, actual;
  for (const SafeTensor& tensor : golden.file.tensors()) {
    constexpr std::string_view kPrefix = "adapters.";
    if (tensor.name.starts_with(kPrefix)) expected.emplace(tensor.name.substr(kPrefix.size()));
  }
  for (const Parameter& p : model->parameters().all()) {
    for (const HfPart& part : p.spec.hf) {
      if (p.spec.is_adapter()) actual.insert(part.name);
    }
  }
  EXPECT_FALSE(expected.empty());
  EXPECT_EQ(actual, expected);
}

TEST_P(LoraGolden, Logits) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < golden.rows * golden.length; ++i) tokens.push_back(i);
  std::vector<float> actual;
  for (const std::vector<float>& row : model->logits_at(tokens))
    actual.insert(actual.end(), row.begin(), row.end());
  EXPECT_LE(relative_error(actual, golden.floats("logits")), kTolerance);
}

TEST_P(LoraGolden, LossAndEveryGradient) {
  model->forward_backward({}, true, false);
  const double expected = static_cast<double>(golden.floats("loss")[0]);
  EXPECT_NEAR(model->sums().loss / static_cast<double>(golden.target_count()), expected,
              kTolerance * expected);
  expect_adapters("grads.", [&](const Parameter& p) {
    std::vector<float> values(static_cast<size_t>(p.gradient.numel()));
    device->copy_to_host(values.data(), p.gradient);
    return values;
  });
  for (const Parameter& p : model->parameters().all()) {
    EXPECT_EQ(static_cast<bool>(p.gradient), p.spec.is_adapter()) << p.spec.name;
  }
}

TEST_P(LoraGolden, FiveAdamWSteps) {
  const std::vector<float> base = base_weights();
  const std::vector<float> losses = golden.floats("losses"), norms = golden.floats("grad_norms");
  const int64_t steps = std::ssize(norms);
  ASSERT_EQ(steps, 5);
  test::OneBatch batches(batch_of(golden));
  const OptimizerOptions optimizer{
      .schedule = {.type = ScheduleType::Constant,
                   .peak_lr = std::stod(golden.file.metadata().at("learning_rate")),
                   .max_steps = steps},
      .beta1 = setting("adam_beta1"),
      .beta2 = setting("adam_beta2"),
      .epsilon = setting("adam_epsilon"),
      .weight_decay = setting("weight_decay"),
      .max_grad_norm = setting("max_grad_norm")};
  StepRunner runner(*model, *device, batches, 1, optimizer, {});
  for (int64_t step = 0; step <= steps; ++step) {
    if (step == steps) {  // the loss of the next step is that of the trained adapters
      expect_adapters("trained.",
                      [&](const Parameter& p) { return ParameterSet::weight_values(*device, p); });
      EXPECT_EQ(base_weights(), base);
    }
    const StepResult result = runner.train_step(step, false);
    const double loss = static_cast<double>(losses[static_cast<size_t>(step)]);
    EXPECT_NEAR(result.loss, loss, kTolerance * loss) << "before step " << step + 1;
    if (step == steps) continue;
    const double norm = static_cast<double>(norms[static_cast<size_t>(step)]);
    EXPECT_GT(norm, 1) << "clipping is not tested";
    EXPECT_NEAR(result.grad_norm, norm, kTolerance * norm) << "step " << step + 1;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, LoraGolden,
                         testing::Values("llama", "qwen2", "gpt2", "llama_qv_rslora", "qwen2_patterns"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace octet
