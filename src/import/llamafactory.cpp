// LLaMA-Factory's YAML files: keys of its own, and those of TrainingArguments.

#include <fmt/format.h>

#include <vector>

#include "import/llamafactory_rules.h"
#include "import/rules.h"
#include "import/tools.h"

namespace octet {
namespace {

constexpr const char* kVocabulary = "octet does not change the vocabulary";
constexpr const char* kMethod = "another method, which octet does not have";
constexpr const char* kMethodOption = "only with a method that octet does not have";
constexpr const char* kBackend = "another backend; octet has its own";
constexpr const char* kLoss = "octet trains with cross entropy (and penalty_type)";
constexpr const char* kOptimizer = "octet has AdamW only";
constexpr const char* kGalore = "only with another optimizer";
constexpr const char* kPreference = "only for preference training";
constexpr const char* kFreeze = "only with finetuning_type freeze";
constexpr const char* kOft = "only with finetuning_type oft";
constexpr const char* kMedia = "for images, sound and video; octet trains on text";
constexpr const char* kExport = "see 'octet export'";
constexpr const char* kServing = "for inference; see 'octet generate'";
constexpr const char* kTracker = "a tracker that octet does not send to";
constexpr const char* kProfile = "profiling; see 'octet bench'";
constexpr const char* kLauncher = "a setting of the launcher; see 'octet launch'";
constexpr const char* kKt = "only with use_kt";
constexpr const char* kQuantized = "only with quantization_bit";
constexpr const char* kPreparation = "octet prepares data in its own way";
constexpr const char* kGeneration = "for generation; see 'octet generate'";
constexpr const char* kToken = "not needed: octet runs no code of a model and reads HF_TOKEN";
constexpr const char* kSpeed = "not needed: octet has its own kernels; the result is the same function";
constexpr const char* kLogs = "octet always logs; see 'octet plot' and metrics.jsonl";

constexpr const char* kMegatron = "only with another backend";

constexpr ToolKey kKeys[] = {
    {"model_name_or_path", Fate::Mapped, "model_name_or_path", "", model_rule},
    {"adapter_name_or_path", Fate::Mapped, "adapter_name_or_path", "", adapter_rule},
    {"create_new_adapter", Fate::Derived, "", "", new_adapter_rule, true},
    {"adapter_folder", Fate::Warned, "", "name the folder itself in adapter_name_or_path"},
    {"stage", Fate::Derived, "", "", stage_rule},
    {"finetuning_type", Fate::Mapped, "finetuning_type", "", finetuning_rule},
    {"template", Fate::Mapped, "chat_template", "", template_rule},
    {"dataset", Fate::Mapped, "dataset", "", dataset_rule},
    {"eval_dataset", Fate::Mapped, "eval_dataset", "", eval_dataset_rule},
    {"dataset_dir", Fate::Derived, "", "the folder of dataset_info.json"},
    {"cutoff_len", Fate::Mapped, "max_seq_length", ""},
    {"max_samples", Fate::Derived, "", "", max_samples_rule},
    {"mix_strategy", Fate::Derived, "", "", mix_rule},
    {"interleave_probs", Fate::Derived, "", "weights of the datasets"},
    {"val_size", Fate::Mapped, "eval_split", "", held_out_rule},
    {"packing", Fate::Mapped, "packing", "", lf_packing_rule, true},
    {"neat_packing", Fate::Derived, "", "", neat_packing_rule, true},
    {"train_on_prompt", Fate::Mapped, "train_on", "", train_on_prompt_rule, true},
    {"mask_history", Fate::Refused, "",
     "octet takes the loss on all answers of a conversation, not on the last one alone", nullptr, true},
    {"default_system", Fate::Mapped, "default_system", ""},
    {"enable_thinking", Fate::Derived, "", "", thinking_rule, true},
    {"preserve_thinking", Fate::Warned, "", "octet trains on conversations as they are", nullptr, true},
    {"tool_format", Fate::Warned, "", "octet takes the format of tools from the chat template"},
    {"tokenized_path", Fate::Warned, "", "octet keeps its own prepared data in cache_dir"},
    {"streaming", Fate::Ignored, "", "octet reads data from disk as it goes", nullptr, true},
    {"eval_on_each_dataset", Fate::Warned, "", "octet evaluates on all held-out data together", nullptr,
     true},
    {"lora_rank", Fate::Mapped, "lora_rank", ""},
    {"lora_alpha", Fate::Mapped, "lora_alpha", ""},
    {"lora_dropout", Fate::Mapped, "lora_dropout", ""},
    {"lora_target", Fate::Mapped, "lora_target", "", lora_target_rule},
    {"use_rslora", Fate::Mapped, "use_rslora", "", nullptr, true},
    {"use_dora", Fate::Refused, "", "octet has no DoRA; use plain LoRA, rsLoRA (use_rslora) or LoRA+",
     nullptr, true},
    {"loraplus_lr_ratio", Fate::Mapped, "loraplus_lr_ratio", ""},
    {"loraplus_lr_embedding", Fate::Ignored, "", "octet has no adapters on embeddings"},
    {"additional_target", Fate::Refused, "", "octet trains adapters on the matrices of the layers only"},
    {"pissa_init", Fate::Refused, "", "octet starts adapters from random A and zero B", nullptr, true},
    {"pissa_convert", Fate::Ignored, "", "only with pissa_init", nullptr, true},
    {"pissa_iter", Fate::Ignored, "", "only with pissa_init"},
    {"quantization_bit", Fate::Warned, "", "", quantized_base_rule},
    {"disable_gradient_checkpointing", Fate::Mapped, "gradient_checkpointing", "", disable_recompute_rule,
     true},
    {"gradient_checkpointing", Fate::Derived, "", "", lf_recompute_rule},
    {"fp8", Fate::Mapped, "mixed_precision", "", fp8_rule, true},
    {"fp8_backend", Fate::Derived, "", "", lf_fp8_backend_rule},
    {"fp8_enable_fsdp_float8_all_gather", Fate::Derived, "", "", all_gather_rule, true},
    {"pure_bf16", Fate::Mapped, "master_weights", "", pure_bf16_rule, true},
    {"train_from_scratch", Fate::Refused, "",
     "name a folder with a config.json and no weights in model_name_or_path", nullptr, true},
    {"disable_shuffling", Fate::Mapped, "data_order", "", shuffling_rule, true},
    {"early_stopping_steps", Fate::Warned, "", "octet has no early stopping; the best checkpoint is kept"},
    {"use_swanlab", Fate::Warned, "", "nothing is sent to SwanLab; metrics are in metrics.jsonl of the run",
     nullptr, true},
    {"resize_vocab", Fate::Refused, "", kVocabulary, nullptr, true},
    {"add_tokens", Fate::Refused, "", kVocabulary},
    {"add_special_tokens", Fate::Refused, "", kVocabulary},
    {"new_special_tokens_config", Fate::Refused, "", kVocabulary},
    {"split_special_tokens", Fate::Refused, "", "octet reads special tokens as one token each", nullptr,
     true},
    {"rope_scaling", Fate::Refused, "", "octet takes the positions of the model as they are"},
    {"shift_attn", Fate::Refused, "", "octet has full attention only", nullptr, true},
    {"mixture_of_depths", Fate::Refused, "", kMethod},
    {"use_llama_pro", Fate::Refused, "", kMethod, nullptr, true},
    {"use_mca", Fate::Refused, "", kBackend, nullptr, true},
    {"use_megatron_bridge", Fate::Refused, "", kBackend, nullptr, true},
    {"use_hyper_parallel", Fate::Refused, "", kBackend, nullptr, true},
    {"use_kt", Fate::Refused, "", kBackend, nullptr, true},
    {"use_dft_loss", Fate::Refused, "", kLoss, nullptr, true},
    {"use_asft_loss", Fate::Refused, "", kLoss, nullptr, true},
    {"use_eaft_loss", Fate::Refused, "", kLoss, nullptr, true},
    {"use_galore", Fate::Refused, "", kOptimizer, nullptr, true},
    {"use_apollo", Fate::Refused, "", kOptimizer, nullptr, true},
    {"use_badam", Fate::Refused, "", kOptimizer, nullptr, true},
    {"use_adam_mini", Fate::Refused, "", kOptimizer, nullptr, true},
    {"use_muon", Fate::Refused, "", kOptimizer, nullptr, true},
    {"cache_dir", Fate::Ignored, "", "the cache of the hub; octet uses HF_HOME"},
    {"model_revision", Fate::Derived, "", "", revision_rule},
    {"init_special_tokens", Fate::Ignored, "", "only with new tokens"},
    {"compute_dtype", Fate::Warned, "", "LLaMA-Factory works it out itself and takes no value"},
    {"device_map", Fate::Warned, "", "LLaMA-Factory works it out itself and takes no value"},
    {"model_max_length", Fate::Warned, "", "LLaMA-Factory works it out itself and takes no value"},
    {"block_diag_attn", Fate::Warned, "", "LLaMA-Factory works it out itself and takes no value", nullptr,
     true},
    {"galore_target", Fate::Ignored, "", kGalore},
    {"galore_rank", Fate::Ignored, "", kGalore},
    {"galore_update_interval", Fate::Ignored, "", kGalore},
    {"galore_scale", Fate::Ignored, "", kGalore},
    {"galore_proj_type", Fate::Ignored, "", kGalore},
    {"galore_layerwise", Fate::Ignored, "", kGalore, nullptr, true},
    {"apollo_target", Fate::Ignored, "", kGalore},
    {"apollo_rank", Fate::Ignored, "", kGalore},
    {"apollo_update_interval", Fate::Ignored, "", kGalore},
    {"apollo_scale", Fate::Ignored, "", kGalore},
    {"apollo_proj", Fate::Ignored, "", kGalore},
    {"apollo_proj_type", Fate::Ignored, "", kGalore},
    {"apollo_scale_type", Fate::Ignored, "", kGalore},
    {"apollo_layerwise", Fate::Ignored, "", kGalore, nullptr, true},
    {"apollo_scale_front", Fate::Ignored, "", kGalore, nullptr, true},
    {"badam_mode", Fate::Ignored, "", kGalore},
    {"badam_start_block", Fate::Ignored, "", kGalore},
    {"badam_switch_mode", Fate::Ignored, "", kGalore},
    {"badam_switch_interval", Fate::Ignored, "", kGalore},
    {"badam_update_ratio", Fate::Ignored, "", kGalore},
    {"badam_mask_mode", Fate::Ignored, "", kGalore},
    {"badam_verbose", Fate::Ignored, "", kGalore},
    {"pref_beta", Fate::Ignored, "", kPreference},
    {"pref_ftx", Fate::Ignored, "", kPreference},
    {"pref_bco_weight", Fate::Ignored, "", kPreference},
    {"pref_loss", Fate::Ignored, "", kPreference},
    {"dpo_label_smoothing", Fate::Ignored, "", kPreference},
    {"kto_chosen_weight", Fate::Ignored, "", kPreference},
    {"kto_rejected_weight", Fate::Ignored, "", kPreference},
    {"simpo_gamma", Fate::Ignored, "", kPreference},
    {"ppo_buffer_size", Fate::Ignored, "", kPreference},
    {"ppo_epochs", Fate::Ignored, "", kPreference},
    {"ppo_score_norm", Fate::Ignored, "", kPreference, nullptr, true},
    {"ppo_target", Fate::Ignored, "", kPreference},
    {"ppo_whiten_rewards", Fate::Ignored, "", kPreference, nullptr, true},
    {"ref_model", Fate::Ignored, "", kPreference},
    {"ref_model_adapters", Fate::Ignored, "", kPreference},
    {"ref_model_quantization_bit", Fate::Ignored, "", kPreference},
    {"reward_model", Fate::Ignored, "", kPreference},
    {"reward_model_adapters", Fate::Ignored, "", kPreference},
    {"reward_model_quantization_bit", Fate::Ignored, "", kPreference},
    {"reward_model_type", Fate::Ignored, "", kPreference},
    {"ld_alpha", Fate::Ignored, "", kPreference},
    {"freeze_trainable_layers", Fate::Ignored, "", kFreeze},
    {"freeze_trainable_modules", Fate::Ignored, "", kFreeze},
    {"freeze_extra_modules", Fate::Ignored, "", kFreeze},
    {"module_dropout", Fate::Ignored, "", kOft},
    {"oft_rank", Fate::Ignored, "", kOft},
    {"oft_block_size", Fate::Ignored, "", kOft},
    {"oft_target", Fate::Ignored, "", kOft},
    {"image_max_pixels", Fate::Ignored, "", kMedia},
    {"image_min_pixels", Fate::Ignored, "", kMedia},
    {"image_do_pan_and_scan", Fate::Ignored, "", kMedia, nullptr, true},
    {"crop_to_patches", Fate::Ignored, "", kMedia, nullptr, true},
    {"video_max_pixels", Fate::Ignored, "", kMedia},
    {"video_min_pixels", Fate::Ignored, "", kMedia},
    {"video_fps", Fate::Ignored, "", kMedia},
    {"video_maxlen", Fate::Ignored, "", kMedia},
    {"use_audio_in_video", Fate::Ignored, "", kMedia, nullptr, true},
    {"audio_sampling_rate", Fate::Ignored, "", kMedia},
    {"media_dir", Fate::Ignored, "", kMedia},
    {"freeze_vision_tower", Fate::Ignored, "", kMedia, nullptr, true},
    {"freeze_multi_modal_projector", Fate::Ignored, "", kMedia, nullptr, true},
    {"freeze_language_model", Fate::Ignored, "", kMedia, nullptr, true},
    {"export_dir", Fate::Ignored, "", kExport},
    {"export_size", Fate::Ignored, "", kExport},
    {"export_device", Fate::Ignored, "", kExport},
    {"export_quantization_bit", Fate::Ignored, "", kExport},
    {"export_quantization_dataset", Fate::Ignored, "", kExport},
    {"export_quantization_nsamples", Fate::Ignored, "", kExport},
    {"export_quantization_maxlen", Fate::Ignored, "", kExport},
    {"export_legacy_format", Fate::Ignored, "", kExport, nullptr, true},
    {"export_hub_model_id", Fate::Ignored, "", kExport},
    {"export_hf_on_finish", Fate::Ignored, "", kExport},
    {"infer_backend", Fate::Ignored, "", kServing},
    {"offload_folder", Fate::Ignored, "", kServing},
    {"use_kv_cache", Fate::Ignored, "", kServing, nullptr, true},
    {"infer_dtype", Fate::Ignored, "", kServing},
    {"vllm_maxlen", Fate::Ignored, "", kServing},
    {"vllm_gpu_util", Fate::Ignored, "", kServing},
    {"vllm_enforce_eager", Fate::Ignored, "", kServing, nullptr, true},
    {"vllm_max_lora_rank", Fate::Ignored, "", kServing},
    {"vllm_config", Fate::Ignored, "", kServing},
    {"sglang_maxlen", Fate::Ignored, "", kServing},
    {"sglang_mem_fraction", Fate::Ignored, "", kServing},
    {"sglang_tp_size", Fate::Ignored, "", kServing},
    {"sglang_config", Fate::Ignored, "", kServing},
    {"sglang_lora_backend", Fate::Ignored, "", kServing},
    {"swanlab_project", Fate::Ignored, "", kTracker},
    {"swanlab_workspace", Fate::Ignored, "", kTracker},
    {"swanlab_run_name", Fate::Ignored, "", kTracker},
    {"swanlab_mode", Fate::Ignored, "", kTracker},
    {"swanlab_api_key", Fate::Ignored, "", kTracker},
    {"swanlab_logdir", Fate::Ignored, "", kTracker},
    {"swanlab_lark_webhook_url", Fate::Ignored, "", kTracker},
    {"swanlab_lark_secret", Fate::Ignored, "", kTracker},
    {"enable_torch_profiler", Fate::Ignored, "", kProfile, nullptr, true},
    {"profiler_output_dir", Fate::Ignored, "", kProfile},
    {"profiler_wait_steps", Fate::Ignored, "", kProfile},
    {"profiler_warmup_steps", Fate::Ignored, "", kProfile},
    {"profiler_active_steps", Fate::Ignored, "", kProfile},
    {"profiler_repeat", Fate::Ignored, "", kProfile},
    {"profiler_record_shapes", Fate::Ignored, "", kProfile, nullptr, true},
    {"profiler_profile_memory", Fate::Ignored, "", kProfile, nullptr, true},
    {"profiler_with_stack", Fate::Ignored, "", kProfile, nullptr, true},
    {"profile_modules", Fate::Ignored, "", kProfile},
    {"ray_num_workers", Fate::Ignored, "", kLauncher},
    {"ray_init_kwargs", Fate::Ignored, "", kLauncher},
    {"master_addr", Fate::Ignored, "", kLauncher},
    {"master_port", Fate::Ignored, "", kLauncher},
    {"ray_run_name", Fate::Ignored, "", kLauncher},
    {"ray_storage_path", Fate::Ignored, "", kLauncher},
    {"kt_cpu_activation", Fate::Ignored, "", kKt},
    {"kt_weight_path", Fate::Ignored, "", kKt},
    {"kt_non_expert_weight_path", Fate::Ignored, "", kKt},
    {"kt_expert_checkpoint_path", Fate::Ignored, "", kKt},
    {"kt_use_lora_experts", Fate::Ignored, "", kKt, nullptr, true},
    {"kt_lora_expert_num", Fate::Ignored, "", kKt},
    {"kt_lora_expert_intermediate_size", Fate::Ignored, "", kKt},
    {"kt_config", Fate::Ignored, "", kKt},
    {"quantization_method", Fate::Ignored, "", kQuantized},
    {"quantization_type", Fate::Ignored, "", kQuantized},
    {"double_quantization", Fate::Ignored, "", kQuantized, nullptr, true},
    {"quantization_device_map", Fate::Ignored, "", kQuantized},
    {"buffer_size", Fate::Ignored, "", kPreparation},
    {"overwrite_cache", Fate::Ignored, "", kPreparation, nullptr, true},
    {"preprocessing_batch_size", Fate::Ignored, "", kPreparation},
    {"preprocessing_num_workers", Fate::Ignored, "", kPreparation},
    {"eval_num_beams", Fate::Ignored, "", kPreparation},
    {"ignore_pad_token_for_loss", Fate::Ignored, "", kPreparation, nullptr, true},
    {"data_shared_file_system", Fate::Ignored, "", kPreparation, nullptr, true},
    {"do_sample", Fate::Ignored, "", kGeneration, nullptr, true},
    {"temperature", Fate::Ignored, "", kGeneration},
    {"top_p", Fate::Ignored, "", kGeneration},
    {"top_k", Fate::Ignored, "", kGeneration},
    {"num_beams", Fate::Ignored, "", kGeneration},
    {"max_length", Fate::Ignored, "", kGeneration},
    {"max_new_tokens", Fate::Ignored, "", kGeneration},
    {"repetition_penalty", Fate::Ignored, "", kGeneration},
    {"length_penalty", Fate::Ignored, "", kGeneration},
    {"skip_special_tokens", Fate::Ignored, "", kGeneration, nullptr, true},
    {"use_fast_tokenizer", Fate::Ignored, "", kToken, nullptr, true},
    {"low_cpu_mem_usage", Fate::Ignored, "", kToken, nullptr, true},
    {"hf_hub_token", Fate::Ignored, "", kToken},
    {"ms_hub_token", Fate::Ignored, "", kToken},
    {"om_hub_token", Fate::Ignored, "", kToken},
    {"print_param_status", Fate::Ignored, "", kToken, nullptr, true},
    {"trust_remote_code", Fate::Ignored, "", kToken, nullptr, true},
    {"flash_attn", Fate::Ignored, "", kSpeed},
    {"use_unsloth", Fate::Ignored, "", kSpeed, nullptr, true},
    {"use_unsloth_gc", Fate::Ignored, "", kSpeed, nullptr, true},
    {"enable_liger_kernel", Fate::Ignored, "", kSpeed, nullptr, true},
    {"use_reentrant_gc", Fate::Ignored, "", kSpeed, nullptr, true},
    {"upcast_layernorm", Fate::Ignored, "", kSpeed, nullptr, true},
    {"upcast_lmhead_output", Fate::Ignored, "", kSpeed, nullptr, true},
    {"use_v1_kernels", Fate::Ignored, "", kSpeed, nullptr, true},
    {"moe_aux_loss_coef", Fate::Ignored, "", kMethodOption},
    {"megatron_bridge_args", Fate::Ignored, "", kMethodOption},
    {"hyper_parallel_args", Fate::Ignored, "", kMethodOption},
    {"hyper_parallel_cp_size", Fate::Ignored, "", kMethodOption},
    {"asft_alpha", Fate::Ignored, "", kMethodOption},
    {"eaft_alpha", Fate::Ignored, "", kMethodOption},
    {"compute_accuracy", Fate::Ignored, "", kLogs, nullptr, true},
    {"plot_loss", Fate::Ignored, "", kLogs, nullptr, true},
    {"include_effective_tokens_per_second", Fate::Ignored, "", kLogs, nullptr, true},
    {"kt_config.**", Fate::Ignored, "", kKt},
    {"vllm_config.**", Fate::Ignored, "", kServing},
    {"sglang_config.**", Fate::Ignored, "", kServing},
    {"ray_init_kwargs.**", Fate::Ignored, "", kLauncher},
    {"resources_per_worker.**", Fate::Ignored, "", kLauncher},
    {"resources_per_worker", Fate::Ignored, "", kLauncher},
    {"placement_strategy", Fate::Ignored, "", kLauncher},
    {"tensor_model_parallel_size", Fate::Refused, "", "", parallel_size_rule},
    {"pipeline_model_parallel_size", Fate::Refused, "", "", parallel_size_rule},
    {"expert_model_parallel_size", Fate::Refused, "", "", parallel_size_rule},
    {"context_parallel_size", Fate::Refused, "", "", parallel_size_rule},
    {"sequence_parallel", Fate::Ignored, "", kMegatron},
    {"bias_activation_fusion", Fate::Ignored, "", kMegatron},
    {"apply_rope_fusion", Fate::Ignored, "", kMegatron},
    {"use_distributed_optimizer", Fate::Ignored, "", kMegatron},
    {"overlap_param_gather", Fate::Ignored, "", kMegatron},
    {"overlap_grad_reduce", Fate::Ignored, "", kMegatron},
    {"moe_grouped_gemm", Fate::Ignored, "", kMegatron},
    {"moe_token_dispatcher_type", Fate::Ignored, "", kMegatron},
    {"recompute_granularity", Fate::Ignored, "", kMegatron},
    {"use_packed_sequences", Fate::Ignored, "", kMegatron},
};

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
  constexpr std::string_view kCertain[] = {
      "stage",           "export_dir", "infer_backend", "template", "preprocessing_num_workers",
      "overwrite_cache", "plot_loss"};
  constexpr std::string_view kTypical[] = {"finetuning_type",    "cutoff_len",  "do_train", "dataset",
                                           "model_name_or_path", "lora_target", "val_size"};
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
    importer.find({.name = "fp8-with-quantization",
                   .where = bits->describe(),
                   .there = "LLaMA-Factory refuses fp8 together with quantization_bit",
                   .here = "keeps the frozen weights in FP8 instead"});
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
  static const std::vector<ToolKey> keys = joined_keys({kKeys, hf_training_keys()});
  static const Tool tool{.name = "LLaMA-Factory",
                         .word = "llamafactory",
                         .keys = keys,
                         .defaults = kDefaults,
                         .score = score,
                         .finish = finish};
  return tool;
}

}  // namespace octet
