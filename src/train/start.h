#pragma once

#include <optional>

#include "checkpoint/checkpoint.h"
#include "hf/export_tokenizer.h"
#include "plan/run_spec.h"
#include "report/console.h"
#include "step/rank_sync.h"

namespace octet {

struct Start {
  std::optional<TrainerState> state;  // of a run that continues
  // Of a run with adapters: files that describe them and their base.
  std::vector<NamedText> adapter_files;
  std::unique_ptr<RankSync> sync;  // of a run whose ranks share; else null
};

// Shows the first example to train on, with the tokens that are trained, if the data are records.
void show_example(const RunSpec& run, Console& console);

// Allocates `model` and fills in its weights: those of the checkpoint that the run continues from, those that
// model_name_or_path and adapter_name_or_path name, or new ones from the seed. Says on the console what it did. Error
// if the adapters of the checkpoint were trained on another base.
Start start_weights(Env& env, const RunSpec& run, Transformer& model, Console& console, Ranks& ranks);

}  // namespace octet
