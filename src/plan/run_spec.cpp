#include "plan/run_spec.h"

#include "base/checked.h"
#include "checkpoint/resume.h"
#include "config/precision_name.h"

namespace octet {

HParams hparams_of(const TrainConfig& config) {
  HParams values;
  const KeyTable<TrainConfig>& table = train_keys();
  for (size_t i = 0; i < table.keys().size(); ++i) {
    const Key& key = table.keys()[i];
    if (key.transient) continue;
    const KeyValue value = table.get(config, i);
    if (const bool* flag = std::get_if<bool>(&value)) {
      values.emplace_back(key.name, *flag);
    } else if (const int64_t* integer = std::get_if<int64_t>(&value)) {
      values.emplace_back(key.name, *integer);
    } else if (const double* number = std::get_if<double>(&value)) {
      values.emplace_back(key.name, *number);
    } else {
      values.emplace_back(key.name, value_text(value));
    }
  }
  return values;
}

RankSpec rank_spec(const TrainConfig& keys) {
  return {.check_steps = keys.check_ranks_steps,
          .pretended = narrow<int>(keys.pretend_ranks),
          .pretended_gb = keys.pretend_bandwidth_gb,
          .comm_timeout = keys.comm_timeout,
          .rendezvous_timeout = keys.rendezvous_timeout,
          .device = keys.device};
}

DeviceSpec device_spec(const TrainConfig& keys) {
  return {.key = keys.device,
          .deterministic = keys.deterministic,
          .threads = static_cast<int>(keys.num_threads)};
}

FilesSpec files_spec(const TrainConfig& config, bool fp8) {
  return {.folders = folders_of(config),
          .resume = config.resume,
          .fp8 = fp8,
          .precision = precision_of_name(config, fp8),
          // A run with pretended ranks has nothing worth saving.
          .saves = config.save_strategy != Strategy::No && config.pretend_ranks == 0,
          .save_total_limit = config.save_total_limit,
          .save_async = config.save_async,
          .tensorboard = config.use_tensorboard,
          .wandb = {.is_wanted = config.use_wandb,
                    .mode = config.wandb_mode,
                    .project = config.wandb_project,
                    .entity = config.wandb_entity,
                    .run_name = config.wandb_run_name},
          .settings = [config](const std::string& run_name) {
            TrainConfig named = config;
            named.run_name = run_name;
            return StoredSettings{to_yaml(named), hparams_of(named)};
          }};
}

}  // namespace octet
