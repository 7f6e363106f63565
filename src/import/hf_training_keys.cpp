// The keys of Transformers' TrainingArguments. LLaMA-Factory, TRL and saved trainer states have them, too.

#include <fmt/format.h>

#include "base/text.h"
#include "import/rules.h"
#include "import/tools.h"

namespace octet {
namespace {

void epochs_rule(Importer& importer, const TreeLeaf& leaf) {
  const auto steps = importer.tree().number("max_steps");
  if (leaf.is_null()) {
    importer.ignore(leaf, "null: the default");
  } else if (steps && *steps > 0) {
    importer.derive(leaf, "max_steps is set, and steps win over epochs there, too");
  } else {
    importer.map(leaf, "num_train_epochs", leaf.text);
  }
}

// In Transformers warmup_steps wins unless it is 0.
void warmup_ratio_rule(Importer& importer, const TreeLeaf& leaf) {
  const auto steps = importer.tree().number("warmup_steps");
  if (leaf.is_null()) {
    importer.ignore(leaf, "null: the default");
  } else if (steps && *steps > 0) {
    importer.derive(leaf, "warmup_steps is set, and wins there, too");
  } else {
    importer.unset("warmup_steps");
    importer.map(leaf, "warmup_ratio", leaf.text);
  }
}

void auto_batch_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off()) {
    importer.ignore(leaf, "off");
    return;
  }
  importer.warn(
      leaf,
      "it halves the batch after running out of memory; octet keeps the given batch and checks the memory "
      "before it starts (auto_batch_size picks the largest)");
}

void data_seed_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null() || leaf.text == importer.tree().text("seed")) {
    importer.ignore(leaf, "octet has one seed for everything");
  } else {
    importer.warn(leaf, "octet has one seed for everything, the key seed");
  }
}

void sampling_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string word = plain_word(leaf.text);
  if (word.ends_with("sequential")) {
    importer.map(leaf, "data_order", "sequential");
  } else if (word.ends_with("random") || leaf.is_null()) {
    importer.derive(leaf, "octet shuffles, too");
  } else {
    importer.ignore(leaf, "not needed: packing fills sequences");
  }
}

void do_train_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off() && !leaf.is_null() && importer.has_defaults() &&
      importer.tool().name == "LLaMA-Factory") {
    importer.refuse(leaf,
                    "the file does not train; octet train always does. Remove the key, or use 'octet eval'");
  } else {
    importer.derive(leaf, "octet train always trains");
  }
}

void overwrite_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off()) {
    importer.ignore(leaf, "octet does not continue a run by itself; use resume latest");
  } else {
    importer.ignore(leaf, "octet never overwrites another run's files; a name that is taken is an error");
  }
}

void metric_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string word = plain_word(leaf.text);
  if (leaf.is_null() || word == "loss" || word == "eval_loss") {
    importer.ignore(leaf, "the best checkpoint is the one with the lowest evaluation loss");
  } else {
    importer.warn(leaf, "octet's best checkpoint is the one with the lowest evaluation loss");
  }
}

void split_batches_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off()) {
    importer.ignore(leaf, "off");
  } else {
    importer.refuse(leaf, "the batch size would be of all GPUs together; octet's is per GPU");
  }
}

void decay_steps_rule(Importer& importer, const TreeLeaf& leaf) {
  const auto total = importer.main_tree().number("max_steps");
  const auto decay = leaf.number();
  if (total && decay && *total >= *decay && *total > 0) {
    importer.map(leaf, "decay_ratio", fmt::format("{}", *decay / *total), "as a share of max_steps");
  } else {
    importer.warn(leaf, "octet's decay is a share of all steps: set decay_ratio");
  }
}

