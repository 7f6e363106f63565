// Multiple-choice tasks on the GPU: the log-likelihoods that lm-evaluation-harness computed on the CPU.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/model_weights.h"
#include "cuda/fixture.h"
#include "train/evaluate_tasks.h"
#include "support/places.h"

namespace octet::test {
namespace {

const std::string kGoldenTasks = test::source_path("/tests/golden/eval_tasks/");

struct Scored {
  std::vector<double> log_likelihoods, golden;
};

Scored score_on_gpu(Precision precision, const RunShape& shape) {
  const ModelFolder model = find_model(kGoldenTasks + "model");
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(model.tokenizer);
  Device& device = shared_cuda_device();
  Numerics numerics;
  numerics.precision = precision;
  Transformer transformer(model.config, shape, numerics, device);
  transformer.allocate();
  load_weights(device, transformer.parameters(), model);
  transformer.weights_changed();
  std::ifstream file(kGoldenTasks + "golden_0.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  Scored result;
  for (const char* name : {"hellaswag", "arc_easy", "winogrande", "mmlu"}) {
    const Task task = load_task(parse_task_source(fmt::format("{0}={1}{0}.jsonl", name, kGoldenTasks)), {});
    const std::vector<ScoredText> texts = encode_task(task, *tokenizer, model.config.max_positions, 1);
    for (const double sum : log_likelihoods(transformer, texts, false)) result.log_likelihoods.push_back(sum);
    for (const nlohmann::json& question : golden[name]) {
      for (const nlohmann::json& value : question["log_likelihoods"]) result.golden.push_back(value);
    }
  }
  return result;
}

class CudaScoring : public testing::Test {
 protected:
  void SetUp() override {
    const CudaProbe probe = probe_cuda();
    if (!probe.usable) GTEST_SKIP() << "no GPU: " << probe.reason;
  }
};

TEST_F(CudaScoring, Fp32GivesTheLogLikelihoodsOfTheHarness) {
  for (const bool scoring : {true, false}) {
    const Scored scored =
        score_on_gpu(Precision::Fp32, {.rows = 8, .length = 96, .training = false, .scoring = scoring});
    ASSERT_EQ(scored.log_likelihoods.size(), scored.golden.size());
    for (size_t i = 0; i < scored.golden.size(); ++i)
      EXPECT_NEAR(scored.log_likelihoods[i], scored.golden[i], 1e-3 * std::abs(scored.golden[i])) << i;
  }
}

TEST_F(CudaScoring, Bf16IsNear) {
  const Scored scored =
      score_on_gpu(Precision::Bf16, {.rows = 16, .length = 96, .training = false, .scoring = true});
  ASSERT_EQ(scored.log_likelihoods.size(), scored.golden.size());
  for (size_t i = 0; i < scored.golden.size(); ++i)
    EXPECT_NEAR(scored.log_likelihoods[i], scored.golden[i], 0.03 * std::abs(scored.golden[i])) << i;
}

}  // namespace
}  // namespace octet::test
