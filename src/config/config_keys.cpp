#include "config/config.h"

namespace octet {
namespace {

using C = TrainConfig;

constexpr double kMaxCount = 1e12;  // of steps and the like: room to multiply in 64 bits

void add_model_and_data(KeyTable<C>& keys) {
  keys.group("Model");
  keys.add("model_preset", &C::model_preset,
           "A built-in architecture, trained from random weights, such as llama-tiny; or a family (llama, "
           "qwen2, "
           "qwen3, mistral) of which hidden_size, num_hidden_layers, num_attention_heads and vocab_size are "
           "given.")
      .note("llama-tiny unless model_name_or_path is given");
  keys.add(
      "model_name_or_path", &C::model_name_or_path,
      "Whose weights are the start: a Hugging Face folder (GPT-2, Llama 3.x, Qwen2.5, Qwen3, Mistral), a hub "
      "id such as org/name, a checkpoint or a run. A folder with config.json alone, or the file itself, "
      "gives "
      "the architecture; its weights are random.");
  const auto size = [&](const char* name, int64_t C::*member, const char* help, const char* note) {
    keys.add(name, member, help).at_least(0).at_most(1 << 26).note(note);
  };
  size("hidden_size", &C::hidden_size, "Width of the model. Sizes need a start from random weights.",
       "the model's own");
  size("num_hidden_layers", &C::num_hidden_layers, "Number of layers.", "the model's own");
  size("num_attention_heads", &C::num_attention_heads, "Number of query heads.", "the model's own");
  size("num_key_value_heads", &C::num_key_value_heads, "Number of key/value heads, which query heads share.",
       "the model's own; num_attention_heads where that is one head for each");
  size("head_dim", &C::head_dim, "Width of a head.",
       "hidden_size / num_attention_heads, unless the model has another");
  size("intermediate_size", &C::intermediate_size, "Inner width of the MLP.",
       "the model's own; with hidden_size given 4 x that for gpt2, 8/3 x that in whole 128s for others");
  size("vocab_size", &C::vocab_size, "Number of token ids, at least as many as the tokenizer has.",
       "the model's own");
  size("max_position_embeddings", &C::max_position_embeddings,
       "The longest sequence that the model is made for.", "the model's own");
  keys.add("tie_word_embeddings", &C::tie_word_embeddings, {"auto", "true", "false"},
           "Whether the head is the embedding; auto is the model's own choice.")
      .bools("true", "false");

  keys.group("Data");
  keys.add("dataset", &C::dataset,
           "What to train on: demo (the built-in stories), a prepared folder, .bin token shards, text, "
           "JSONL, JSON, "
           "CSV or Parquet (a file, a folder or a glob), a preset such as gsm8k, or a hub id org/name.")
      .note("demo");
  keys.add("eval_dataset", &C::eval_dataset,
           "What to evaluate on, given as dataset is. Without it, eval_split of the data is held out.");
  keys.add("eval_dataset_split", &C::eval_dataset_split,
           "Files of this split of eval_dataset only, by their names.")
      .note("all but validation and test; dataset_split where eval_dataset is dataset");
  keys.add("dataset_split", &C::dataset_split,
           "Files of this split only, by their names: train, test, train_1M.")
      .alias("split")
      .note("all but validation and test");
  keys.add("dataset_subset", &C::dataset_subset, "The configuration of a hub dataset, such as main.")
      .alias("dataset_config_name")
      .alias("subset");
  keys.add("dataset_revision", &C::dataset_revision, "Branch, tag or commit of a hub dataset.").note("main");
  keys.add("dataset_dir", &C::dataset_dir,
           "Folder with the files of a preset, instead of the cache and a download.")
      .alias("data_dir");
  keys.add("dataset_format", &C::dataset_format,
           {"auto", "text", "prompt_completion", "question_answer", "problem_solution", "alpaca", "sharegpt",
            "messages"},
           "What the columns of a record mean; auto decides by the first record.")
      .alias("formatting");
  keys.add("text_column", &C::text_column, "The column with the text; implies dataset_format text.")
      .alias("dataset_text_field")
      .alias("text_field")
      .note("text");
  keys.add("prompt_column", &C::prompt_column, "The column with the prompt, where it has another name.");
  keys.add("completion_column", &C::completion_column,
           "The column with the answer, where it has another name.");
  keys.add("messages_column", &C::messages_column,
           "The column with the conversation, where it has another name.");
  keys.add("chat_template", &C::chat_template, {"auto", "llama3", "llama3.1", "chatml", "alpaca", "plain"},
           "How a conversation becomes text and special tokens; auto decides by the tokenizer.")
      .alias("template");
  keys.add("default_system", &C::default_system,
           "System message of conversations without one: auto is the template's own, empty none.");
  keys.add("train_on", &C::train_on,
           "Where the loss is taken: completion (what the assistant says), all, or roles such as "
           "user,assistant. "
           "Plain text has no roles: all of it counts.")
      .alias("loss_on")
      .bool_alias("train_on_prompt", "all", "completion")
      .bool_alias("train_on_inputs", "all", "completion")
      .bool_alias("completion_only_loss", "completion", "all");
  keys.add("on_error", &C::on_error, {"stop", "skip"},
           "At a bad record (broken JSON, invalid UTF-8, a missing column): stop, or count it and go on.");
  keys.add("max_samples", &C::max_samples,
           "Examples to train on at most; eval_dataset is read whole. 0: all.")
      .at_least(0)
      .at_most(kMaxCount);
  keys.add("tokenizer", &C::tokenizer, "bytes, or the path of a tokenizer file or folder.")
      .alias("tokenizer_name_or_path")
      .note("that of the prepared dataset or of model_name_or_path, else bytes");
  keys.add("max_seq_length", &C::max_seq_length, "Tokens per sequence. 0 takes the default.")
      .at_least(0)
      .at_most(1 << 24)
      .alias("cutoff_len")
      .alias("max_length")
      .alias("block_size")
      .alias("seq_len")
      .note("128 in the demo, else 1024; at most the model's positions");
  keys.add("packing", &C::packing, {"auto", "best_fit", "none", "stream"},
           "How documents fill sequences: best_fit packs whole documents that do not see each other, none "
           "pads each "
           "to a sequence of its own, stream cuts all of them as one text. auto: best_fit, and stream for "
           ".bin and "
           ".txt files.")
      .bools("best_fit", "none");
  keys.add(
          "data_order", &C::data_order, {"shuffled", "random", "sequential"},
          "shuffled: every sequence once in each epoch, in an order drawn for it; random: as shuffled, but a "
          "stream is cut at places drawn anew each time, which may overlap; sequential: as they stand in the "
          "files.")
      .note("shuffled; random in the demo");
  keys.add("eval_split", &C::eval_split,
           "Share of the data held out for evaluation when there is no eval_dataset.")
      .at_least(0)
      .below(1)
      .alias("val_size");
  keys.add("shard_tokens", &C::shard_tokens, "Tokens of a shard of a prepared dataset, about.")
      .at_least(1)
      .at_most(kMaxCount);
  keys.add("cache_dir", &C::cache_dir, "Folder for datasets that are prepared on the way to training.")
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
           "Micro-steps whose gradients are summed for one optimizer step.")
      .at_least(1)
      .at_most(1 << 20)
      .alias("grad_accum_steps");
  keys.add("target_effective_batch_size", &C::target_effective_batch_size,
           "Sequences per optimizer step; sets gradient_accumulation_steps. A multiple of "
           "per_device_train_batch_size. 0: off.")
      .at_least(0)
      .at_most(kMaxCount);
  keys.add(
      "auto_batch_size", &C::auto_batch_size,
      "Pick the largest per_device_train_batch_size (up to 4096) whose memory plan fits the device. Under "
      "gradient_checkpointing auto that is the largest without recomputation, as long as one sequence fits "
      "so.");
  keys.add("device_memory_limit_gb", &C::device_memory_limit_gb,
           "Memory the run may use on each device, in GiB (2^30 bytes). 0, or more than the device has: what "
           "it "
           "has.")
      .at_least(0)
      .at_most(1e6);

