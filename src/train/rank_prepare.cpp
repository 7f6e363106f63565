#include "train/rank_prepare.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "base/input_errors.h"
#include "base/log.h"
#include "checkpoint/resume.h"
#include "config/step_range.h"
#include "dist/socket.h"
#include "report/text.h"
#include "train/run_files.h"
#include "train/saving.h"

namespace octet {
namespace {

// Ranks that would train different runs do not start: a batch size that follows from free memory may differ.
void check_agreement(Ranks& ranks, const RunSpec& run) {
  const std::string mine =
      fmt::format("{} sequences x {} micro-batches, {} steps, {}, {}, device {}", run.plan.shape.rows,
                  run.plan.accumulation, run.schedule().max_steps, run.plan.precision_label,
                  run.model.resumed ? run.model.resumed->path : "a new run", run.device->name());
  const std::vector<std::string> all = ranks.host().all_gather("plan", mine);
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r] != all[0])
      throw RankError(fmt::format("[ranks] rank {} has planned {}, but rank 0 {}", r, all[r], all[0]));
  }
}

constexpr std::chrono::hours kPreparing{24 * 7};  // most that the other ranks wait

// What a rank says of its data: three hashes and its host.
struct RankData {
  explicit RankData(const std::string& text) {
    std::istringstream words(text);
    for (std::string& hash : hashes) words >> hash;
    std::getline(words >> std::ws, host);
  }
  std::array<std::string, 3> hashes;
  std::string host;
};

}  // namespace

void compare_data(Ranks& ranks, const DataHashes& mine, const std::string& host) {
  constexpr std::array<std::string_view, 3> kWhat = {"another tokenizer", "other training data",
                                                     "other evaluation data"};
  std::vector<RankData> all;
  for (const std::string& text : ranks.host().all_gather(
           "data", fmt::format("{:x} {:x} {:x} {}", mine.tokenizer, mine.training, mine.evaluation, host)))
    all.emplace_back(text);
  for (size_t kind = 0; kind < kWhat.size(); ++kind) {
    // What most ranks have is taken to be right; with equally many, what the lower ranks have.
    const auto same = [&](const RankData& data) {
      return std::ranges::count_if(
          all, [&](const RankData& other) { return other.hashes[kind] == data.hashes[kind]; });
    };
    const auto right = std::ranges::max_element(all, {}, same);
    std::string odd;
    for (size_t r = 0; r < all.size(); ++r) {
      if (all[r].hashes[kind] == right->hashes[kind]) continue;
      odd += fmt::format("{}rank {} on {}", odd.empty() ? "" : ", ", r, all[r].host);
    }
    if (odd.empty()) continue;
    throw RankError(fmt::format("[ranks] {} {} {} than rank {} on {}; expected the same files on all nodes",
                                odd, odd.find(',') == odd.npos ? "has" : "have", kWhat[kind],
                                right - all.begin(), right->host));
  }
}

std::optional<Checkpoint> prepare_files(const CommonKeys& keys, const FilesSpec& files, Env& env,
                                        Ranks& ranks, std::optional<RunLock>& lock) {
  const bool first = ranks.place().is_first();
  std::optional<Checkpoint> resumed;
  if (!keys.resume.empty()) {
    // Before the checkpoint is chosen: another process that holds the lock may still save a newer one.
    const std::string folder = files.run_folder();
    const bool locks = first && !keys.dry_run && !keys.run_name.empty();
    if (locks && env.is_directory(folder)) {
      lock.emplace(env, folder);
      RunFiles(env, files, std::nullopt, resumed).clean_leftovers();
    }
    resumed = find_checkpoint(env, keys, ranks.place().ranks > 1 ? &ranks.host() : nullptr);
  }
  // Folders first: a mistake there must not come after hours of preparing data.
  if (first) RunFiles(env, files, std::nullopt, resumed).check();
  // The first rank prepares the data, which may take long; the others then find it in the cache.
  if (!first) ranks.host().all_gather("prepared", "", kPreparing, {});
  return resumed;
}

void check_prepared(const RunSpec& run, Env& env, Ranks& ranks) {
  const bool first = ranks.place().is_first();
  if (first) {
    RunFiles(env, run.files, std::nullopt, run.model.resumed)
        .check_space(run.plan.checkpoint_bytes, kept_checkpoints(run));
    ranks.host().all_gather("prepared", "", kPreparing, {});
  }
  if (ranks.place().ranks > 1) compare_data(ranks, data_hashes(run.loading, run.data), host_name());
  check_agreement(ranks, run);
  if (const auto remark = run.schedule().remark(); remark && first) log_warning("{}", *remark);
  const std::optional<StepRange> traced = parse_step_range(run.log.profile_steps);
  if (traced && traced->last > run.schedule().max_steps)
    fail_config("profile_steps is {}, but the run has {}", run.log.profile_steps,
                counted(run.schedule().max_steps, "step"));
}

}  // namespace octet
