#include "compare/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "base/text.h"
#include "report/text.h"

namespace octet {
namespace {

// Where a run lives, what it tells whom and how often: no part of what it computes.
constexpr std::string_view kElsewhere[] = {
    "run_name",        "output_dir",         "checkpoint_dir",    "resume",
    "progress",        "use_tensorboard",    "use_wandb",         "wandb_project",
    "wandb_run_name",  "wandb_entity",       "wandb_mode",        "report_to",
    "cache_dir",       "price_per_hour",     "logging_steps",     "save_strategy",
    "save_steps",      "saves_per_epoch",    "save_total_limit",  "save_async",
    "eval_strategy",   "eval_steps",         "evals_per_epoch",   "eval_tasks",
    "eval_task_steps", "eval_task_samples",  "sample_steps",      "sample_prompt",
    "sample_tokens",   "sample_temperature", "profile_steps",     "fp8_stats_steps",
    "comm_timeout",    "rendezvous_timeout", "check_ranks_steps", "require_fp8",
    "fp8_emulation"};

struct Unfair {
  std::string_view what;
  std::vector<std::string_view> keys;
};

const std::vector<Unfair>& unfair_differences() {
  static const std::vector<Unfair> kList = {
      {"The runs train different models",
       {"model_preset", "model_name_or_path", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size", "tie_word_embeddings",
        "finetuning_type", "adapter_name_or_path"}},
      {"The runs train on different data",
       {"dataset", "dataset_split", "dataset_subset", "dataset_revision", "dataset_dir", "dataset_format",
        "max_samples", "tokenizer", "max_seq_length", "packing", "train_on", "chat_template"}},
      {"The evaluations are not the same",
       {"eval_dataset", "eval_dataset_split", "eval_split", "eval_batches"}},
      {"The runs have different schedules, so their learning rates may differ at the same step",
       {"max_steps", "num_train_epochs", "warmup_steps", "warmup_ratio", "lr_scheduler_type", "min_lr_ratio",
        "min_lr", "decay_ratio"}},
      {"The runs recompute different parts, which changes speed and memory", {"gradient_checkpointing"}},
  };
  return kList;
}

bool is_elsewhere(std::string_view key) {
  return std::ranges::find(kElsewhere, key) != std::end(kElsewhere);
}

std::string common_name(const std::vector<ComparedRun>& runs, const std::vector<size_t>& members) {
  std::string prefix = runs[members.front()].run.name;
  if (members.size() == 1) return prefix;
  for (const size_t member : members) {
    const std::string& name = runs[member].run.name;
    size_t same = 0;
    while (same < std::min(prefix.size(), name.size()) && prefix[same] == name[same]) ++same;
    prefix.erase(same);
  }
  for (const std::string_view ending : {"seed", "s"}) {
    if (prefix.size() > ending.size() + 1 && prefix.ends_with(ending) &&
        std::string_view("-_.").find(prefix[prefix.size() - ending.size() - 1]) != std::string_view::npos)
      prefix.erase(prefix.size() - ending.size());
  }
  while (!prefix.empty() && std::string_view("-_. ").find(prefix.back()) != std::string_view::npos)
    prefix.pop_back();
  return prefix.size() < 2 ? runs[members.front()].run.name : prefix;
}

// The keys that are set in some run and are part of what it computes, in their order. What follows from other keys in all runs
// is not among them: a batch size may depend on the memory that was free.
std::vector<std::string> compared_keys(const std::vector<ComparedRun>& runs) {
  std::vector<std::string> keys;
  for (const ComparedRun& run : runs) {
    for (const auto& [key, value] : run.run.settings) {
      if (!is_elsewhere(key) && std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
    }
  }
  return keys;
}

// The identity of a variant: all settings but the seed, and the precision that was really used.
std::string identity_of(const ComparedRun& run, const RunFigures& figures, size_t index,
                        const std::vector<std::string>& keys) {
  if (!run.variant.empty()) return run.variant;
  if (run.run.settings.empty()) return fmt::format("run {}", index);  // not known: a variant of its own
  std::map<std::string, std::string> settings;
  for (const std::string& key : keys) {
    if (key != "seed") settings[key] = run.run.value(key);
  }
  return fmt::format("{} {}", figures.precision, settings);
}

void make_unique(std::vector<Variant>& variants) {
  std::map<std::string, int> count, number;
  for (const Variant& variant : variants) ++count[variant.name];
  for (Variant& variant : variants) {
    if (count[variant.name] > 1) variant.name += fmt::format(" ({})", ++number[variant.name]);
  }
}

std::vector<std::string> values_of(const Comparison& comparison, std::string_view key) {
  std::vector<std::string> values;
  for (const Variant& variant : comparison.variants) {
    std::set<std::string> own;
    for (const size_t run : variant.runs) own.insert(comparison.runs[run].run.value(key));
    values.push_back(fmt::format("{}", fmt::join(own, ", ")));
  }
  return values;
}

// Values for people: a run that does not set the key has none.
std::vector<std::string> shown(std::vector<std::string> values) {
  std::ranges::replace(values, std::string(), std::string("-"));
  return values;
}

bool all_equal(const std::vector<std::string>& values) {
  return std::ranges::all_of(values, [&](const std::string& value) { return value == values.front(); });
}

// How many sequences an evaluation reads at most; 0 if it reads all data, if there is none, or if that is not known.
int64_t most_evaluated(const RunFolder& run) {
  if (run.value("eval_strategy") == "no") return 0;
  const std::optional<int64_t> batches = parse_int(run.value("eval_batches")),
                               rows = parse_int(run.value("per_device_train_batch_size"));
  return batches.value_or(0) * rows.value_or(0);
}

void warn_of_batch_and_device(Comparison& comparison) {
  std::set<int64_t> tokens, evaluated;
  std::set<std::string> devices;
  for (const ComparedRun& run : comparison.runs) {
    if (const int64_t sequences = most_evaluated(run.run); sequences > 0) evaluated.insert(sequences);
    if (!run.plan) continue;
    tokens.insert(run.plan->sequences_per_step * run.plan->sequence_length);
    devices.insert(run.plan->device);
  }
  if (evaluated.size() > 1) {
    comparison.warnings.push_back(fmt::format(
        "The evaluations may cover different data (at most {} sequences): eval_batches counts batches of "
        "per_device_train_batch_size sequences. Compare evaluation losses with care.",
        fmt::join(evaluated, ", ")));
  }
  if (tokens.size() > 1) {
    comparison.warnings.push_back(fmt::format(
        "The runs have different batches ({} tokens per step): not a fair comparison of the loss.",
        fmt::join(tokens, ", ")));
  }
  if (devices.size() > 1) {
    comparison.warnings.push_back(
        fmt::format("The runs ran on different devices ({}): not a fair comparison of the speed.",
                    fmt::join(devices, "; ")));
  }
}

void note_seeds(Comparison& comparison) {
  std::set<std::string> seeds;
  for (const Variant& variant : comparison.variants) {
    if (variant.runs.size() > 1) return;
    seeds.insert(comparison.runs[variant.runs.front()].run.setting("seed"));
  }
  if (seeds.size() > 1) {
    comparison.warnings.push_back(fmt::format(
        "The runs have different seeds ({}): their steps saw different batches, which adds noise to every difference.",
        fmt::join(seeds, ", ")));
  }
}

}  // namespace

std::vector<Variant> group_into_variants(const std::vector<ComparedRun>& runs,
                                         const std::vector<RunFigures>& figures) {
  std::vector<Variant> variants;
  const std::vector<std::string> keys = compared_keys(runs);
  std::map<std::string, size_t> found;
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto [place, is_new] =
        found.try_emplace(identity_of(runs[i], figures[i], i, keys), variants.size());
    if (is_new) variants.emplace_back();
    variants[place->second].runs.push_back(i);
  }
  std::set<std::string> precisions;
  for (Variant& variant : variants) {
    const ComparedRun& first = runs[variant.runs.front()];
    variant.name = first.variant.empty() ? common_name(runs, variant.runs) : first.variant;
    variant.label = figures[variant.runs.front()].precision;
    precisions.insert(variant.label);
  }
  make_unique(variants);
  const bool tells_apart = precisions.size() == variants.size() && !precisions.contains("");
  for (Variant& variant : variants) {
    if (!tells_apart) variant.label = variant.name;
  }
  return variants;
}

void add_settings(Comparison& comparison) {
  for (const std::string& key : compared_keys(comparison.runs)) {
    std::vector<std::string> values = values_of(comparison, key);
    if (!all_equal(values)) comparison.settings.push_back({key, std::move(values)});
  }
  for (const Unfair& unfair : unfair_differences()) {
    std::vector<std::string> which;
    for (const SettingRow& row : comparison.settings) {
      if (std::ranges::find(unfair.keys, row.key) != unfair.keys.end())
        which.push_back(fmt::format("{} {}", row.key, fmt::join(shown(row.values), " / ")));
    }
    if (!which.empty())
      comparison.warnings.push_back(
          fmt::format("{} ({}): not a fair comparison.", unfair.what, fmt::join(which, "; ")));
  }
  for (const ComparedRun& run : comparison.runs) {
    if (run.run.settings.empty())
      comparison.warnings.push_back(
          fmt::format("{} has no config.yaml: whether it was trained with the same settings is not known.",
                      run.run.name));
  }
  warn_of_batch_and_device(comparison);
  note_seeds(comparison);
}

}  // namespace octet