  keys.group("Length");
  keys.add("max_steps", &C::max_steps, "Optimizer steps to take. 0: num_train_epochs decides.")
      .at_least(0)
      .at_most(kMaxCount)
      .alias("max_iters")
      .note("600 in the demo, else num_train_epochs decides");
  keys.add("num_train_epochs", &C::num_train_epochs,
           "Passes over the data; may be a fraction. 0: max_steps decides.")
      .at_least(0)
      .at_most(1e6)
      .alias("num_epochs")
      .alias("epochs")
      .note("1 when max_steps is not given");
}

void add_optimizer(KeyTable<C>& keys) {
  keys.group("Optimizer");
  keys.add("learning_rate", &C::learning_rate, "Peak learning rate of AdamW.")
      .at_least(0)
      .at_most(1e3)
      .alias("lr")
      .alias("max_lr")
      .note("0.002 in the demo, else 0.0006");
  keys.add("lr_scheduler_type", &C::lr_scheduler_type, {"cosine", "linear", "constant", "wsd"},
           "How the learning rate goes on after the warm-up. wsd: stable, then down over the last "
           "decay_ratio.")
      .alias("lr_scheduler");
  keys.add("warmup_steps", &C::warmup_steps, "Steps over which the learning rate rises from 0 to its peak.")
      .at_least(0)
      .at_most(kMaxCount)
      .alias("warmup_iters")
      .note("50 in the demo, else 0");
  keys.add("warmup_ratio", &C::warmup_ratio, "The same as a share of all steps.").at_least(0).at_most(1);
  keys.add("min_lr_ratio", &C::min_lr_ratio,
           "Learning rate at the end, as a share of the peak (not for constant).")
      .at_least(0)
      .at_most(1);
  keys.add("decay_ratio", &C::decay_ratio, "Share of all steps that the final decay of wsd takes.")
      .at_least(0)
      .at_most(1);
  keys.add("weight_decay", &C::weight_decay, "Decoupled weight decay, on matrices only.")
      .at_least(0)
      .at_most(1e3);
  keys.add("adam_beta1", &C::adam_beta1, "Decay of AdamW's mean of gradients.")
      .at_least(0)
      .below(1)
      .alias("beta1");
  keys.add("adam_beta2", &C::adam_beta2, "Decay of AdamW's mean of squared gradients.")
      .at_least(0)
      .below(1)
      .alias("beta2");
  keys.add("adam_epsilon", &C::adam_epsilon, "Added to AdamW's denominator.").above(0).at_most(1);
  keys.add("max_grad_norm", &C::max_grad_norm,
           "Gradients with a larger global norm are scaled down to it. 0: off.")
      .at_least(0)
      .alias("grad_clip");
  keys.add("optimizer_state", &C::optimizer_state, {"fp32", "bf16", "fp8"},
           "Precision in which AdamW's two moments are kept. fp8: those of matrices in E4M3 with a scale for "
           "every 128, rounded stochastically; 2 bytes for each weight where fp32 takes 8.");
  keys.add("master_weights", &C::master_weights, {"exact", "stochastic"},
           "What the optimizer keeps of BF16 matrices: exact, 16 more bits that make them fp32; stochastic, "
           "nothing, and updates are rounded up or down at random (the same way in a resumed run).");
  keys.add(
      "penalty_type", &C::penalty_type, {"none", "z_loss", "entropy", "logit_l2"},
      "Term added to the loss: z_loss (log Z squared), entropy (confident predictions cost), logit_l2 (mean "
      "square of the logits).");
  keys.add("penalty_weight", &C::penalty_weight, "Weight of penalty_type's term in the loss.").at_least(0);
}

void add_precision(KeyTable<C>& keys) {
  keys.group("Precision");
  keys.add("mixed_precision", &C::mixed_precision, {"fp8", "bf16", "fp32"},
           "Precision of the matrix multiplications of the layers.")
      .bool_alias("use_fp8", "fp8", "bf16");
  keys.add("fp8_recipe", &C::fp8_recipe, {"delayed", "current", "block", "mxfp8"},
           "Where FP8 scales come from: delayed (history of maxima per tensor), current (the tensor itself), "
           "block "
           "(1x128 and 128x128 blocks), mxfp8 (blocks of 32 with power-of-two scales).")
      .alias("fp8_scenario");
  keys.add("fp8_format", &C::fp8_format, {"hybrid", "e4m3", "e5m2"},
           "FP8 format; hybrid is E4M3 forward and E5M2 for gradients.");
  keys.add("fp8_margin", &C::fp8_margin,
           "delayed, current: scales leave room for values 2^margin times the largest seen.")
      .at_least(0)
      .at_most(16);
  keys.add("fp8_interval", &C::fp8_interval, "delayed: steps between updates of the scales.")
      .at_least(1)
      .at_most(kMaxCount);
  keys.add("fp8_amax_history_len", &C::fp8_amax_history_len,
           "delayed: how many updates of the scales remember their maxima.")
      .at_least(1)
      .at_most(1 << 16);
  keys.add("fp8_amax_compute", &C::fp8_amax_compute, {"max", "most_recent"},
           "delayed: what of the history sets the scale.")
      .alias("fp8_amax_compute_algo");
  keys.add("fp8_block_scales", &C::fp8_block_scales, {"pow2", "exact"},
           "block: scales rounded to powers of two, or exact.");
  keys.add("fp8_head", &C::fp8_head, "Run the output head in FP8 too.");
  keys.add("fp8_skip_layers", &C::fp8_skip_layers,
           "Layers that stay in BF16: names or globs of layers (layers.0.*, *.mlp.down, *down_proj), "
           "first:N, last:N; "
           "'octet plan' lists the names.");
  keys.add("fp8_eval", &C::fp8_eval, "Evaluate in FP8 rather than BF16.");
  keys.add(
          "fp8_stats_steps", &C::fp8_stats_steps,
          "Steps between records of FP8 statistics (amax, scale, saturated and underflowed share). 0: never.")
      .at_least(0)
      .at_most(kMaxCount);
  keys.add("require_fp8", &C::require_fp8,
           "Fail where no layer can run in FP8, rather than say so and go on in BF16.");

  keys.group("Memory");
  keys.add(
          "gradient_checkpointing", &C::gradient_checkpointing, {"auto", "none", "act", "mlp", "block"},
          "What backward computes again rather than keeps: act the outputs of norms and activation, mlp "
          "also the MLP's first product, block all but the block's input; auto takes the first of none, act, "
          "mlp, block whose memory plan fits the device. Results are bit-equal.")
      .bools("block", "none");
}

void add_run(KeyTable<C>& keys) {
  keys.group("Run");
  keys.add("output_dir", &C::output_dir, "Folder that holds the runs.");
  keys.add("run_name", &C::run_name, "Folder of this run inside output_dir.")
      .note("made from the time and the model");
  keys.add("seed", &C::seed, "Seed of initial weights, data order and samples.").at_least(0);
  keys.add("device", &C::device, {"auto", "cpu", "cuda"}, "Where to run; auto takes a GPU if there is one.");
  keys.add("deterministic", &C::deterministic, "Use only kernels that give the same bits every time.");
  keys.add(
          "cuda_graphs", &C::cuda_graphs, {"auto", "on", "off"},
          "Record the kernels of a micro-step once and launch them as one from then on; auto does so where a "
          "micro-step takes up to some 150 ms, since launches then are a noticeable part of it. "
          "Micro-batches of a shape not seen before run kernel by kernel. Results are bit-equal.")
      .bools("on", "off");
  keys.add("num_threads", &C::num_threads, "CPU threads. 0: all cores.").at_least(0).at_most(4096);
  keys.add("logging_steps", &C::logging_steps, "Steps between lines of the log and of metrics.jsonl.")
      .at_least(1)
      .at_most(kMaxCount)
      .alias("log_freq")
      .note("20 in the demo, else 1");
  keys.add("eval_steps", &C::eval_steps, "Steps between evaluations. 0: only at the end.")
      .at_least(0)
      .at_most(kMaxCount)
      .alias("eval_freq");
  keys.add("eval_batches", &C::eval_batches, "Batches of one evaluation. 0: all of the evaluation data.")
      .at_least(0)
      .at_most(kMaxCount)
      .alias("eval_iters");
  keys.add("sample_steps", &C::sample_steps, "Steps between samples of generated text. 0: never.")
      .at_least(0)
      .at_most(kMaxCount)
      .alias("sample_freq")
      .note("200 in the demo, else 0");
  keys.add("sample_prompt", &C::sample_prompt, "Text that a sample continues.")
      .note("'Mia has' in the demo, else 'Once upon a time'");
  keys.add("sample_tokens", &C::sample_tokens, "Tokens of a sample.").at_least(1).at_most(1 << 20);
  keys.add("sample_temperature", &C::sample_temperature,
           "Temperature of a sample. 0: always the likeliest token.")
      .at_least(0)
      .at_most(100);
  keys.add("dry_run", &C::dry_run, "Check everything, show the resolved configuration, and stop.")
      .not_dumped();
  keys.add("progress", &C::progress, {"auto", "bar", "plain", "quiet"},
           "How the console shows progress; auto is bar on a terminal, else plain.");
}

void add_checkpoints(KeyTable<C>& keys) {
  keys.group("Checkpoints");
  keys.add("resume", &C::resume,
           "Go on from a checkpoint: latest (of run_name, or else of the newest run in output_dir), or the "
           "path of "
           "a checkpoint or run. Without a configuration file, that run's own is taken.")
      .alias("resume_from_checkpoint")
      .not_dumped();
  keys.add("checkpoint_dir", &C::checkpoint_dir, "Folder of the checkpoints.")
      .note("checkpoints in the run's folder, checkpoints_fp8 when training in FP8");
  keys.add("save_strategy", &C::save_strategy, {"steps", "no"},
           "steps: every save_steps, at the end and when a signal stops the run. no: never.");
  keys.add("save_steps", &C::save_steps, "Steps between checkpoints. 0: only at the end.")
      .at_least(0)
      .at_most(kMaxCount)
      .alias("checkpoint_freq")
      .alias("save_freq");
  keys.add("save_total_limit", &C::save_total_limit,
           "Checkpoints to keep, at least 2; the best and the latest always stay. 0: all.")
      .at_least(0)
      .at_most(kMaxCount);
  keys.add("save_async", &C::save_async,
           "Write checkpoints while training goes on; it then waits for a copy in host memory alone.");
  keys.add("use_tensorboard", &C::use_tensorboard, "Write TensorBoard event files into the run's folder.");
}

}  // namespace

const KeyTable<TrainConfig>& train_keys() {
  static const KeyTable<TrainConfig> table = [] {
    KeyTable<TrainConfig> keys;
    add_model_and_data(keys);
    add_batch_and_length(keys);
    add_optimizer(keys);
    add_precision(keys);
    add_run(keys);
    add_checkpoints(keys);
    return keys;
  }();
  return table;
}

}  // namespace octet
