#include "config/config.h"
#include "model/adapters.h"

namespace octet {
namespace {

using C = TrainConfig;

constexpr double kMaxCount = 1e12;  // of steps and the like: room to multiply in 64 bits

void add_model(KeyTable<C>& keys) {
  keys.group("Model");
  keys.add("model_preset", &C::model_preset,
           "Built-in architecture, trained from random weights, such as llama-tiny. Or a family (llama, "
           "qwen2, qwen3, mistral): then hidden_size, num_hidden_layers, num_attention_heads and "
           "vocab_size must be set.")
      .note("llama-tiny, unless model_name_or_path is set");
  keys.add("model_name_or_path", &C::model_name_or_path,
           "Start from these weights: a Hugging Face folder (GPT-2, Llama 3.x, Qwen2.5, Qwen3, Mistral), a "
           "hub id such as org/name, a checkpoint or a run. A config.json without weights sets the "
           "architecture; training then starts from random weights.");
  const auto size = [&](const char* name, int64_t C::*member, const char* help, const char* note) {
    keys.add(name, member, help).at_least(0).at_most(1 << 26).note(note);
  };
  size("hidden_size", &C::hidden_size, "Width of the model. Size keys need a start from random weights.",
       "the model's own");
  size("num_hidden_layers", &C::num_hidden_layers, "Number of layers.", "the model's own");
  size("num_attention_heads", &C::num_attention_heads, "Number of query heads.", "the model's own");
  size("num_key_value_heads", &C::num_key_value_heads, "Number of key/value heads, which query heads share.",
       "the model's own; num_attention_heads if the model has one per query head");
  size("head_dim", &C::head_dim, "Width of a head.",
       "hidden_size / num_attention_heads, unless the model has another");
  size("intermediate_size", &C::intermediate_size, "Inner width of the MLP.",
       "the model's own; if hidden_size is set, 4 x hidden_size for gpt2 and 8/3 x hidden_size, rounded "
       "up to a multiple of 128, for others");
  size("vocab_size", &C::vocab_size, "Number of token ids. The tokenizer must not have more.",
       "the model's own");
  size("max_position_embeddings", &C::max_position_embeddings, "Longest sequence that the model is made for.",
       "the model's own");
  keys.add("tie_word_embeddings", &C::tie_word_embeddings, {"auto", "true", "false"},
           "Whether the head shares the weights of the embedding. auto: as in the model.")
      .bools("true", "false");
}

void add_lora(KeyTable<C>& keys) {
  keys.group("LoRA");
  keys.add("finetuning_type", &C::finetuning_type, {"full", "lora"},
           "full: train all weights. lora: keep the weights as they are and train small adapters.")
      .bool_alias("use_lora", "lora", "full")
      .bool_alias("use_peft", "lora", "full")
      .note("full; lora if adapter_name_or_path is set");
  keys.add("lora_rank", &C::lora_rank, "Rank of the adapters.")
      .at_least(1)
      .at_most(kMaxLoraRank)
      .alias("lora_r");
  keys.add("lora_alpha", &C::lora_alpha,
           "The output of an adapter is multiplied by lora_alpha / lora_rank. 0: the default.")
      .at_least(-kMaxLoraAlpha)
      .at_most(kMaxLoraAlpha)
      .note("2 x lora_rank");
  keys.add("lora_dropout", &C::lora_dropout,
           "Share of the adapters' inputs that are set to 0 during training. 0 is the fastest.")
      .at_least(0)
      .below(1);
  keys.add("lora_target", &C::lora_target,
           "Modules that get an adapter: all (every matrix of the layers), Hugging Face names such as "
           "q_proj,v_proj or GPT-2's c_attn, or regular expressions for whole module names.")
      .alias("lora_target_modules")
      .alias("target_modules");
  keys.add(
      "use_rslora", &C::use_rslora,
      "rsLoRA: multiply the output of an adapter by lora_alpha / sqrt(lora_rank) instead of lora_alpha / lora_rank.");
  keys.add("loraplus_lr_ratio", &C::loraplus_lr_ratio,
           "LoRA+: learning rate of the B matrices as a multiple of that of the A matrices. 1: off.")
      .above(0)
      .at_most(1e6);
  keys.add("adapter_name_or_path", &C::adapter_name_or_path,
           "Start from this adapter: a PEFT folder, or a LoRA run or checkpoint of octet. Implies "
           "finetuning_type lora. lora_rank, lora_alpha, lora_target and use_rslora come from the adapter. "
           "They may be set too, but only to the same values.");
}

void add_data(KeyTable<C>& keys) {
  keys.group("Data");
  keys.add("dataset", &C::dataset,
           "Training data: demo (the built-in stories), a prepared folder, .bin token shards, a text, JSONL, "
           "JSON, CSV or Parquet file (or a folder or glob of them), a preset such as gsm8k, or a hub id "
           "such as org/name.")
      .note("demo");
  keys.add("eval_dataset", &C::eval_dataset,
           "Evaluation data, given like dataset. Without it, the share eval_split of the training data is "
           "held out.");
  keys.add("eval_dataset_split", &C::eval_dataset_split,
           "Read only the files of this split of eval_dataset, found by their names.")
      .note("all files except validation and test; dataset_split if eval_dataset is the same as dataset");
  keys.add("dataset_split", &C::dataset_split,
           "Read only the files of this split, found by their names: train, test, train_1M.")
      .alias("split")
      .note("all files except validation and test");
  keys.add("dataset_subset", &C::dataset_subset, "Configuration of a hub dataset, such as main.")
      .alias("dataset_config_name")
      .alias("subset");
  keys.add("dataset_revision", &C::dataset_revision, "Branch, tag or commit of a hub dataset.").note("main");
  keys.add("dataset_dir", &C::dataset_dir,
           "Folder with the files of a preset. They are then not taken from the cache or downloaded.")
      .alias("data_dir");
  keys.add("dataset_format", &C::dataset_format,
           {"auto", "text", "prompt_completion", "question_answer", "problem_solution", "alpaca", "sharegpt",
            "messages"},
           "What the columns of a record mean. auto decides by the first record.")
      .alias("formatting");
  keys.add("text_column", &C::text_column, "Column with the text. Implies dataset_format text.")
      .alias("dataset_text_field")
      .alias("text_field")
      .note("text");
  keys.add("prompt_column", &C::prompt_column, "Column with the prompt, if it has an unusual name.");
  keys.add("completion_column", &C::completion_column, "Column with the answer, if it has an unusual name.");
  keys.add("messages_column", &C::messages_column,
           "Column with the conversation, if it has an unusual name.");
  keys.add("chat_template", &C::chat_template, chat_template_names(),
           "How a conversation becomes text and special tokens. auto decides by the tokenizer.")
      .alias("template")
      .also("auto", {"default", "tokenizer_default"})
      .also("llama3", {"llama_3"})
      .also("llama3.1", {"llama31", "llama3_1", "llama3.2", "llama3.3"})
      .also("chatml", {"qwen", "qwen2", "qwen2.5", "qwen2_5", "qwen_25"})
      .also("llama2", {"llama_2"})
      .also("plain", {"empty", "none"});
  keys.add("default_system", &C::default_system,
           "System message for conversations that have none. auto: the one of the template. Empty: no system "
           "message.");
  keys.add("train_on", &C::train_on,
           "Where the loss is taken: completion (what the assistant says), all, or roles such as "
           "user,assistant. Plain text has no roles, so the loss is always taken on all of it.")
      .alias("loss_on")
      .bool_alias("train_on_prompt", "all", "completion")
      .bool_alias("train_on_inputs", "all", "completion")
      .bool_alias("completion_only_loss", "completion", "all");
  keys.add("on_error", &C::on_error, {"stop", "skip"},
           "What to do with a bad record (broken JSON, invalid UTF-8, a missing column): stop, or skip and "
           "count it.");
  keys.add("max_samples", &C::max_samples,
           "Maximum number of training examples. eval_dataset is always read whole. 0: all.")
      .at_least(0)
      .at_most(kMaxCount);
  keys.add("tokenizer", &C::tokenizer, "bytes, or the path of a tokenizer file or folder.")
      .alias("tokenizer_name_or_path")
      .note("the tokenizer of the prepared dataset or of model_name_or_path, else bytes");
  keys.add("max_seq_length", &C::max_seq_length, "Tokens per sequence. 0: the default.")
      .at_least(0)
      .at_most(1 << 24)
      .alias("cutoff_len")
      .alias("max_length")
      .alias("block_size")
      .alias("seq_len")
      .note("128 in the demo, else 1024; at most the model's positions");
  keys.add("packing", &C::packing, {"auto", "best_fit", "none", "stream"},
           "How documents fill sequences. best_fit: whole documents packed together, without attention "
           "between them. none: one document per sequence, padded. stream: all documents as one text, cut "
           "into sequences. auto: stream for .bin and .txt files, best_fit for all others.")
      .bools("best_fit", "none");
  keys.add("data_order", &C::data_order, {"shuffled", "random", "sequential"},
           "shuffled: every sequence once per epoch, in a new random order. random: like shuffled, but a "
           "stream is cut at new random places each time, which may overlap. sequential: in the order of the "
           "files.")
      .note("shuffled; random in the demo");
  keys.add("eval_split", &C::eval_split,
           "Share of the data held out for evaluation if there is no eval_dataset.")
      .at_least(0)
      .below(1)
      .alias("val_size");
  keys.add("shard_tokens", &C::shard_tokens, "Approximate number of tokens per shard of a prepared dataset.")
      .at_least(1)
      .at_most(kMaxCount);
  keys.add("cache_dir", &C::cache_dir, "Folder for datasets that octet train prepares itself.")
      .note("$XDG_CACHE_HOME/octet or ~/.cache/octet");
}

void add_batch_and_length(KeyTable<C>& keys) {
  keys.group("Batch");
  keys.add("per_device_train_batch_size", &C::per_device_train_batch_size,
           "Sequences per micro-step on each device.")
      .at_least(1)
      .at_most(1 << 20)
      .alias("batch_size")
      .alias("micro_batch_size");
  keys.add("gradient_accumulation_steps", &C::gradient_accumulation_steps,
           "Micro-steps per optimizer step. Their gradients are summed.")
      .at_least(1)
      .at_most(1 << 20)
      .alias("grad_accum_steps");
  keys.add(
          "target_effective_batch_size", &C::target_effective_batch_size,
          "Sequences per optimizer step, of all ranks together. Sets gradient_accumulation_steps. Must be a multiple of "
          "per_device_train_batch_size times the number of ranks. 0: off.")
      .at_least(0)
      .at_most(kMaxCount);
  keys.add("auto_batch_size", &C::auto_batch_size,
           "Use the largest per_device_train_batch_size (up to 4096) that fits the device. With "
           "gradient_checkpointing auto: the largest that fits without recomputation, if at least one "
           "sequence does.");
  keys.add("device_memory_limit_gb", &C::device_memory_limit_gb,
           "Memory that the run may use on each device, in GiB (2^30 bytes). 0, or more than the device has: "
           "all of it.")
      .at_least(0)
      .at_most(1e6);

  keys.group("Length");
  keys.add("max_steps", &C::max_steps, "Number of optimizer steps. 0: num_train_epochs decides.")
      .at_least(0)
      .at_most(kMaxCount)
      .alias("max_iters")
      .note("600 in the demo, else num_train_epochs decides");
  keys.add("num_train_epochs", &C::num_train_epochs,
           "Number of passes over the data. May be a fraction. 0: max_steps decides.")
      .at_least(0)
      .at_most(1e6)
      .alias("num_epochs")
      .alias("epochs")
      .note("1 if max_steps is not set");
}

void add_optimizer(KeyTable<C>& keys) {
  keys.group("Optimizer");
  keys.add("learning_rate", &C::learning_rate, "Peak learning rate of AdamW.")
      .at_least(0)
      .at_most(1e3)
      .alias("lr")
      .alias("max_lr")
      .note(
          "2e-4 with LoRA; 1e-5 if all weights of a given model are trained; 6e-4 from random weights, "
          "0.002 in the demo");
  keys.add("lr_scheduler_type", &C::lr_scheduler_type, {"cosine", "linear", "constant", "wsd"},
           "Shape of the learning rate after the warm-up. wsd: constant, then a decay over the last "
           "decay_ratio of the steps.")
      .alias("lr_scheduler");
  keys.add("warmup_steps", &C::warmup_steps, "Steps in which the learning rate rises from 0 to its peak.")
      .at_least(0)
      .at_most(kMaxCount)
      .alias("warmup_iters")
      .note("50 in the demo from random weights, else 0");
  keys.add("warmup_ratio", &C::warmup_ratio, "Length of the warm-up as a share of all steps.")
      .at_least(0)
      .at_most(1)
      .note("0.03 with LoRA or from given weights, else 0; 0 if warmup_steps is set");
  keys.add("min_lr_ratio", &C::min_lr_ratio,
           "Final learning rate as a share of the peak. Not used by constant.")
      .at_least(0)
      .at_most(1);
  keys.add("decay_ratio", &C::decay_ratio, "Length of the final decay of wsd as a share of all steps.")
      .at_least(0)
      .at_most(1);
  keys.add("weight_decay", &C::weight_decay, "Decoupled weight decay. Applies to matrices only.")
      .at_least(0)
      .at_most(1e3)
      .note("0 with LoRA, else 0.1");
  keys.add("adam_beta1", &C::adam_beta1, "Decay rate of AdamW's mean of the gradients.")
      .at_least(0)
      .below(1)
      .alias("beta1");
  keys.add("adam_beta2", &C::adam_beta2, "Decay rate of AdamW's mean of the squared gradients.")
      .at_least(0)
      .below(1)
      .alias("beta2");
  keys.add("adam_epsilon", &C::adam_epsilon, "Small number added to AdamW's denominator.")
      .above(0)
      .at_most(1);
  keys.add("max_grad_norm", &C::max_grad_norm,
           "Maximum global norm of the gradients. Larger gradients are scaled down to it. 0: off.")
      .at_least(0)
      .alias("grad_clip");
  keys.add("optimizer_state", &C::optimizer_state, {"fp32", "bf16", "fp8"},
           "Precision of AdamW's two moments. fp8: those of matrices are E4M3 with one scale per 128 values "
           "and stochastic rounding; they take 2 bytes per weight instead of 8.");
  keys.add(
      "master_weights", &C::master_weights, {"exact", "stochastic"},
      "How the optimizer stores BF16 matrices. exact: as fp32 (BF16 plus a 16-bit remainder). stochastic: as "
      "BF16 only, with stochastic rounding of the updates. A resumed run rounds the same way.");
  keys.add("penalty_type", &C::penalty_type, {"none", "z_loss", "entropy", "logit_l2"},
           "Term added to the loss. z_loss: square of log Z. entropy: penalizes confident predictions. "
           "logit_l2: mean square of the logits.");
  keys.add("penalty_weight", &C::penalty_weight, "Weight of the penalty_type term in the loss.").at_least(0);
}

void add_precision(KeyTable<C>& keys) {
  keys.group("Precision");
  keys.add("mixed_precision", &C::mixed_precision, {"fp8", "bf16", "fp32"},
           "Precision of the matrix products in the layers.")
      .bool_alias("use_fp8", "fp8", "bf16");
  keys.add("fp8_recipe", &C::fp8_recipe, {"delayed", "current", "block", "mxfp8"},
           "How FP8 scales are chosen. delayed: from a history of maxima per tensor. current: from the "
           "tensor itself. block: per block of 1x128 or 128x128 values. mxfp8: per block of 32 values, as "
           "powers of two.")
      .alias("fp8_scenario");
  keys.add("fp8_format", &C::fp8_format, {"hybrid", "e4m3", "e5m2"},
           "FP8 format. hybrid: E4M3 forward, E5M2 for gradients.");
  keys.add("fp8_margin", &C::fp8_margin,
           "For delayed and current: scales leave room for values up to 2^margin times the largest one seen.")
      .at_least(0)
      .at_most(16);
  keys.add("fp8_interval", &C::fp8_interval, "For delayed: steps between updates of the scales.")
      .at_least(1)
      .at_most(kMaxCount);
  keys.add("fp8_amax_history_len", &C::fp8_amax_history_len,
           "For delayed: length of the history of maxima, in updates of the scales.")
      .at_least(1)
      .at_most(1 << 16);
  keys.add("fp8_amax_compute", &C::fp8_amax_compute, {"max", "most_recent"},
           "For delayed: which part of the history sets the scale.")
      .alias("fp8_amax_compute_algo");
  keys.add("fp8_block_scales", &C::fp8_block_scales, {"pow2", "exact"},
           "For block: round scales to powers of two, or keep them exact.");
  keys.add("fp8_head", &C::fp8_head, "Run the output head in FP8, too.");
  keys.add("fp8_skip_layers", &C::fp8_skip_layers,
           "Layers that stay in BF16: names or globs (layers.0.*, *.mlp.down, *down_proj), first:N, last:N. "
           "'octet plan' lists the names.");
  keys.add("fp8_eval", &C::fp8_eval, "Evaluate in FP8 instead of BF16.");
  keys.add(
          "fp8_stats_steps", &C::fp8_stats_steps,
          "Steps between records of FP8 statistics (amax, scale, saturated and underflowed share). 0: never.")
      .at_least(0)
      .at_most(kMaxCount);
  keys.add("require_fp8", &C::require_fp8,
           "Fail if no layer can run in FP8. Otherwise the run warns and continues in BF16.");

  keys.group("Memory");
  keys.add("gradient_checkpointing", &C::gradient_checkpointing, {"auto", "none", "act", "mlp", "block"},
           "What backward recomputes instead of keeping. act: outputs of norms and activations. mlp: also "
           "the first product of the MLP. block: everything except the input of the block. auto: the first "
           "of none, act, mlp, block that fits the device. The results are bit-equal.")
      .bools("block", "none");
  keys.add("frozen_copies", &C::frozen_copies, {"auto", "two", "one"},
           "With LoRA: FP8 copies of a frozen matrix. two: the matrix and its transpose. one: the matrix "
           "only; backward transposes one layer at a time. auto: two if they fit the device.");
}

void add_ranks(KeyTable<C>& keys) {
  keys.group("Ranks");
  keys.add("sharding_mode", &C::sharding_mode, {"auto", "none", "zero1", "zero2", "fsdp_full", "hsdp"},
           "What the ranks of a run share instead of keeping a copy each. none: nothing. zero1: the state of "
           "the optimizer. zero2: gradients, too. fsdp_full: the weights of the layers, too. hsdp: fsdp_full "
           "inside each node, zero1 between nodes. auto: zero1 if there are several ranks, otherwise none.")
      .alias("sharding")
      .alias("zero_stage")
      .bool_alias("fsdp", "fsdp_full", "none")
      .also("none", {"ddp", "no_shard", "no", "zero0", "zero_0", "0"})
      .also("zero1", {"zero_1", "1"})
      .also("zero2", {"zero_2", "2", "shard_grad_op", "shard_grad_op auto_wrap"})
      .also("fsdp_full",
            {"fsdp", "fsdp2", "full", "full_shard", "full_shard auto_wrap", "zero3", "zero_3", "3"})
      .also("hsdp", {"hybrid", "hybrid_shard", "hybrid_shard auto_wrap"});
  keys.add("gradient_reduce_dtype", &C::gradient_reduce_dtype, {"bf16", "fp32"},
           "Precision of gradients on their way between ranks. They are always added in fp32.")
      .also("bf16", {"bfloat16"})
      .also("fp32", {"float32"});
  keys.add("check_ranks_steps", &C::check_ranks_steps,
           "Steps between checks that all ranks have the same weights. 0: never.")
      .at_least(0)
      .at_most(kMaxCount);
  keys.add(
          "comm_timeout", &C::comm_timeout,
          "End the run if no communication between ranks finishes for this many seconds within a step. A process "
           "without a sign of life ends it after 30 seconds, or after half of this if that is less.")
      .above(0)
      .at_most(1e9);
  keys.add("rendezvous_timeout", &C::rendezvous_timeout,
           "Seconds that ranks wait for each other at the start of the run.")
      .above(0)
      .at_most(1e9);
  keys.add("pretend_ranks", &C::pretend_ranks,
           "Run as the first of this many ranks, without the others: for memory and speed of one rank of "
           "many on a single device. The results are not those of a real run. 0: off.")
      .at_least(0)
      .at_most(1 << 16);
  keys.add("pretend_bandwidth_gb", &C::pretend_bandwidth_gb,
           "With pretend_ranks: bandwidth of the pretended communication, in GB per second.")
      .above(0)
      .at_most(1e6);
}

void add_run(KeyTable<C>& keys) {
  keys.group("Run");
  keys.add("output_dir", &C::output_dir, "Folder for runs.");
  keys.add("run_name", &C::run_name, "Folder of this run inside output_dir.")
      .note("made from the time and the model");
  keys.add("seed", &C::seed, "Random seed for the initial weights, the data order and the samples.")
      .at_least(0);
  keys.add("device", &C::device, {"auto", "cpu", "cuda"}, "Where to run. auto takes a GPU if there is one.");
  keys.add("deterministic", &C::deterministic, "Use only kernels that give the same bits every time.");
  keys.add("cuda_graphs", &C::cuda_graphs, {"auto", "on", "off"},
           "Record the kernels of a micro-step once and launch them as one graph after that. auto: only if a "
           "micro-step takes less than about 150 ms, because launch overhead matters then. Micro-batches of "
           "a new shape run kernel by kernel. With deterministic, the results are bit-equal.")
      .bools("on", "off");
  keys.add("num_threads", &C::num_threads, "CPU threads. 0: all cores.").at_least(0).at_most(4096);
  keys.add("logging_steps", &C::logging_steps, "Steps between lines on the console and in metrics.jsonl.")
      .at_least(1)
      .at_most(kMaxCount)
      .alias("log_freq")
      .note("20 in the demo, else 1");
  keys.add("eval_steps", &C::eval_steps, "Steps between evaluations. 0: only at the end.")
      .at_least(0)
      .at_most(kMaxCount)
      .alias("eval_freq");
  keys.add("eval_batches", &C::eval_batches, "Batches per evaluation. 0: all of the evaluation data.")
      .at_least(0)
      .at_most(kMaxCount)
      .alias("eval_iters");
  keys.add("sample_steps", &C::sample_steps, "Steps between samples of generated text. 0: never.")
      .at_least(0)
      .at_most(kMaxCount)
      .alias("sample_freq")
      .note("200 in the demo, else 0");
  keys.add("sample_prompt", &C::sample_prompt, "Prompt for the samples.")
      .note("'Mia has' in the demo, else 'Once upon a time'");
  keys.add("sample_tokens", &C::sample_tokens, "Tokens per sample.").at_least(1).at_most(1 << 20);
  keys.add("sample_temperature", &C::sample_temperature,
           "Sampling temperature of the samples. 0: always take the most likely token.")
      .at_least(0)
      .at_most(100);
  keys.add("dry_run", &C::dry_run, "Check everything, print the resolved configuration, and stop.")
      .not_dumped();
  keys.add("progress", &C::progress, {"auto", "bar", "plain", "quiet"},
           "How the console shows progress. auto: bar on a terminal, otherwise plain.");
}

void add_checkpoints(KeyTable<C>& keys) {
  keys.group("Checkpoints");
  keys.add("resume", &C::resume,
           "Continue from a checkpoint: latest, or the path of a checkpoint or run. latest means the run "
           "run_name, or the newest run in output_dir. Without a configuration file, the configuration of "
           "that run is used.")
      .alias("resume_from_checkpoint")
      .not_dumped();
  keys.add("checkpoint_dir", &C::checkpoint_dir, "Folder for checkpoints.")
      .note("checkpoints in the run's folder, checkpoints_fp8 when training in FP8");
  keys.add("save_strategy", &C::save_strategy, {"steps", "no"},
           "steps: save every save_steps, at the end, and when a signal stops the run. no: never save.");
  keys.add("save_steps", &C::save_steps, "Steps between checkpoints. 0: only at the end.")
      .at_least(0)
      .at_most(kMaxCount)
      .alias("checkpoint_freq")
      .alias("save_freq");
  keys.add("save_total_limit", &C::save_total_limit,
           "Number of checkpoints to keep, at least 2. The best and the latest are always kept. 0: keep all.")
      .at_least(0)
      .at_most(kMaxCount);
  keys.add("save_async", &C::save_async,
           "Write checkpoints while training continues. Training then only waits for a copy in host memory.");
  keys.add("use_tensorboard", &C::use_tensorboard,
           "Write TensorBoard event files into the folder of the run.");
}

}  // namespace

const KeyTable<TrainConfig>& train_keys() {
  static const KeyTable<TrainConfig> table = [] {
    KeyTable<TrainConfig> keys;
    add_model(keys);
    add_lora(keys);
    add_data(keys);
    add_batch_and_length(keys);
    add_optimizer(keys);
    add_precision(keys);
    add_ranks(keys);
    add_run(keys);
    add_checkpoints(keys);
    return keys;
  }();
  return table;
}

}  // namespace octet
