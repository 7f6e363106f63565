// LLaMA-Factory's YAML files: keys of its own, and those of TrainingArguments.

#include <fmt/format.h>

#include <vector>

#include "import/key_table.h"
#include "import/llamafactory_rules.h"
#include "import/rules.h"
#include "import/tools.h"

namespace octet {
namespace {

constexpr KeyRules kRules[] = {
    {"model_name_or_path", model_rule},
    {"adapter_name_or_path", adapter_rule},
    {"stage", stage_rule},
    {"template", template_rule},
    {"dataset", dataset_rule},
    {"eval_dataset", eval_dataset_rule},
    {"val_size", held_out_rule},
    {"packing!", lf_packing_rule},
    {"lora_target", lora_target_rule},
    {"quantization_bit", quantized_base_rule},
    {"gradient_checkpointing", lf_recompute_rule},
    {"fp8_backend", lf_fp8_backend_rule},
    {"fp8_enable_fsdp_float8_all_gather!", all_gather_rule},
    {"pure_bf16!", pure_bf16_rule},
    {"tensor_model_parallel_size pipeline_model_parallel_size expert_model_parallel_size "
     "context_parallel_size",
     parallel_size_rule},
};

constexpr std::string_view kKeys = R"(
cutoff_len=max_seq_length default_system lora_rank lora_alpha lora_dropout use_rslora! loraplus_lr_ratio : mapped
dataset_dir : derived, the folder of dataset_info.json
interleave_probs : derived, weights of the datasets
streaming! buffer_size overwrite_cache! preprocessing_batch_size preprocessing_num_workers eval_num_beams
  ignore_pad_token_for_loss! data_shared_file_system! : ignored, octet prepares, packs and loads data in its own way
loraplus_lr_embedding pissa_convert! pissa_iter init_special_tokens galore_target galore_rank galore_update_interval
  galore_scale galore_proj_type galore_layerwise! apollo_target apollo_rank apollo_update_interval apollo_scale
  apollo_proj apollo_proj_type apollo_scale_type apollo_layerwise! apollo_scale_front! badam_mode badam_start_block
  badam_switch_mode badam_switch_interval badam_update_ratio badam_mask_mode badam_verbose pref_beta pref_ftx
  pref_bco_weight pref_loss dpo_label_smoothing kto_chosen_weight kto_rejected_weight simpo_gamma ppo_buffer_size
  ppo_epochs ppo_score_norm! ppo_target ppo_whiten_rewards! ref_model ref_model_adapters ref_model_quantization_bit
  reward_model reward_model_adapters reward_model_quantization_bit reward_model_type ld_alpha freeze_trainable_layers
  freeze_trainable_modules freeze_extra_modules module_dropout oft_rank oft_block_size oft_target kt_cpu_activation
  kt_weight_path kt_non_expert_weight_path kt_expert_checkpoint_path kt_use_lora_experts! kt_lora_expert_num
  kt_lora_expert_intermediate_size kt_config moe_aux_loss_coef megatron_bridge_args hyper_parallel_args
  hyper_parallel_cp_size asft_alpha eaft_alpha kt_config.**
  : ignored, only with a method or an optimizer that octet does not have
cache_dir : ignored, the cache of the hub; octet uses HF_HOME
image_max_pixels image_min_pixels image_do_pan_and_scan! crop_to_patches! video_max_pixels video_min_pixels video_fps
  video_maxlen use_audio_in_video! audio_sampling_rate media_dir freeze_vision_tower! freeze_multi_modal_projector!
  freeze_language_model! : ignored, for images, sound and video; octet trains on text
export_dir export_size export_device export_quantization_bit export_quantization_dataset export_quantization_nsamples
  export_quantization_maxlen export_legacy_format! export_hub_model_id export_hf_on_finish
  : ignored, see 'octet export'
infer_backend offload_folder use_kv_cache! infer_dtype vllm_maxlen vllm_gpu_util vllm_enforce_eager!
  vllm_max_lora_rank vllm_config sglang_maxlen sglang_mem_fraction sglang_tp_size sglang_config sglang_lora_backend
  do_sample! temperature top_p top_k num_beams max_length max_new_tokens repetition_penalty length_penalty
  skip_special_tokens! vllm_config.** sglang_config.** : ignored, for inference; see 'octet generate'
swanlab_project swanlab_workspace swanlab_run_name swanlab_mode swanlab_api_key swanlab_logdir
  swanlab_lark_webhook_url swanlab_lark_secret enable_torch_profiler! profiler_output_dir profiler_wait_steps
  profiler_warmup_steps profiler_active_steps profiler_repeat profiler_record_shapes! profiler_profile_memory!
  profiler_with_stack! profile_modules compute_accuracy! plot_loss! include_effective_tokens_per_second!
  : ignored, octet logs to the console, metrics.jsonl and TensorBoard
ray_num_workers ray_init_kwargs master_addr master_port ray_run_name ray_storage_path ray_init_kwargs.**
  resources_per_worker.** resources_per_worker placement_strategy sequence_parallel bias_activation_fusion
  apply_rope_fusion use_distributed_optimizer overlap_param_gather overlap_grad_reduce moe_grouped_gemm
  moe_token_dispatcher_type recompute_granularity use_packed_sequences
  : ignored, octet starts and connects its ranks in its own way, see docs/ranks.md
quantization_method quantization_type double_quantization! quantization_device_map
  : ignored, only with 4-bit weights, which octet does not have
use_fast_tokenizer! low_cpu_mem_usage! hf_hub_token ms_hub_token om_hub_token print_param_status! trust_remote_code!
  : ignored, octet takes the model and its tokenizer as their files say, and runs no code of them
flash_attn use_unsloth! use_unsloth_gc! enable_liger_kernel! use_reentrant_gc! upcast_layernorm! upcast_lmhead_output!
  use_v1_kernels! : ignored, octet has its own kernels
adapter_folder : warned, name the folder itself in adapter_name_or_path
preserve_thinking! : warned, octet trains on conversations as they are
tool_format : warned, octet takes the format of tools from the chat template
tokenized_path : warned, octet keeps its own prepared data in cache_dir
eval_on_each_dataset! : warned, octet evaluates on all held-out data together
early_stopping_steps : warned, octet has no early stopping; the best checkpoint is kept
use_swanlab! : warned, nothing is sent to SwanLab; metrics are in metrics.jsonl of the run
compute_dtype device_map model_max_length block_diag_attn!
  : warned, LLaMA-Factory works it out itself and takes no value
mask_history! : refused, octet takes the loss on all answers of a conversation, not on the last one alone
use_dora! : refused, octet has no DoRA; use plain LoRA, rsLoRA (use_rslora) or LoRA+
additional_target : refused, octet trains adapters on the matrices of the layers only
pissa_init! : refused, octet starts adapters from random A and zero B
train_from_scratch! : refused, name a folder with a config.json and no weights in model_name_or_path
resize_vocab! add_tokens add_special_tokens new_special_tokens_config : refused, octet does not change the vocabulary
split_special_tokens! : refused, octet reads special tokens as one token each
rope_scaling : refused, octet takes the positions of the model as they are
shift_attn! : refused, octet has full attention only
mixture_of_depths use_llama_pro! : refused, another method, which octet does not have
use_mca! use_megatron_bridge! use_hyper_parallel! use_kt! : refused, another backend; octet has its own
use_dft_loss! use_asft_loss! use_eaft_loss! : refused, octet trains with cross entropy (and penalty_type)
use_galore! use_apollo! use_badam! use_adam_mini! use_muon! : refused, octet has AdamW only
create_new_adapter! : ignored, only with adapter_name_or_path
finetuning_type : full lora -> finetuning_type | refused, octet has full and lora
fp8! : off ignored, off | -> mixed_precision fp8
max_samples : null ignored, null: all | derived, the most examples of each dataset
mix_strategy : concat ignored, concat: every example once per epoch, as in octet
  | interleave interleave_under interleave_over interleave_once derived, interleave_probs are the weights of the datasets
  | refused, expected concat, interleave_under or interleave_over
neat_packing! : off ignored, octet keeps packed examples apart always
  | -> packing best_fit, examples do not see each other
train_on_prompt! : off -> train_on completion | -> train_on all
enable_thinking! : null ignored, octet trains on conversations as they are
  | off warned, octet trains on conversations as they are | ignored, octet trains on conversations as they are
disable_gradient_checkpointing! : off ignored, false: octet recomputes what the memory needs
  | -> gradient_checkpointing none
disable_shuffling! : off ignored, off | -> data_order sequential
model_revision : off main ignored, main: the newest
  | refused, octet takes the main revision; download this one and name its folder
)";

constexpr ToolDefault kDefaults[] = {
    {"finetuning_type", "lora"},
    {"max_seq_length", "2048"},
    {"num_train_epochs", "3", "max_steps"},
    {"learning_rate", "5e-5"},
    {"lr_scheduler_type", "linear"},
    {"min_lr_ratio", "0", "min_lr"},
    {"warmup_steps", "0", "warmup_ratio"},
    {"weight_decay", "0"},
    {"adam_beta2", "0.999"},
    {"logging_steps", "500"},
    {"eval_strategy", "no"},
    {"save_total_limit", "0"},
};

int score(const SettingsTree& tree) {
  constexpr std::string_view kCertain =
      "stage export_dir infer_backend template preprocessing_num_workers overwrite_cache plot_loss";
  constexpr std::string_view kTypical =
      "finetuning_type cutoff_len do_train dataset model_name_or_path lora_target val_size";
  if (tree.has("base_model") || tree.has("zero_optimization") || tree.has("model_preset")) return 0;
  const int certain = count_keys(tree, kCertain, 30);
  if (certain < 60 && tree.has("mixed_precision")) return 0;  // of octet or Accelerate
  return certain + (tree.has("dataset_dir") ? 30 : 0) + count_keys(tree, kTypical, 10);
}

// Files that do not train, and the command of octet for them.
void refuse_other_jobs(Importer& importer) {
  const SettingsTree& tree = importer.tree();
  if (const TreeLeaf* leaf = tree.find("export_dir")) {
    const TreeLeaf* bits = tree.find("export_quantization_bit");
    if (bits && !bits->is_off()) {
      importer.refuse(*bits,
                      "octet does not write quantized models; use the BF16 model that 'octet export' writes");
    }
    importer.refuse(
        *leaf,
        "the file exports a model and does not train; use 'octet export RUN --output DIR' (--merge merges "
        "an adapter)");
    return;
  }
  const bool trains = tree.has("do_train") || tree.has("stage") || tree.has("dataset") ||
                      tree.has("learning_rate") || tree.has("num_train_epochs");
  if (trains) return;
  if (const TreeLeaf* leaf = tree.find("infer_backend")) {
    importer.refuse(*leaf, "the file is for inference and does not train; use 'octet generate MODEL'");
  } else if (const TreeLeaf* model = tree.find("model_name_or_path")) {
    importer.refuse(
        *model,
        "the file names a model and no training; for inference use 'octet generate MODEL', for training "
        "add stage, dataset and template");
  }
}

void finish(Importer& importer) {
  const SettingsTree& tree = importer.tree();
  const std::string stage = plain_word(tree.text("stage"));
  refuse_other_jobs(importer);
  const auto fallback = [&](std::string_view key, const std::string& value) {
    if (!importer.is_set(key)) importer.set(key, value, "default of LLaMA-Factory");
  };
  const bool lora = !importer.is_set("finetuning_type") || importer.value("finetuning_type") == "lora";
  if (lora && !importer.is_set("adapter_name_or_path")) fallback("lora_rank", "8");
  if (!lora) {
    for (const char* key :
         {"lora_rank", "lora_alpha", "lora_dropout", "lora_target", "use_rslora", "loraplus_lr_ratio"})
      importer.unset(key);
  }
  fallback("packing", stage == "pt" ? "stream" : "none");
  if (!importer.is_set("mixed_precision"))
    importer.set("mixed_precision", "bf16", "neither bf16 nor fp16 is set");
  if (!importer.is_set("eval_dataset")) fallback("eval_split", "0");
  if (importer.value("eval_strategy") == "steps" && !importer.is_set("eval_steps"))
    fallback("eval_steps", importer.is_set("logging_steps") ? importer.value("logging_steps") : "500");
  const TreeLeaf* bits = tree.find("quantization_bit");
  if (bits && !bits->is_off() && !lora)
    importer.refuse(*bits, "only adapters can be trained on quantized weights; use finetuning_type lora");
  if (bits && !bits->is_off() && tree.is_on("fp8")) {
    importer.find("fp8-with-quantization", *bits, "LLaMA-Factory refuses fp8 together with quantization_bit",
                  "keeps the frozen weights in FP8 instead");
  }
  if (tree.is_on("fp8") && !tree.has("fp8_backend") && (stage.empty() || stage == "sft" || stage == "pt"))
    find_dropped_fp8_recipe(importer, *tree.find("fp8"),
                            "for the backend auto (torchao), because fp8_backend is not set,");
  if (lora && tree.is_on("fp8")) {
    importer.find(
        {.name = "fp8-with-lora",
         .where = "fp8",
         .there =
             "adapters are added before the conversion to FP8, so layers are missed, and ranks below 16 do not "
             "fit FP8",
         .here = "runs the frozen matrices in FP8 and the adapters in BF16"});
  }
}

}  // namespace

const Tool& llamafactory_tool() {
  static const std::vector<ToolKey> keys = joined_keys({key_table(kRules, kKeys), hf_training_keys()});
  static const Tool tool{.name = "LLaMA-Factory",
                         .word = "llamafactory",
                         .keys = keys,
                         .defaults = kDefaults,
                         .score = score,
                         .finish = finish};
  return tool;
}

}  // namespace octet
