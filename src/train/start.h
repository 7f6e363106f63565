#pragma once

#include <optional>

#include "checkpoint/checkpoint.h"
#include "hf/export_tokenizer.h"
#include "plan/resolve.h"
#include "report/console.h"
#include "train/rank_sync.h"

namespace octet {

struct Start {
  std::optional<TrainerState> state;  // of a run that continues
  // Of a run with adapters: files that describe them and their base.
  std::vector<NamedText> adapter_files;
  std::unique_ptr<RankSync> sync;  // of a run whose ranks share; else null
};

// Allocates `model` and fills in its weights: those of the checkpoint that the run continues from, those that
// model_name_or_path and adapter_name_or_path name, or new ones from the seed. Says on the console what it did. Error
// if the adapters of the checkpoint were trained on another base.
Start start_weights(Env& env, const ResolvedRun& stages, Transformer& model, Console& console, Ranks& ranks);

}  // namespace octet
