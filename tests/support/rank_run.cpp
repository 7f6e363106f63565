#include "support/rank_run.h"

#include <mutex>

#include "support/thread_ranks.h"

namespace octet::test {
namespace {

template <class T>
void place(std::vector<T>& whole, int64_t size, int64_t begin, const std::vector<T>& part) {
  whole.resize(static_cast<size_t>(size));
  std::copy(part.begin(), part.end(), whole.begin() + begin);
}

// Adds what this rank has.
void collect(TinyRun& run, RankOutcome& outcome) {
  for (const Parameter& p : run.model->parameters().all()) {
    if (!p.storage.has_dense_rows() || p.own_rows.numel() == 0) continue;
    const int64_t first = p.first_row();
    place(outcome.weights[p.spec.name], p.spec.shape.numel(), first * p.width(),
          ParameterSet::weight_values(*run.device, p));
    for (const auto& [name, tensor] : p.state()) {
      if (tensor.data == p.own_rows.data) continue;
      std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes()));
      run.device->copy_to_host(bytes.data(), tensor);
      const int64_t row = tensor.bytes() / p.shape()[0];
      place(outcome.moments[name], row * p.spec.shape[0], first * row, bytes);
    }
  }
}

}  // namespace

Sharding sharding_of(const RankRunOptions& o, int rank) {
  return {.mode = o.mode,
          .rank = rank,
          .ranks = o.ranks,
          .group = o.group > 0 ? o.group : o.ranks,
          .wire = o.wire};
}

RankOutcome run_ranks(const RankRunOptions& options) {
  RankOutcome outcome;
  std::mutex mutex;
  outcome.hashes.resize(static_cast<size_t>(options.ranks));
  outcome.allocated.resize(static_cast<size_t>(options.ranks));
  run_thread_ranks(options.ranks, options.group > 0 ? options.group : options.ranks, [&](Ranks& ranks) {
    TinyRunOptions o = options.run;
    o.threads = 1;
    o.ranks = &ranks;
    o.sharding = sharding_of(options, ranks.place().rank);
    TinyRun run(o);
    std::vector<StepResult> results;
    for (int i = 0; i < options.steps; ++i) {
      results.push_back(run.step());
      if (!options.evaluates) continue;
      run.model->forward_loss({}, true);
    }
    run.sync->merge_slots();
    const uint64_t hash = run.sync->weights_hash();
    const auto rank = static_cast<size_t>(ranks.place().rank);
    const std::lock_guard lock(mutex);
    outcome.hashes[rank] = hash;
    outcome.allocated[rank] = run.model->allocated_bytes();
    if (rank == 0) {
      for (const StepResult& result : results) {
        outcome.losses.push_back(result.loss);
        outcome.norms.push_back(result.grad_norm);
      }
      if (run.model->scales().count() > 0) outcome.fp8_state = run.model->scales().save(*run.device);
    }
    collect(run, outcome);
  });
  return outcome;
}

RankOutcome run_alone(const TinyRunOptions& options, int steps) {
  RankOutcome outcome;
  TinyRun run(options);
  for (const StepResult& result : run.steps(steps)) {
    outcome.losses.push_back(result.loss);
    outcome.norms.push_back(result.grad_norm);
  }
  collect(run, outcome);
  if (run.model->scales().count() > 0) outcome.fp8_state = run.model->scales().save(*run.device);
  return outcome;
}

}  // namespace octet::test
