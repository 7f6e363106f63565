#include "train/start.h"

#include "base/clock.h"
#include "checkpoint/resume.h"
#include "hf/hf_folder.h"
#include "report/text.h"

namespace octet {
namespace {

TrainerState resume_from(Env& env, const Checkpoint& checkpoint, const RunStages& stages, Transformer& model,
                         Console& console) {
  const auto start = Clock::now();
  Restored restored = restore_checkpoint(env, checkpoint, *stages.device, model);
  console.print(fmt::format("resumed from {} after step {}: {} read in {}", checkpoint.path,
                            restored.state.step, human_bytes(static_cast<double>(checkpoint.total_bytes())),
                            human_duration(seconds_since(start))));
  for (const std::string& remark : restored.remarks) console.print(fmt::format("  {}", remark));
  for (const std::string& change : changed_settings(checkpoint, stages.config)) {
    console.print(fmt::format("  changed setting: {}", change));
  }
  return std::move(restored.state);
}

}  // namespace

std::optional<TrainerState> start_weights(Env& env, const RunStages& stages, Transformer& model,
                                          Console& console) {
  model.allocate();
  if (stages.model.resumed) return resume_from(env, *stages.model.resumed, stages, model, console);
  if (!stages.keys.resume.empty())
    console.print("resume: there is no checkpoint yet; the run starts from the beginning");
  model.parameters().initialise(*stages.device, static_cast<uint64_t>(stages.keys.seed));
  if (const std::optional<ModelFolder>& folder = stages.model.start; stages.model.has_weights()) {
    const auto start = Clock::now();
    load_hf_folder(*stages.device, model.parameters(), folder->folder);
    console.print(
        fmt::format("weights: {}, read in {}", folder->source, human_duration(seconds_since(start))));
  }
  model.weights_changed();
  return std::nullopt;
}

}  // namespace octet
