#pragma once

#include <cmath>
#include <numeric>
#include <random>
#include <string>

#include "compare/comparison.h"

namespace octet::test {

struct ExampleRun {
  std::string name;
  std::string precision = "FP8";
  double speed = 1000;
  double loss_offset = 0;   // added to every loss
  double own_noise = 0.01;  // of this run alone, on top of the noise of the batches
  int64_t steps = 100;
  int64_t seed = 42;
  double seed_effect = 0;  // times the seed, added to every loss
  int64_t eval_every = 10;
};

// Losses that fall from 5 to about 2, with the noise of batches that all runs of a seed share.
inline ComparedRun example_run(const ExampleRun& about) {
  ComparedRun compared;
  compared.run.name = about.name;
  compared.run.folder = "runs/" + about.name;
  compared.run.settings = {{"run_name", about.name},
                           {"model_preset", "llama-tiny"},
                           {"mixed_precision", about.precision.substr(0, 3) == "FP8" ? "fp8" : "bf16"},
                           {"seed", std::to_string(about.seed)}};
  std::mt19937 batches(static_cast<unsigned>(about.seed));
  std::mt19937 own(std::accumulate(about.name.begin(), about.name.end(), 17U, [](unsigned sum, char c) {
    return 31 * sum + static_cast<unsigned char>(c);
  }));
  // One for each generator: a distribution keeps every second number for the next call.
  std::normal_distribution<double> of_batches, of_run;
  for (int64_t step = 1; step <= about.steps; ++step) {
    StepRecord record;
    record.step = step;
    record.loss = 2 + 3.0 / static_cast<double>(step) + 0.1 * of_batches(batches) +
                  about.own_noise * of_run(own) + about.loss_offset +
                  about.seed_effect * static_cast<double>(about.seed);
    record.tokens_per_second = about.speed * (1 + 0.01 * of_run(own));
    record.step_ms = 1e6 / record.tokens_per_second;
    record.tokens = 1000 * step;
    record.precision = about.precision;
    if (about.eval_every > 0 && step % about.eval_every == 0) record.eval_loss = record.loss;
    compared.run.records.push_back(record);
  }
  compared.plan = PlanFacts{.model = "llama-tiny",
                            .device = "NVIDIA H200",
                            .precision = about.precision,
                            .fp8_share = about.precision == "BF16" ? 0 : 0.8,
                            .memory_bytes = about.precision == "BF16" ? 20'000 : 15'000,
                            .memory_limit = 100'000,
                            .sequences_per_step = 8,
                            .sequence_length = 128,
                            .work = {{"base matrices", 0.8, 1.0}, {"head", 0.2, 0.0}}};
  return compared;
}

inline std::vector<ComparedRun> bf16_and_fp8(ExampleRun fp8 = {.name = "fp8", .speed = 1460}) {
  return {example_run({.name = "bf16", .precision = "BF16"}), example_run(fp8)};
}

}  // namespace octet::test