constexpr const char* kEvaluation = "evaluation takes the batch of training and reports the loss";
constexpr const char* kCompiled = "not needed: the kernels are compiled and fused already";
constexpr const char* kLogs = "octet logs to the console, metrics.jsonl and TensorBoard";
constexpr const char* kLoader = "octet has its own data loader";
constexpr const char* kDdp = "a setting of PyTorch for several GPUs; octet has its own communication";
constexpr const char* kWrap = "how PyTorch wraps layers; octet shards by layers itself";
constexpr const char* kEvalPrecision = "evaluation runs in BF16 unless fp8_eval is set";
constexpr const char* kSaving = "octet saves in its own way";
constexpr const char* kHub = "nothing is uploaded";
constexpr const char* kHardware = "has no meaning on this hardware";
constexpr const char* kPredict = "for prediction; octet train does not predict";

constexpr ToolKey kKeys[] = {
    {"output_dir", Fate::Mapped, "output_dir", "", output_dir_rule},
    {"run_name", Fate::Mapped, "run_name", "", run_name_rule},
    {"per_device_train_batch_size", Fate::Mapped, "per_device_train_batch_size", ""},
    {"per_gpu_train_batch_size", Fate::Mapped, "per_device_train_batch_size", ""},
    {"gradient_accumulation_steps", Fate::Mapped, "gradient_accumulation_steps", ""},
    {"num_train_epochs", Fate::Mapped, "num_train_epochs", "", epochs_rule},
    {"max_steps", Fate::Mapped, "max_steps", "", max_steps_rule},
    {"learning_rate", Fate::Mapped, "learning_rate", ""},
    {"lr_scheduler_type", Fate::Mapped, "lr_scheduler_type", "", schedule_rule},
    {"warmup_steps", Fate::Mapped, "warmup_steps", "", warmup_steps_rule},
    {"warmup_ratio", Fate::Mapped, "warmup_ratio", "", warmup_ratio_rule},
    {"optim", Fate::Derived, "", "", optimizer_rule},
    {"weight_decay", Fate::Mapped, "weight_decay", ""},
    {"adam_beta1", Fate::Mapped, "adam_beta1", ""},
    {"adam_beta2", Fate::Mapped, "adam_beta2", ""},
    {"adam_epsilon", Fate::Mapped, "adam_epsilon", ""},
    {"max_grad_norm", Fate::Mapped, "max_grad_norm", ""},
    {"bf16", Fate::Mapped, "mixed_precision", "", bf16_rule, true},
    {"fp16", Fate::Warned, "", "", fp16_rule, true},
    {"gradient_checkpointing", Fate::Mapped, "gradient_checkpointing", "", recompute_rule, true},
    {"auto_find_batch_size", Fate::Mapped, "auto_batch_size", "", auto_batch_rule, true},
    {"logging_strategy", Fate::Derived, "", "", logging_strategy_rule},
    {"logging_steps", Fate::Mapped, "logging_steps", "", interval_rule},
    {"report_to", Fate::Mapped, "", "", report_to_rule},
    {"eval_strategy", Fate::Mapped, "eval_strategy", "", eval_strategy_rule},
    {"evaluation_strategy", Fate::Mapped, "eval_strategy", "", eval_strategy_rule},
    {"eval_steps", Fate::Mapped, "eval_steps", "", interval_rule},
    {"save_strategy", Fate::Mapped, "save_strategy", "", save_strategy_rule},
    {"save_steps", Fate::Mapped, "save_steps", "", interval_rule},
    {"save_total_limit", Fate::Mapped, "save_total_limit", "", save_limit_rule},
    {"full_determinism", Fate::Mapped, "deterministic", "", nullptr, true},
    {"seed", Fate::Mapped, "seed", ""},
    {"data_seed", Fate::Derived, "", "", data_seed_rule},
    {"use_cpu", Fate::Mapped, "device", "", cpu_rule, true},
    {"no_cuda", Fate::Mapped, "device", "", cpu_rule, true},
    {"train_sampling_strategy", Fate::Mapped, "data_order", "", sampling_rule},
    {"fsdp", Fate::Mapped, "sharding_mode", "", fsdp_rule},
    {"deepspeed", Fate::Derived, "", "", deepspeed_file_rule},
    {"deepspeed.**", Fate::Derived, "", "", deepspeed_section_rule},
    {"do_train", Fate::Derived, "", "", do_train_rule, true},
    {"do_eval", Fate::Derived, "", "eval_steps says how often", nullptr, true},
    {"do_predict", Fate::Refused, "",
     "octet train does not predict; use 'octet generate' with the trained model", nullptr, true},
    {"resume_from_checkpoint", Fate::Mapped, "resume", "", resume_rule},
    {"overwrite_output_dir", Fate::Derived, "", "", overwrite_rule, true},
    {"save_only_model", Fate::Warned, "",
     "octet always saves what resuming needs; 'octet export' writes the model alone", nullptr, true},
    {"load_best_model_at_end", Fate::Ignored, "",
     "the best checkpoint is always kept; 'octet export --best' takes it", nullptr, true},
    {"metric_for_best_model", Fate::Derived, "", "", metric_rule},
    {"greater_is_better", Fate::Ignored, "", "the best checkpoint is the one with the lowest evaluation loss",
     nullptr, true},
    {"label_smoothing_factor", Fate::Refused, "", "octet has no label smoothing"},
    {"neftune_noise_alpha", Fate::Refused, "", "octet adds no noise to embeddings"},
    {"adafactor", Fate::Refused, "", "octet has AdamW only", nullptr, true},
    {"optim_args", Fate::Refused, "", "octet has AdamW only, with adam_beta1, adam_beta2 and adam_epsilon"},
    {"optim_target_modules", Fate::Refused, "", "octet has AdamW only"},
    {"group_by_length", Fate::Ignored, "", "not needed: packing fills sequences", nullptr, true},
    {"ignore_data_skip", Fate::Warned, "", "octet resumes at the exact place in the data", nullptr, true},
    {"eval_delay", Fate::Warned, "", "octet evaluates from the first interval on"},
    {"eval_on_start", Fate::Warned, "", "octet evaluates from the first interval on", nullptr, true},
    {"push_to_hub", Fate::Warned, "", "nothing is uploaded; 'octet export' writes a Hugging Face folder",
     nullptr, true},
    {"average_tokens_across_devices", Fate::Ignored, "",
     "octet always divides by the tokens of the whole step", nullptr, true},
    {"torch_empty_cache_steps", Fate::Ignored, "", "not needed: memory is planned before the first step"},
    {"use_cache", Fate::Ignored, "", "training keeps no cache", nullptr, true},
    {"per_device_eval_batch_size", Fate::Ignored, "", kEvaluation},
    {"per_gpu_eval_batch_size", Fate::Ignored, "", kEvaluation},
    {"prediction_loss_only", Fate::Ignored, "", kEvaluation, nullptr, true},
    {"eval_do_concat_batches", Fate::Ignored, "", kEvaluation, nullptr, true},
    {"eval_use_gather_object", Fate::Ignored, "", kEvaluation, nullptr, true},
    {"eval_accumulation_steps", Fate::Ignored, "", kEvaluation},
    {"include_for_metrics", Fate::Ignored, "", kEvaluation},
    {"batch_eval_metrics", Fate::Ignored, "", kEvaluation, nullptr, true},
    {"past_index", Fate::Ignored, "", kEvaluation},
    {"use_legacy_prediction_loop", Fate::Ignored, "", kEvaluation, nullptr, true},
    {"include_inputs_for_metrics", Fate::Ignored, "", kEvaluation, nullptr, true},
    {"torch_compile", Fate::Ignored, "", kCompiled, nullptr, true},
    {"torch_compile_backend", Fate::Ignored, "", kCompiled},
    {"torch_compile_mode", Fate::Ignored, "", kCompiled},
    {"use_liger_kernel", Fate::Ignored, "", kCompiled, nullptr, true},
    {"jit_mode_eval", Fate::Ignored, "", kCompiled, nullptr, true},
    {"torchdynamo", Fate::Ignored, "", kCompiled},
    {"logging_dir", Fate::Ignored, "", kLogs},
    {"logging_first_step", Fate::Ignored, "", kLogs, nullptr, true},
    {"log_on_each_node", Fate::Ignored, "", kLogs, nullptr, true},
    {"logging_nan_inf_filter", Fate::Ignored, "", kLogs, nullptr, true},
    {"include_num_input_tokens_seen", Fate::Ignored, "", kLogs, nullptr, true},
    {"include_tokens_per_second", Fate::Ignored, "", kLogs, nullptr, true},
    {"log_level", Fate::Ignored, "", kLogs},
    {"log_level_replica", Fate::Ignored, "", kLogs},
    {"disable_tqdm", Fate::Ignored, "", kLogs, nullptr, true},
    {"project", Fate::Ignored, "", kLogs},
    {"trackio_space_id", Fate::Ignored, "", kLogs},
    {"trackio_bucket_id", Fate::Ignored, "", kLogs},
    {"trackio_static_space_id", Fate::Ignored, "", kLogs},
    {"dataloader_drop_last", Fate::Ignored, "", kLoader, nullptr, true},
    {"dataloader_num_workers", Fate::Ignored, "", kLoader},
    {"dataloader_pin_memory", Fate::Ignored, "", kLoader, nullptr, true},
    {"dataloader_persistent_workers", Fate::Ignored, "", kLoader, nullptr, true},
    {"dataloader_prefetch_factor", Fate::Ignored, "", kLoader},
    {"dataloader_multiprocessing_context", Fate::Ignored, "", kLoader},
    {"dataloader_in_order", Fate::Ignored, "", kLoader, nullptr, true},
    {"remove_unused_columns", Fate::Ignored, "", kLoader, nullptr, true},
    {"label_names", Fate::Ignored, "", kLoader},
    {"length_column_name", Fate::Ignored, "", kLoader},
    {"ddp_find_unused_parameters", Fate::Ignored, "", kDdp, nullptr, true},
    {"ddp_bucket_cap_mb", Fate::Ignored, "", kDdp},
    {"ddp_broadcast_buffers", Fate::Ignored, "", kDdp, nullptr, true},
    {"ddp_static_graph", Fate::Ignored, "", kDdp, nullptr, true},
    {"ddp_backend", Fate::Ignored, "", kDdp},
    {"ddp_timeout", Fate::Ignored, "", kDdp},
    {"local_rank", Fate::Ignored, "", kDdp},
    {"fsdp_min_num_params", Fate::Ignored, "", kWrap},
    {"fsdp_transformer_layer_cls_to_wrap", Fate::Ignored, "", kWrap},
    {"bf16_full_eval", Fate::Ignored, "", kEvalPrecision, nullptr, true},
    {"fp16_full_eval", Fate::Ignored, "", kEvalPrecision, nullptr, true},
    {"save_on_each_node", Fate::Ignored, "", kSaving, nullptr, true},
    {"enable_jit_checkpoint", Fate::Ignored, "", kSaving, nullptr, true},
    {"save_safetensors", Fate::Ignored, "", kSaving, nullptr, true},
    {"restore_callback_states_from_checkpoint", Fate::Ignored, "", kSaving, nullptr, true},
    {"hub_token", Fate::Ignored, "", kHub},
    {"hub_private_repo", Fate::Ignored, "", kHub, nullptr, true},
    {"hub_model_id", Fate::Ignored, "", kHub},
    {"hub_strategy", Fate::Ignored, "", kHub},
    {"hub_always_push", Fate::Ignored, "", kHub, nullptr, true},
    {"hub_revision", Fate::Ignored, "", kHub},
    {"push_to_hub_model_id", Fate::Ignored, "", kHub},
    {"push_to_hub_organization", Fate::Ignored, "", kHub},
    {"push_to_hub_token", Fate::Ignored, "", kHub},
    {"tf32", Fate::Ignored, "", kHardware, nullptr, true},
    {"use_mps_device", Fate::Ignored, "", kHardware, nullptr, true},
    {"use_ipex", Fate::Ignored, "", kHardware},
    {"xpu_backend", Fate::Ignored, "", kHardware},
    {"fp16_opt_level", Fate::Ignored, "", kHardware},
    {"half_precision_backend", Fate::Ignored, "", kHardware},
    {"fp16_backend", Fate::Ignored, "", kHardware},
    {"tpu_num_cores", Fate::Ignored, "", kHardware},
    {"tpu_metrics_debug", Fate::Ignored, "", kHardware, nullptr, true},
    {"mp_parameters", Fate::Ignored, "", kHardware},
    {"ray_scope", Fate::Ignored, "", kHardware},
    {"_n_gpu", Fate::Ignored, "", kHardware},
    {"debug", Fate::Ignored, "", kHardware},
    {"skip_memory_metrics", Fate::Ignored, "", kHardware, nullptr, true},
    {"no_deprecation_warning", Fate::Ignored, "", kHardware},
    {"sortish_sampler", Fate::Ignored, "", kPredict, nullptr, true},
    {"predict_with_generate", Fate::Ignored, "", kPredict, nullptr, true},
    {"generation_max_length", Fate::Ignored, "", kPredict},
    {"generation_num_beams", Fate::Ignored, "", kPredict},
    {"lr_scheduler_kwargs", Fate::Refused, "",
     "a text; set min_lr_ratio, min_lr or decay_ratio, or write it as a map"},
    {"lr_scheduler_kwargs.min_lr", Fate::Mapped, "min_lr"},
    {"lr_scheduler_kwargs.min_lr_rate", Fate::Mapped, "min_lr_ratio"},
    {"lr_scheduler_kwargs.min_lr_ratio", Fate::Mapped, "min_lr_ratio"},
    {"lr_scheduler_kwargs.num_cycles", Fate::Derived, "", "", cycles_rule},
    {"lr_scheduler_kwargs.num_decay_steps", Fate::Mapped, "decay_ratio", "", decay_steps_rule},
    {"lr_scheduler_kwargs.decay_type", Fate::Ignored, "", "the shape of octet's decay"},
    {"lr_scheduler_kwargs.warmup_type", Fate::Ignored, "", "octet warms up linearly"},
    {"lr_scheduler_kwargs.**", Fate::Refused, "", "octet's schedules have no such setting"},
    {"accelerator_config", Fate::Ignored, "", "nothing is set"},
    {"accelerator_config.split_batches", Fate::Refused, "", "", split_batches_rule},
    {"accelerator_config.**", Fate::Ignored, "", "how Accelerate loads data; octet has its own loader"},
    {"parallelism_config", Fate::Ignored, "", "nothing is set"},
    {"parallelism_config.**", Fate::Refused, "", "", parallel_size_rule},
    {"fsdp_config", Fate::Warned, "", "a text or a file is not read; fsdp says what ranks share"},
    {"fsdp_config.fsdp_sharding_strategy", Fate::Mapped, "sharding_mode", "", fsdp_rule},
    {"fsdp_config.activation_checkpointing", Fate::Mapped, "gradient_checkpointing", "", recompute_rule},
    {"fsdp_config.fsdp_activation_checkpointing", Fate::Mapped, "gradient_checkpointing", "", recompute_rule},
    {"fsdp_config.**", Fate::Ignored, "", kWrap},
    {"gradient_checkpointing_kwargs", Fate::Ignored, "", "how PyTorch recomputes"},
    {"gradient_checkpointing_kwargs.**", Fate::Ignored, "", "how PyTorch recomputes"},
    {"liger_kernel_config", Fate::Ignored, "", kCompiled},
    {"liger_kernel_config.**", Fate::Ignored, "", kCompiled},
    {"generation_config", Fate::Ignored, "", kPredict},
    {"generation_config.**", Fate::Ignored, "", kPredict},
};

}  // namespace

std::span<const ToolKey> hf_training_keys() {
  return kKeys;
}

}  // namespace octet
