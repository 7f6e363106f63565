#include "train/rank_watch.h"

#include <algorithm>
#include <map>

#include "base/log.h"

namespace octet {
namespace {

constexpr double kSlow = 1.15;    // times the median
constexpr int64_t kWatched = 25;  // steps that are looked at together
constexpr int kSlowSteps = 20;    // of these, to be named

}  // namespace

std::vector<size_t> slow_ranks(const std::vector<double>& compute_ms) {
  std::vector<size_t> slow;
  if (compute_ms.size() < 3) return slow;
  std::vector<double> sorted = compute_ms;
  std::ranges::sort(sorted);
  const double median = sorted[(sorted.size() - 1) / 2];
  for (size_t r = 0; r < compute_ms.size(); ++r)
    if (median > 0 && compute_ms[r] > kSlow * median) slow.push_back(r);
  return slow;
}

StepNote RankWatch::note(int64_t step, int signal, int save_failures) {
  StepNote note{
      .stop_signal = signal, .save_failures = save_failures, .compute_ms = static_cast<float>(compute_ms_)};
  if (first_step_ < 0) first_step_ = step;
  if (sync_ && check_steps_ > 0 && (step == first_step_ || step % check_steps_ == 0))
    note.weights_hash = sync_->weights_hash();
  return note;
}

void RankWatch::look(int64_t step, const StepResult& result) {
  if (!sync_) return;
  compute_ms_ = sync_->compute_ms();
  save_failures_ = 0;
  for (const RankRecord& record : result.ranks) {
    signal_ = std::max(signal_, record.note.stop_signal);
    save_failures_ = std::max(save_failures_, record.note.save_failures);
  }
  compare_weights(step, result.ranks);
  name_stragglers(step, result.ranks);
}

void RankWatch::compare_weights(int64_t step, const std::vector<RankRecord>& records) const {
  std::map<uint64_t, std::vector<size_t>> ranks;  // by hash
  for (size_t r = 0; r < records.size(); ++r) ranks[records[r].note.weights_hash].push_back(r);
  if (ranks.size() == 1) return;
  // Those with the hash that most ranks have are taken to be right.
  const auto most =
      std::ranges::max_element(ranks, {}, [](const auto& entry) { return entry.second.size(); });
  std::vector<size_t> odd;
  for (const auto& [hash, with] : ranks)
    if (hash != most->first) odd.insert(odd.end(), with.begin(), with.end());
  std::ranges::sort(odd);
  if (step == first_step_) {
    throw RankError(fmt::format(
        "[ranks] the weights of rank {} differ from those of rank {} before the first step; expected the same "
        "model or checkpoint on all nodes",
        fmt::join(odd, ", "), fmt::join(most->second, ", ")));
  }
  throw RankError(fmt::format(
      "[ranks] before step {} the weights of rank {} differ from those of rank {}: memory or a computation there "
      "was wrong. Continue from the last checkpoint, without that GPU",
      step + 1, fmt::join(odd, ", "), fmt::join(most->second, ", ")));
}

void RankWatch::name_stragglers(int64_t step, const std::vector<RankRecord>& records) {
  slow_steps_.resize(records.size());
  std::vector<double> times;
  for (const RankRecord& record : records) times.push_back(static_cast<double>(record.note.compute_ms));
  for (const size_t rank : slow_ranks(times)) ++slow_steps_[rank];
  if (++watched_steps_ < kWatched) return;
  for (size_t r = 0; r < records.size(); ++r) {
    if (slow_steps_[r] < kSlowSteps) continue;
    std::vector<double> sorted = times;
    std::ranges::sort(sorted);
    log_warning(
        "step {}: rank {} is slow: it computed for {:.1f} ms, the median of all ranks is {:.1f} ms; all ranks "
        "wait for it",
        step + 1, r, times[r], sorted[(sorted.size() - 1) / 2]);
  }
  std::ranges::fill(slow_steps_, 0);
  watched_steps_ = 0;
}

}  // namespace octet
