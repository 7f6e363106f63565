// Every family against Hugging Face Transformers, through golden files made by scripts/make_goldens.py.

#include <gtest/gtest.h>

#include "hf/hf_folder.h"
#include "support/golden_model.h"

namespace octet {
namespace {

// fp32 against a float64 reference; ||a - b|| / ||b|| per tensor.
constexpr double kTolerance = 1e-5;

class Parity : public testing::TestWithParam<const char*> {
 protected:
  Parity() : golden(GetParam()), device(make_cpu_device(2)) {
    RunShape shape{.rows = golden.rows, .length = golden.length, .head_chunk_bytes = 16 * 1024};
    model =
        std::make_unique<Transformer>(golden.config, shape, Numerics{.precision = Precision::Fp32}, *device);
    model->allocate();
    model->parameters().initialise(*device, 1);
    weights("weights.").load(*device, model->parameters());
    model->weights_changed();
    model->load(golden.batch(), 1.0f / static_cast<float>(golden.target_count()));
  }

  HfWeights weights(const std::string& prefix) const {
    return HfWeights([this](std::string_view name) { return golden.file.find(name); }, GetParam(), prefix);
  }

  GoldenModel golden;
  std::unique_ptr<Device> device;
  std::unique_ptr<Transformer> model;
};

TEST_P(Parity, Logits) {
  const std::vector<float> expected = golden.floats("logits");
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < golden.rows * golden.length; ++i) tokens.push_back(i);
  std::vector<float> actual;
  for (const std::vector<float>& row : model->logits_at(tokens)) {
    actual.insert(actual.end(), row.begin(), row.end());
  }
  EXPECT_LE(relative_error(actual, expected), kTolerance);
}

// Parts of the rows side by side as documents of other lengths: each has the logits that it has alone.
TEST_P(Parity, LogitsOfPackedDocuments) {
  struct Part {
    int64_t row, length;
  };
  const Part parts[] = {{1, 7}, {0, 16}, {1, 9}};
  std::vector<int32_t> tokens, positions, starts = {0};
  std::vector<int64_t> all;
  std::vector<float> expected;
  const std::vector<float> logits = golden.floats("logits");
  const int64_t vocab = golden.config.vocab;
  for (const Part& part : parts) {
    const int64_t first = part.row * golden.length;
    for (int64_t t = 0; t < part.length; ++t) {
      all.push_back(std::ssize(tokens));
      tokens.push_back(golden.tokens[static_cast<size_t>(first + t)]);
      positions.push_back(static_cast<int32_t>(t));
    }
    starts.push_back(static_cast<int32_t>(tokens.size()));
    expected.insert(expected.end(), logits.begin() + first * vocab,
                    logits.begin() + (first + part.length) * vocab);
  }
  const std::vector<int32_t> targets(tokens.size(), -1);
  model->load({tokens, targets, positions, starts}, 1.0f);
  std::vector<float> actual;
  for (const std::vector<float>& row : model->logits_at(all))
    actual.insert(actual.end(), row.begin(), row.end());
  EXPECT_LE(relative_error(actual, expected), kTolerance);
}

TEST_P(Parity, LossAndEveryGradient) {
  model->forward_backward({}, true, false);
  const double expected_loss = static_cast<double>(golden.floats("loss")[0]);
  EXPECT_NEAR(model->sums().loss / static_cast<double>(golden.target_count()), expected_loss,
              kTolerance * expected_loss);
  const HfWeights gradients = weights("grads.");
  for (const Parameter& parameter : model->parameters().all()) {
    const std::vector<float> expected = gradients.values(parameter.spec);
    std::vector<float> actual(expected.size());
    device->copy_to_host(actual.data(), parameter.gradient);
    EXPECT_LE(relative_error(actual, expected), kTolerance) << parameter.spec.name;
  }
}

TEST_P(Parity, FiveAdamWSteps) {
  const std::vector<float> losses = golden.floats("losses");
  std::vector<float> norm_storage(2);
  const Tensor norm{norm_storage.data(), DType::F32, {2}};
  const std::vector<AdamWParameter> parameters = model->optimizer_view(0.1f);
  std::vector<Tensor> gradients;
  for (const Parameter& parameter : model->parameters().all()) gradients.push_back(parameter.gradient);
  for (int step = 1; step <= 6; ++step) {
    model->clear_sums();
    model->forward_backward({}, true, false);
    const double expected = static_cast<double>(losses[static_cast<size_t>(step - 1)]);
    EXPECT_NEAR(model->sums().loss / static_cast<double>(golden.target_count()), expected,
                kTolerance * expected)
        << "before step " << step;
    device->ops().grad_norm(norm, gradients, 1.0f, {});
    device->ops().adamw(
        parameters, norm,
        {.learning_rate = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .step = step});
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Parity,
                         testing::Values("gpt2", "llama_untied", "llama_rope_scaled", "qwen2_tied",
                                         "qwen2_untied", "qwen3_tied", "mistral_window"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace octet
