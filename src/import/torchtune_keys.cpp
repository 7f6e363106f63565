// torchtune's keys that octet ignores or refuses whatever else is set.

#include "import/torchtune.h"

namespace octet {
namespace {

constexpr KeyGroup kGroups[] = {
    {"model.vocab_size model.num_layers model.num_heads model.num_kv_heads model.embed_dim model.max_seq_len "
     "model.intermediate_dim model.attn_dropout model.norm_eps model.rope_base model.scale_factor "
     "model.tie_word_embeddings model.head_dim",
     Fate::Ignored, "config.json of the model's folder says it"},
    {"tokenizer.merges_file tokenizer.vocab_path tokenizer.merges_path tokenizer.special_tokens "
     "tokenizer.special_tokens_path tokenizer.truncation_type",
     Fate::Ignored, "octet takes the tokenizer from the model's folder"},
    {"tokenizer.max_num_tiles", Fate::Ignored, "part of image_size"},
    {"checkpointer.checkpoint_files.filename_format checkpointer.checkpoint_files.max_filename "
     "checkpointer.model_type checkpointer.safe_serialization",
     Fate::Ignored, "octet finds the files of the folder itself"},
    {"checkpointer.output_dir", Fate::Ignored, "output_dir says it"},
    {"checkpointer.recipe_checkpoint checkpointer.adapter_checkpoint checkpointer.should_load_recipe_state",
     Fate::Ignored, "only for resume_from_checkpoint"},
    {"checkpointer.enable_dcp enable_async_checkpointing use_distributed_state_dict", Fate::Ignored,
     "octet writes checkpoints while it trains"},
    {"save_adapter_weights_only", Fate::Ignored, "octet saves adapters without their base"},
    {"save_every_n_epochs", Fate::Ignored, "octet saves at the end of every epoch"},
    {"optimizer.fused optimizer.foreach optimizer_in_bwd optimizer.amsgrad optimizer.capturable",
     Fate::Ignored, "octet has its own fused AdamW"},
    {"compile compile.** use_flex", Fate::Ignored, "octet is compiled already"},
    {"loss.num_output_chunks loss.ignore_index loss.mask_pre_projection", Fate::Ignored,
     "a detail of the cross entropy there"},
    {"ac_mode ac_option memory_efficient_fsdp_wrap", Fate::Ignored, "octet chooses itself what to recompute"},
    {"enable_activation_offloading activation_offloading_use_streams", Fate::Ignored,
     "octet recomputes activations instead of moving them to the CPU"},
    {"low_cpu_ram", Fate::Ignored, "octet reads weights in pieces, straight to their place"},
    {"custom_sharded_layers fsdp_sharding_strategy", Fate::Ignored, "octet shards layer by layer"},
    {"tensor_parallel_plan tensor_parallel_plan.**", Fate::Ignored, "part of tensor_parallel_dim"},
    {"batch_size_val", Fate::Ignored, "octet evaluates with the training batch"},
    {"profiler.** profile_memory", Fate::Ignored, "octet writes its own timings to metrics.jsonl"},
    {"metric_logger.**", Fate::Ignored, "part of metric_logger"},
    {"log_peak_memory_stats log_level", Fate::Ignored, "concerns the other tool's log"},
    {"name base_model_path", Fate::Ignored, "used by other values of the file"},
    {"resize_token_embeddings", Fate::Refused, "octet does not change the size of the vocabulary"},
    {"quantizer quantizer.** fake_quant_after_n_steps", Fate::Refused,
     "quantisation-aware training; octet trains in FP8 instead (mixed_precision: fp8)"},
    {"teacher_model.** teacher_checkpointer.** kd_ratio kd_loss.**", Fate::Refused,
     "octet has no distillation"},
    {"model.decoder_trainable model.encoder_trainable model.fusion_trainable model.image_size tokenizer.image_size",
     Fate::Refused, "octet trains text models only"},
    {"collate_fn", Fate::Refused, "names a Python function, here for images or preferences"},
    {"datasets.** dataloader.**", Fate::Refused,
     "a recipe in development, for images; name the data with dataset"},
    {"forward_batch_size max_generated_tokens ppo_epochs ppo_batch_size num_steps loss.epsilon loss.kl_coeff "
     "loss.beta loss.label_smoothing policy_model.** reward_and_value_model.** ref_policy_checkpointer.** "
     "ref_checkpointer.** value_checkpointer.** reward_checkpointer.** reward_functions.** orchestration.** "
     "inference.** postprocessing.** training.** whiten_rewards kl_coeff gamma lmbda grpo_samples",
     Fate::Refused, "octet trains on next tokens; it has no preference training, reward models or RL"},
    {"max_new_tokens prompt prompt.** top_k instruct_template chat_format enable_kv_cache", Fate::Refused,
     "a file for generation; use 'octet generate'"},
    {"tasks limit", Fate::Refused,
     "a file for evaluation; use 'octet eval', or lm-eval on an exported folder"},
};

}  // namespace

std::span<const KeyGroup> torchtune_groups() {
  return kGroups;
}

}  // namespace octet
