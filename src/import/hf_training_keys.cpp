// The keys of Transformers' TrainingArguments. LLaMA-Factory, TRL and saved trainer states have them, too.

#include <fmt/format.h>

#include "base/text.h"
#include "import/key_table.h"
#include "import/rules.h"
#include "import/tools.h"

namespace octet {
namespace {

void epochs_rule(Importer& importer, const TreeLeaf& leaf) {
  const auto steps = importer.tree().number("max_steps");
  if (importer.skips_null(leaf)) return;
  if (steps && *steps > 0) {
    importer.derive(leaf, "max_steps is set, and steps win over epochs there, too");
  } else {
    importer.map(leaf, "num_train_epochs", leaf.text);
  }
}

// In Transformers warmup_steps wins unless it is 0.
void warmup_ratio_rule(Importer& importer, const TreeLeaf& leaf) {
  const auto steps = importer.tree().number("warmup_steps");
  if (importer.skips_null(leaf)) return;
  if (steps && *steps > 0) {
    importer.derive(leaf, "warmup_steps is set, and wins there, too");
  } else {
    importer.unset("warmup_steps");
    importer.map(leaf, "warmup_ratio", leaf.text);
  }
}

void data_seed_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null() || leaf.text == importer.tree().text("seed")) {
    importer.ignore(leaf, "octet has one seed for everything");
  } else {
    importer.warn(leaf, "octet has one seed for everything, the key seed");
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

void decay_steps_rule(Importer& importer, const TreeLeaf& leaf) {
  const auto total = importer.main_tree().number("max_steps");
  const auto decay = leaf.number();
  if (total && decay && *total >= *decay && *total > 0) {
    importer.map(leaf, "decay_ratio", fmt::format("{}", *decay / *total), "as a share of max_steps");
  } else {
    importer.warn(leaf, "octet's decay is a share of all steps: set decay_ratio");
  }
}

constexpr KeyRules kRules[] = {
    {"output_dir", output_dir_rule},
    {"run_name", run_name_rule},
    {"num_train_epochs", epochs_rule},
    {"max_steps", max_steps_rule},
    {"lr_scheduler_type", schedule_rule},
    {"warmup_steps", warmup_steps_rule},
    {"warmup_ratio", warmup_ratio_rule},
    {"optim", optimizer_rule},
    {"bf16!", bf16_rule},
    {"fp16!", fp16_rule},
    {"gradient_checkpointing! fsdp_config.activation_checkpointing "
     "fsdp_config.fsdp_activation_checkpointing",
     recompute_rule},
    {"logging_steps eval_steps save_steps", interval_rule},
    {"report_to", report_to_rule},
    {"data_seed", data_seed_rule},
    {"fsdp fsdp_config.fsdp_sharding_strategy", fsdp_rule},
    {"deepspeed", deepspeed_file_rule},
    {"deepspeed.**", deepspeed_section_rule},
    {"do_train!", do_train_rule},
    {"lr_scheduler_kwargs.num_decay_steps", decay_steps_rule},
    {"parallelism_config.**", parallel_size_rule},
};

constexpr std::string_view kKeys = R"(
per_device_train_batch_size per_gpu_train_batch_size=per_device_train_batch_size gradient_accumulation_steps
  learning_rate weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm full_determinism!=deterministic seed
  lr_scheduler_kwargs.min_lr=min_lr lr_scheduler_kwargs.min_lr_rate=min_lr_ratio
  lr_scheduler_kwargs.min_lr_ratio=min_lr_ratio : mapped
do_eval! : derived, eval_steps says how often
load_best_model_at_end! greater_is_better!
  : ignored, octet keeps the checkpoint with the lowest evaluation loss, and the last ones
group_by_length! dataloader_drop_last! dataloader_num_workers dataloader_pin_memory! dataloader_persistent_workers!
  dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order! remove_unused_columns!
  label_names length_column_name accelerator_config.** : ignored, octet prepares, packs and loads data in its own way
average_tokens_across_devices! : ignored, octet always divides by the tokens of the whole step
torch_empty_cache_steps : ignored, octet plans all memory before the first step
use_cache! : ignored, training keeps no cache
per_device_eval_batch_size per_gpu_eval_batch_size prediction_loss_only! eval_do_concat_batches!
  eval_use_gather_object! eval_accumulation_steps include_for_metrics batch_eval_metrics! past_index
  use_legacy_prediction_loop! include_inputs_for_metrics!
  : ignored, evaluation takes the batch of training and reports the loss
torch_compile! torch_compile_backend torch_compile_mode use_liger_kernel! jit_mode_eval! torchdynamo
  liger_kernel_config liger_kernel_config.** : ignored, octet has its own kernels
logging_dir logging_first_step! log_on_each_node! logging_nan_inf_filter! include_num_input_tokens_seen!
  include_tokens_per_second! log_level log_level_replica disable_tqdm! project trackio_space_id trackio_bucket_id
  trackio_static_space_id : ignored, octet logs to the console, metrics.jsonl and TensorBoard
ddp_find_unused_parameters! ddp_bucket_cap_mb ddp_broadcast_buffers! ddp_static_graph! ddp_backend ddp_timeout
  local_rank : ignored, octet starts and connects its ranks in its own way, see docs/ranks.md
fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap fsdp_config.**
  : ignored, octet shards layer by layer, by sharding_mode
bf16_full_eval! fp16_full_eval! : ignored, evaluation runs in BF16 unless fp8_eval is set
save_on_each_node! enable_jit_checkpoint! save_safetensors! restore_callback_states_from_checkpoint!
  : ignored, octet saves in its own way, and can always resume
hub_token hub_private_repo! hub_model_id hub_strategy hub_always_push! hub_revision push_to_hub_model_id
  push_to_hub_organization push_to_hub_token : ignored, nothing is uploaded
tf32! use_mps_device! use_ipex xpu_backend fp16_opt_level half_precision_backend fp16_backend tpu_num_cores
  tpu_metrics_debug! mp_parameters ray_scope _n_gpu debug skip_memory_metrics! no_deprecation_warning
  : ignored, for other hardware or services
sortish_sampler! predict_with_generate! generation_max_length generation_num_beams generation_config
  generation_config.** : ignored, for inference; see 'octet generate'
lr_scheduler_kwargs.decay_type lr_scheduler_kwargs.warmup_type
  : ignored, octet's schedule warms up linearly from 0 and resumes itself
accelerator_config parallelism_config : ignored, no setting
gradient_checkpointing_kwargs gradient_checkpointing_kwargs.** : ignored, octet chooses itself what to recompute
save_only_model! : warned, octet always saves what resuming needs; 'octet export' writes the model alone
ignore_data_skip! : warned, octet resumes at the exact place in the data
eval_delay eval_on_start! : warned, octet evaluates from the first interval on
push_to_hub! : warned, nothing is uploaded; 'octet export' writes a Hugging Face folder
fsdp_config : warned, a text or a file is not read; fsdp says what ranks share
do_predict! : refused, octet train does not predict; use 'octet generate' with the trained model
label_smoothing_factor : refused, octet has no label smoothing
neftune_noise_alpha : refused, octet adds no noise to embeddings
adafactor! optim_target_modules : refused, octet has AdamW only
optim_args : refused, octet has AdamW only, with adam_beta1, adam_beta2 and adam_epsilon
lr_scheduler_kwargs : refused, a text; set min_lr_ratio, min_lr or decay_ratio, or write it as a map
lr_scheduler_kwargs.** : refused, octet's schedules have no such setting
auto_find_batch_size! : warned, octet keeps the given batch and checks the memory before it starts (see auto_batch_size)
logging_strategy : null steps derived, logging_steps says how often | warned, octet logs every logging_steps
train_sampling_strategy : sequential -> data_order sequential | null random derived, octet shuffles, too
  | ignored, octet prepares, packs and loads data in its own way
overwrite_output_dir! : ignored, octet never overwrites the files of another run; resume latest continues one
metric_for_best_model : loss eval_loss ignored, as in octet
  | warned, octet's best checkpoint is the one with the lowest evaluation loss
lr_scheduler_kwargs.num_cycles : 0.5 ignored, half a cosine, as in octet | refused, octet's cosine schedule is half a wave
accelerator_config.split_batches : refused, the batch size would be of all GPUs together; octet's is per GPU
use_cpu! no_cuda! : off ignored, off | -> device cpu
eval_strategy evaluation_strategy : no false -> eval_strategy no | steps epoch -> eval_strategy
  | refused, expected steps, epoch or no
save_strategy : no steps epoch -> save_strategy | false -> save_strategy no, YAML reads an unquoted no as false
  | best -> save_strategy steps, the best checkpoint is always kept | refused, expected steps, epoch, best or no
save_total_limit : null -> save_total_limit 0, all checkpoints are kept
  | 1 -> save_total_limit 2, octet keeps the last two, so that one is always complete | -> save_total_limit
resume_from_checkpoint : off ignored, a new run | true -> resume latest
  | refused, checkpoints of other programs cannot be resumed; start from their weights with model_name_or_path
)";

}  // namespace

std::span<const ToolKey> hf_training_keys() {
  static const std::vector<ToolKey> keys = key_table(kRules, kKeys);
  return keys;
}

}  // namespace octet
