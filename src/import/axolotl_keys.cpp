// Axolotl's keys that need no thought.

#include "import/axolotl.h"

namespace octet {

std::string_view axolotl_keys() {
  return R"(
sequence_len=max_seq_length micro_batch_size=per_device_train_batch_size gradient_accumulation_steps
  num_epochs=num_train_epochs cosine_min_lr_ratio=min_lr_ratio warmup_ratio weight_decay adam_beta1 adam_beta2
  adam_epsilon max_grad_norm seed generation_max_new_tokens=sample_tokens generation_temperature=sample_temperature
  use_tensorboard ddp_timeout=comm_timeout default_system_message=default_system : mapped
batch_size : derived, gives gradient_accumulation_steps
dp_shard_size dp_replicate_size : derived, gives sharding_mode
datasets.*.path datasets.*.type datasets.*.type.* datasets.*.split datasets.*.name datasets.*.revision
  datasets.*.data_files datasets.*.field datasets.*.text_column datasets.*.field_messages
  datasets.*.message_field_role datasets.*.message_field_content datasets.*.chat_template datasets.*.conversation
  datasets.*.train_on_split test_datasets.*.path test_datasets.*.split test_datasets.*.name test_datasets.*.data_files
  pretraining_dataset pretraining_dataset.*.path pretraining_dataset.*.type pretraining_dataset.*.split
  pretraining_dataset.*.name pretraining_dataset.*.text_column pretraining_dataset.*.field
  pretraining_dataset.*.data_files : derived, used with the dataset
test_datasets.*.type test_datasets.*.type.* : derived, as in datasets
auto_find_batch_size activation_offloading low_cpu_mem_usage experimental_skip_move_to_device
  qlora_sharded_model_loading device_map.** max_memory.** torch_empty_cache_steps gc_steps gc_collect_steps tiled_mlp
  tiled_mlp_num_shards tiled_mlp_use_original_mlp lora_on_cpu : ignored, octet plans all memory before the first step
fp8_enable_fsdp_float8_all_gather : ignored, octet always gathers FP8 codes in an FP8 run
fsdp_version local_rank world_size ddp ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers use_ray
  ray_run_name ray_num_workers resources_per_worker.**
  : ignored, octet starts and connects its ranks in its own way, see docs/ranks.md
bnb_config_kwargs.** model_quantization_config_kwargs.** : ignored, only with 4-bit weights, which octet does not have
peft_layers_pattern datasets.*.template_thinking_key datasets.*.temperature datasets.*.shards_idx
  datasets.*.input_format datasets.*.max_completion_length datasets.*.train_on_last_step_only max_prompt_len
  pose_split_on_token_ids pose_max_context_len pose_num_chunks adam_beta3 adam_epsilon2 dion_lr dion_momentum
  dion_rank_fraction dion_rank_multiple_of qgalore_rank qgalore_update_proj_gap qgalore_scale qgalore_proj_type
  qgalore_proj_quant qgalore_proj_bits qgalore_proj_group_size qgalore_cos_threshold qgalore_gamma_proj
  qgalore_queue_size scaling_softmax_factor scaling_softmax_bias loraplus_lr_embedding gptq_disable_exllama
  bench_dataset bench_split lm_eval_batch_size lm_eval_post_train lm_eval_model heads_k_stride ring_attn_func
  relora_prune_ratio relora_prune_method relora_cpu_offload jagged_restart_warmup_steps jagged_restart_anneal_steps
  lisa_step_interval lisa_layers_attribute eaft_alpha eaft_k spectrum_model_name kd_beta
  : ignored, only with a method or an optimizer that octet does not have
datasets.*.ds_type datasets.*.preprocess_shards test_datasets.*.ds_type shuffle_merged_datasets dataset_prepared_path
  eval_sample_packing pad_to_sequence_len pad_to_multiple_of sample_packing_eff_est sample_packing_seq_len_multiplier
  sample_packing_sequentially sample_packing_group_size sample_packing_bin_size sample_packing_mp_start_method
  multipack_real_batches batch_flattening streaming_multipack_buffer_size pretrain_multipack_buffer_size
  skip_position_ids total_num_tokens total_supervised_tokens shuffle_before_merging_datasets dataset_processes
  dataset_num_proc dataloader_pin_memory dataloader_num_workers dataloader_prefetch_factor preprocess_iterable
  num_dataset_shards_to_save dataset_keep_in_memory dataloader_drop_last skip_prepare_dataset remove_unused_columns
  streaming pretrain_multipack_attn accelerator_config.**
  : ignored, octet prepares, packs and loads data in its own way
datasets.*.trust_remote_code pretraining_dataset.*.trust_remote_code base_model_config tokenizer_type cls_model_config
  tokenizer_use_fast tokenizer_legacy tokenizer_save_jinja_files trust_remote_code base_model_ignore_patterns
  is_falcon_derived_model is_llama_derived_model is_mistral_derived_model is_qwen_derived_model hf_use_auth_token
  lora_fan_in_fan_out peft_ensure_weight_tying
  : ignored, octet takes the model and its tokenizer as their files say, and runs no code of them
datasets.** : ignored, no data is named
test_datasets.** : ignored, as in datasets
eot_tokens : ignored, octet trains the token that ends each message of the template
strict full_finetune is_preprocess axolotl_config_path test_value torchdistx_path : ignored, no setting
device : ignored, octet takes a GPU if there is one
torch_dtype : ignored, octet stores weights as BF16 plus a 16-bit remainder
eval_sequence_len eval_batch_size : ignored, evaluation takes the batch of training and reports the loss
tf32 : ignored, octet has no TF32 products: they are BF16, FP8 or fp32
fp32_norms fp32_norm_classes : ignored, octet computes norms in fp32
embeddings_skip_upcast : ignored, octet keeps the embedding in BF16 with exact updates
torch_compile torch_compile_backend torch_compile_mode torch_compile_options.** deepcompile flash_attention
  xformers_attention sdp_attention eager_attention flex_attention large_head_attention flash_attn_d512 sdpa_varlen
  flex_attn_compile_kwargs.** flash_optimum fused_attn_kernel flash_attn_cross_entropy flash_attn_rms_norm
  flash_attn_fuse_mlp flash_attn_fuse_qkv lora_mlp_kernel lora_qkv_kernel lora_o_kernel lora_embedding_kernel
  liger_rope liger_rms_norm liger_rms_norm_gated liger_layer_norm liger_swiglu liger_glu_activation
  liger_cross_entropy liger_fused_linear_cross_entropy liger_use_token_scaling cut_cross_entropy chunked_cross_entropy
  chunked_cross_entropy_num_chunks use_kernels unsloth_cross_entropy_loss unsloth_lora_mlp unsloth_lora_qkv
  unsloth_lora_o unsloth_rms_norm unsloth_rope : ignored, octet has its own kernels
gradient_checkpointing_kwargs.** selective_checkpointing.** : ignored, octet chooses itself what to recompute
peft_autocast_adapter_dtype : ignored, octet keeps adapters in fp32
merge_lora merge_method : ignored, use 'octet export RUN --merge'
save_only_model save_safetensors save_first_step dynamic_checkpoint.** fsdp_final_state_dict_type
  : ignored, octet saves in its own way, and can always resume
load_best_model_at_end metric_for_best_model greater_is_better
  : ignored, octet keeps the checkpoint with the lowest evaluation loss, and the last ones
loss_watchdog_threshold loss_watchdog_patience profiler_steps profiler_steps_start include_tokens_per_second
  include_tkps debug : ignored, octet logs to the console, metrics.jsonl and TensorBoard
num_generation_samples generation_top_p generation_top_k generation_prompt_ratio generation_do_sample eval_table_size
  eval_max_new_tokens gradio_title gradio_share gradio_server_name gradio_server_port gradio_max_new_tokens
  gradio_temperature vllm.** : ignored, for inference; see 'octet generate'
mean_resizing_embeddings : ignored, octet does not change the size of the vocabulary
layer_offloading : warned, octet keeps all layers on the GPU, the frozen ones in FP8
wandb_watch : warned, gradients and weights are not sent to W&B; FP8 statistics are
wandb_run_id : warned, octet keeps the id in the folder of the run; set WANDB_RUN_ID to choose it
wandb_log_model : warned, checkpoints are not sent to W&B
datasets.*.split_thinking : warned, octet trains the content as it is
datasets.*.drop_system_message : warned, octet keeps system messages; remove them from the data
datasets.*.shards : warned, octet reads all of it; set max_samples to read less
pretraining_dataset.*.skip : warned, octet skips no examples
min_sample_len : warned, octet trains on short examples, too
group_by_length : warned, octet does not sort by length; the order stays random
chat_template_kwargs.** : warned, arguments of a Jinja template; octet's templates take none
dataset_exact_deduplication : warned, octet removes no duplicates; remove them from the file before training
push_dataset_to_hub : warned, octet uploads nothing
sage_attention : warned, quantised attention; octet's attention runs in BF16
early_stopping_patience : warned, octet does not stop early; it keeps the best checkpoint
do_causal_lm_eval eval_causal_lm_metrics do_bench_eval : warned, octet evaluates the loss only
lm_eval_tasks : warned, run lm-eval on the folder that 'octet export' writes
use_mlflow mlflow_tracking_uri mlflow_experiment_name mlflow_run_name hf_mlflow_log_artifacts use_comet
  comet_project_name comet_api_key comet_workspace comet_experiment_key comet_mode comet_online
  comet_experiment_config.** use_trackio trackio_project_name trackio_run_name trackio_space_id use_swanlab
  swanlab_project swanlab_experiment_name swanlab_description swanlab_mode swanlab_workspace swanlab_api_key
  swanlab_log_model swanlab_web_host swanlab_api_host swanlab_lark_webhook_url swanlab_lark_secret
  swanlab_log_completions swanlab_completion_log_interval swanlab_completion_max_buffer use_otel_metrics
  otel_metrics_host otel_metrics_port
  : warned, octet sends nothing there; metrics are in metrics.jsonl and TensorBoard files
hub_model_id hub_strategy hub_revision : warned, octet uploads nothing; use the folder that 'octet export' writes
lr_quadratic_warmup : warned, octet's warm-up is linear
peft_layers_to_transform : refused, octet gives every layer adapters; use a regular expression in lora_target_modules
datasets.*.data_files.* : refused, give each file an entry of its own in datasets
datasets.*.chat_template_jinja chat_template_jinja : refused, octet has templates of its own; see chat_template
datasets.*.message_field_training_detail : refused, octet takes the loss on whole messages, not on parts of one
datasets.*.field_human datasets.*.field_model : refused, octet reads lists of messages, or prompt_completion columns
datasets.*.field_chosen datasets.*.field_rejected : refused, a dataset of preferences; octet trains on next tokens
datasets.*.logprobs_field kd_trainer kd_ce_alpha kd_alpha kd_temperature : refused, octet has no distillation
datasets.*.input_transform : refused, names a Python function
datasets.*.step_separator : refused, a dataset of rewards; octet trains on next tokens
added_tokens_overrides.** : refused, octet does not rename reserved tokens; edit tokenizer.json instead
processor_type processor_kwargs.** : refused, an image or audio processor: octet trains text models only
model_config.** : refused, changes fields of the model's config.json, such as MoE outputs; edit config.json instead
overrides_of_model_config.** : refused, changes fields of the model's config.json; edit config.json instead
overrides_of_model_kwargs.** : refused, passes arguments to a Python class
rope_scaling.** : refused, removed from Axolotl; set rope_scaling in the model's config.json
dataset_shard_num dataset_shard_idx
  : refused, trains on a part of the data; use max_samples, or write the part to a file
use_pose : refused, PoSE trains on shifted positions; octet has no such thing
optim_args.** : refused, arguments of another optimizer
optim_target_modules : refused, chooses matrices for GaLore; octet has AdamW only
cosine_constant_lr_ratio : refused, keeps the cosine constant at its end; use lr_scheduler_type wsd in octet
lr_div_factor : refused, belongs to the one_cycle schedule, which octet does not have
lr_groups.** embedding_lr embedding_lr_scale
  : refused, octet has one learning rate for all weights (and loraplus_lr_ratio)
s2_attention : refused, shifted sparse attention; octet has full attention only
scaling_softmax : refused, changes the attention scores; octet has no such thing
lora_modules_to_save
  : refused, octet trains no whole modules next to adapters; train with adapter empty, or drop the modules
lora_on_experts use_scattermoe use_sonicmoe quantize_moe_experts experts_implementation llama4_linearized_experts
  expert_parallel_num_nvl_bytes expert_parallel_token_capacity expert_parallel_backend expert_backend
  moe_grouped_backend dense_mixer use_dsv4_kernels dsv4_fp4_grouped_mode use_glm_dsa_kernels nvfp4_merge_aware
  nonexpert_quantization : refused, octet has no mixture of experts
lora_target_parameters : refused, adapters for stacked expert weights: octet has no mixture of experts
lora_rank_pattern.** lora_alpha_pattern.** : refused, octet gives all new adapters one rank and one alpha
peft_use_dora : refused, octet has LoRA, not DoRA
peft_layer_replication : refused, octet does not repeat layers
peft_trainable_token_indices : refused, octet trains no embedding rows next to adapters
peft.** loftq_config.** : refused, LoftQ changes the base weights; octet keeps them
gptq gptq_groupsize gptq_model_v1
  : refused, octet reads BF16, fp16 and fp32 weights, not GPTQ; name the original model
rl trl.** reward_model process_reward_model rl_beta orpo_alpha kto_desirable_weight kto_undesirable_weight simpo_gamma
  cpo_alpha rpo_alpha dpo_beta dpo_use_weighting dpo_label_smoothing dpo_loss_type dpo_loss_weights dpo_norm_loss
  dpo_use_logits_to_keep dpo_generate_during_eval dpo_use_liger_kernel dpo_padding_free precompute_ref_log_probs
  center_rewards_coefficient num_labels ebft.** nemo_gym_enabled
  : refused, octet trains on next tokens; it has no preference training, reward models or RL
freeze_mm_modules image_size image_resize_algorithm role_boundaries.** : refused, octet trains text models only
gemma4_hybrid_attn_impl : refused, Gemma is not a family that octet trains
tokenizer_use_mistral_common
  : refused, octet reads tokenizer.json and tokenizer.model, not Mistral's own tokenizer files
neftune_noise_alpha noisy_embedding_alpha : refused, octet adds no noise to embeddings
qat.** : refused, quantisation-aware training; octet trains in FP8 instead (mixed_precision: fp8)
quantization.** : refused, quantises the finished model; use another tool on the folder that 'octet export' writes
unfrozen_parameters : refused, octet trains all weights or adapters, not a selection of weights
relora relora_steps : refused, octet has LoRA, not ReLoRA
jagged_restart_steps : refused, octet's learning rate does not restart
lisa_n_layers : refused, LISA trains changing layers; octet has full training and LoRA
diffusion.** : refused, a diffusion language model; octet trains next-token prediction
resize_token_embeddings_to_32x shrink_embeddings : refused, octet does not change the size of the vocabulary
fix_untrained_tokens : refused, octet does not edit embeddings before training
use_onebitllms : refused, 1.58-bit training; octet trains in FP8 or BF16
use_eaft : refused, weights the loss by entropy; octet has plain cross entropy (see penalty_type)
llmcompressor.** : refused, keeps pruned weights at zero; octet has no sparse training
spectrum_top_fraction : refused, Spectrum trains a selection of weights; octet trains all weights or adapters
grokfast_alpha grokfast_lamb : refused, Grokfast changes the gradients; octet has no such thing
mora.** : refused, MoRA; octet has LoRA
hatchery.** : refused, trains on a remote service
trainer_cls : refused, names a Python class
learning_rate lr=learning_rate lr_scheduler_kwargs.min_lr_rate=min_lr_ratio : mapped
lr_scheduler_kwargs.num_cycles : 0.5 off ignored, half a cosine, as in octet
  | refused, octet's cosine schedule is half a wave
lr_scheduler_kwargs.** : refused, octet's schedules take min_lr_ratio and decay_ratio only
reinit_weights
  : refused, to start from random weights, name a folder with config.json alone as model_name_or_path, or set model_preset
revision_of_model : off main ignored, main: the newest
  | refused, octet takes the main revision; download this one and name its folder
fp8 : off ignored, off | -> mixed_precision fp8
attn_implementation : fp8 warned, FP8 attention there; octet's attention runs in BF16 | ignored, octet has its own kernels
auto_resume_from_checkpoints : warned, octet starts a new run; add '--resume latest' to continue one
generate_samples : off ignored, off | -> sample_steps 100, samples of text during training
adapter : off -> finetuning_type full | lora -> finetuning_type
  | qlora -> finetuning_type lora, octet has no 4-bit weights: the frozen ones are FP8
  | refused, octet has adapters of the type lora only
peft_init_lora_weights : true ignored, octet initialises adapters like PEFT
  | refused, octet initialises adapters like PEFT's default: A uniform, B zero
datasets.*.train_on_eos datasets.*.train_on_eot : off turn ignored, octet trains the token that ends each trained message
  | warned, octet trains the token that ends each trained message, and no other end
excess_length_strategy : warned, octet cuts a long document into pieces of max_seq_length and trains on all of them
sample_packing : off -> packing none | -> packing best_fit
max_packed_sequence_len : off ignored, off | -> packing best_fit, removed from Axolotl, which has sample_packing now
pretraining_sample_concatenation : off ignored, off | -> packing stream
curriculum_sampling : off ignored, off: shuffled | -> data_order sequential
special_tokens.pad_token tokens.pad_token special_tokens.unk_token tokens.unk_token
  : ignored, padding is never a target, and octet uses the tokenizer's own unknown token
special_tokens.eos_token tokens.eos_token special_tokens.bos_token tokens.bos_token
  : warned, octet uses the tokenizer's own; this one is usually the same
special_tokens.** tokens.** : refused, octet adds no tokens to a vocabulary; add them to tokenizer and model first
eval_strategy evaluation_strategy : no false -> eval_strategy no | steps epoch -> eval_strategy
  | refused, expected steps, epoch or no
save_strategy : no steps epoch -> save_strategy | false -> save_strategy no, YAML reads an unquoted no as false
  | best -> save_strategy steps, the best checkpoint is always kept | refused, expected steps, epoch, best or no
save_total_limit : null -> save_total_limit 0, all checkpoints are kept
  | 1 -> save_total_limit 2, octet keeps the last two, so that one is always complete | -> save_total_limit
resume_from_checkpoint : off ignored, a new run | true -> resume latest
  | refused, checkpoints of other programs cannot be resumed; start from their weights with model_name_or_path
)";
}

}  // namespace octet
