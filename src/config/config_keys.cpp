#include "config/config_keys.h"

#include <initializer_list>

#include "model/adapters.h"

namespace octet {
namespace {

using C = TrainConfig;

void add_model(KeyTable<C>& keys) {
  keys.group("Model");
  keys.add("model_preset", &C::model_preset,
           "Built-in architecture, trained from random weights, such as llama-tiny. Or a family (llama, "
           "qwen2, qwen3, mistral): then hidden_size, num_hidden_layers, num_attention_heads and "
           "vocab_size must be set.")
      .note(
          "gpt2 (GPT-2 124M) if a dataset is given, llama-tiny in the demo; none if model_name_or_path is set");
  keys.add("model_name_or_path", &C::model_name_or_path,
           "Start from these weights: a Hugging Face folder (GPT-2, Llama 3.x, Qwen2.5, Qwen3, Mistral), a "
           "hub id such as org/name, a checkpoint or a run. A config.json without weights sets the "
           "architecture; training then starts from random weights. The name of a preset such as "
           "llama-tiny is read as model_preset.")
      .alias("model")
      .alias("base_model")
      .alias("model_name")
      .alias("model_path")
      .alias("model_id");
  const auto size = [&](const char* name, int64_t C::*member, const char* help, const char* note,
                        std::initializer_list<const char*> aliases = {}) {
    Key& key = keys.add(name, member, help).at_least(0).at_most(1 << 26).note(note);
    for (const char* alias : aliases) key.alias(alias);
  };
  size("hidden_size", &C::hidden_size, "Width of the model. Size keys need a start from random weights.",
       "the model's own", {"n_embd", "d_model", "hidden_dim"});
  size("num_hidden_layers", &C::num_hidden_layers, "Number of layers.", "the model's own",
       {"n_layer", "num_layers"});
  size("num_attention_heads", &C::num_attention_heads, "Number of query heads.", "the model's own",
       {"n_head", "num_heads"});
  size("num_key_value_heads", &C::num_key_value_heads, "Number of key/value heads, which query heads share.",
       "the model's own; num_attention_heads if the model has one per query head",
       {"n_kv_head", "num_kv_heads"});
  size("head_dim", &C::head_dim, "Width of a head.",
       "hidden_size / num_attention_heads, unless the model has another");
  size("intermediate_size", &C::intermediate_size, "Inner width of the MLP.",
       "the model's own; if hidden_size is set, 4 x hidden_size for gpt2 and 8/3 x hidden_size, rounded "
       "up to a multiple of 128, for others",
       {"ffn_dim"});
  size("vocab_size", &C::vocab_size, "Number of token ids. The tokenizer must not have more.",
       "the model's own");
  size("max_position_embeddings", &C::max_position_embeddings, "Longest sequence that the model is made for.",
       "the model's own", {"n_positions"});
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
  keys.add(
          "dataset", &C::dataset, dataset_part_keys(),
          "Training data: demo (the built-in stories), a prepared folder, .bin token shards, a text, JSONL, "
          "JSON, CSV or Parquet file (or a folder or glob of them), a preset such as gsm8k, a hub id such as "
          "org/name, or a name in the dataset_info.json of dataset_dir. Several are separated by commas, or "
          "are a list in YAML. An item of the list is a path, or a map with path, weight, max_samples, split "
          "and more, see docs/datasets.md.")
      .alias("dataset_name")
      .alias("dataset_path")
      .alias("data_path")
      .alias("data")
      .alias("train_file")
      .alias("train_dataset")
      .note("demo");
  keys.add(
          "eval_dataset", &C::eval_dataset, dataset_part_keys(),
          "Evaluation data, given like dataset, but without weights. Without it, the share eval_split of the "
          "training data is held out.")
      .alias("val_dataset")
      .alias("validation_file");
  keys.add("eval_dataset_split", &C::eval_dataset_split,
           "Read only the files of this split of eval_dataset, found by their names.")
      .note("all files except validation and test; dataset_split if eval_dataset is the same as dataset");
  keys.add("dataset_split", &C::dataset_split,
           "Read only the files of this split, found by their names: train, test, train_1M.")
      .alias("split")
      .alias("split_name")
      .note("all files except validation and test");
  keys.add("dataset_subset", &C::dataset_subset, "Configuration of a hub dataset, such as main.")
      .alias("dataset_config_name")
      .alias("subset");
  keys.add("dataset_revision", &C::dataset_revision, "Branch, tag or commit of a hub dataset.").note("main");
  keys.add("dataset_dir", &C::dataset_dir,
           "Folder with the files of a preset. They are then not taken from the cache or downloaded.")
      .alias("data_dir");
  keys.add("dataset_format", &C::dataset_format, example_format_names(),
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
  spell_chat_templates(
      keys.add("chat_template", &C::chat_template, chat_template_names(),
               "How a conversation becomes text and special tokens. auto decides by the tokenizer."))
      .alias("template");
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
  keys.add("tokenizer", &C::tokenizer, "bytes, a tokenizer file or folder, or a hub id such as org/name.")
      .alias("tokenizer_name_or_path")
      .alias("tokenizer_name")
      .alias("tokenizer_path")
      .note(
          "the tokenizer of the prepared dataset or of model_name_or_path; openai-community/gpt2 for the presets of GPT-2; "
          "else bytes");
  keys.add("max_seq_length", &C::max_seq_length, "Tokens per sequence. 0: the default.")
      .at_least(0)
      .at_most(1 << 24)
      .alias("cutoff_len")
      .alias("max_length")
      .alias("block_size")
      .alias("seq_len")
      .alias("seq_length")
      .alias("max_seq_len")
      .alias("sequence_len")
      .alias("sequence_length")
      .alias("context_length")
      .alias("max_sequence_length")
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
      .alias("val_size")
      .alias("val_set_size")
      .alias("val_split")
      .alias("validation_split")
      .alias("eval_ratio");
  keys.add(
          "shard_tokens", &C::shard_tokens,
          "Approximate number of tokens per shard of a prepared dataset. Less than 1,048,576 also changes which documents are held out.")
      .at_least(1)
      .at_most(kMaxCount);
  keys.add("cache_dir", &C::cache_dir, "Folder for datasets that octet train prepares itself.")
      .note("$OCTET_CACHE, $XDG_CACHE_HOME/octet or ~/.cache/octet");
  keys.add(
          "verify", &C::verify,
          "Read and check all shards of prepared datasets and all token files. Otherwise a file is read only if it "
          "is new or has changed since it was last checked. Token files that together have less than 64 MiB are always read.")
      .not_dumped();
}

void add_batch_and_length(KeyTable<C>& keys) {
  keys.group("Batch");
  keys.add("per_device_train_batch_size", &C::per_device_train_batch_size,
           "Sequences per micro-step on each device.")
      .at_least(1)
      .at_most(1 << 20)
      .alias("batch_size")
      .alias("micro_batch_size")
      .alias("train_micro_batch_size_per_gpu");
  keys.add("gradient_accumulation_steps", &C::gradient_accumulation_steps,
           "Micro-steps per optimizer step. Their gradients are summed.")
      .at_least(1)
      .at_most(1 << 20)
      .alias("grad_accum_steps")
      .alias("grad_accum")
      .alias("gradient_accumulation");
  keys.add(
          "target_effective_batch_size", &C::target_effective_batch_size,
          "Sequences per optimizer step, of all ranks together. Sets gradient_accumulation_steps. Must be a multiple of "
          "per_device_train_batch_size times the number of ranks. 0: off.")
      .at_least(0)
      .at_most(kMaxCount)
      .alias("global_batch_size")
      .alias("effective_batch_size");
  keys.add(
          "max_batch_size", &C::max_batch_size,
          "Upper limit of per_device_train_batch_size if that is not set. With target_effective_batch_size, the "
          "largest size up to the limit that divides the target is used. With auto_batch_size, it limits the search. "
          "0: no limit.")
      .at_least(0)
      .at_most(1 << 20);
  keys.add(
      "auto_batch_size", &C::auto_batch_size,
      "Use the largest per_device_train_batch_size (up to 4096) that fits the device. With "
      "gradient_checkpointing and fp8_weight_copies auto: the largest that fits without recomputation and "
      "with two FP8 copies of weights, if at least one sequence does. Without target_effective_batch_size, an epoch keeps at least 50 steps and a step "
      "has at most 1,048,576 tokens.");
  keys.add("device_memory_limit_gb", &C::device_memory_limit_gb,
           "Memory that the run may use on each device, in GiB (2^30 bytes). 0, or more than the device has: "
           "all of it.")
      .at_least(0)
      .at_most(1e6);

  keys.group("Length");
  keys.add(
          "max_steps", &C::max_steps,
          "Number of optimizer steps. 0 or -1: num_train_epochs decides. If both are set, max_steps decides.")
      .at_least(-1)
      .at_most(kMaxCount)
      .alias("max_iters")
      .alias("steps")
      .alias("num_steps")
      .alias("train_steps")
      .alias("max_train_steps")
      .alias("num_train_steps")
      .alias("train_iters")
      .alias("total_steps")
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
      .alias("lr_scheduler")
      .alias("scheduler")
      .alias("lr_schedule")
      .alias("lr_decay_style")
      .also("cosine", {"cosine_with_min_lr", "cosine_annealing"})
      .also("constant", {"constant_with_warmup"})
      .also("wsd", {"warmup_stable_decay"})
      .refuse({"cosine_with_restarts", "polynomial", "inverse_sqrt", "reduce_lr_on_plateau"},
              "octet has cosine, linear, constant and wsd; cosine and linear are the nearest");
  keys.add("warmup_steps", &C::warmup_steps, "Steps in which the learning rate rises from 0 to its peak.")
      .at_least(0)
      .at_most(kMaxCount)
      .alias("warmup_iters")
      .note("50 in the demo from random weights, at most a quarter of its steps; else 0");
  keys.add("warmup_ratio", &C::warmup_ratio, "Length of the warm-up as a share of all steps.")
      .at_least(0)
      .at_most(1)
      .note("0.03 with LoRA or from given weights, else 0; 0 if warmup_steps is set");
  keys.add("min_lr_ratio", &C::min_lr_ratio,
           "Final learning rate as a share of the peak. Not used by constant.")
      .at_least(0)
      .at_most(1)
      .alias("cosine_min_lr_ratio")
      .alias("min_lr_rate");
  keys.add("min_lr", &C::min_lr,
           "Final learning rate itself, instead of min_lr_ratio. -1: min_lr_ratio decides.")
      .at_least(-1)
      .at_most(1e3)
      .alias("learning_rate_min")
      .note("min_lr_ratio x learning_rate");
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
      .alias("grad_clip")
      .alias("clip_grad")
      .alias("clip_grad_norm")
      .alias("gradient_clipping");
  keys.add(
      "optimizer_state", &C::optimizer_state, {"fp32", "bf16", "fp8"},
      "Precision of AdamW's two moments. fp8: those of matrices have 8 bits, with one scale per 128 values "
      "and stochastic rounding; they take 2 bytes per weight instead of 8. fp8 may cost accuracy with an adam_beta2 above "
      "0.99, and a run warns.");
  keys.add(
      "master_weights", &C::master_weights, {"exact", "compact", "stochastic"},
      "How the optimizer stores BF16 matrices. exact: as fp32 (BF16 plus a 16-bit remainder), 4 bytes per "
      "weight. compact: BF16 plus 4 bits, 2.5 bytes, with stochastic rounding of the updates. stochastic: "
      "BF16 only, 2 bytes, with stochastic rounding; it may cost accuracy (with 8-bit moments, the evaluation "
      "loss of GPT-2 124M was 0.24 % higher than in BF16, mean of three seeds, bench/RESULTS.md). A resumed run rounds "
      "the same way.");
  keys.add("penalty_type", &C::penalty_type, {"none", "z_loss", "entropy", "logit_l2"},
           "Term added to the loss. z_loss: square of log Z. entropy: penalizes confident predictions. "
           "logit_l2: mean square of the logits.")
      .note("none; z_loss if penalty_weight is set and above 0");
  keys.add("penalty_weight", &C::penalty_weight, "Weight of the penalty_type term in the loss.").at_least(0);
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
    add_precision_keys(keys);
    add_run_keys(keys);
    return keys;
  }();
  return table;
}

Key& spell_chat_templates(Key& key) {
  return key.also("auto", {"default", "tokenizer_default"})
      .also("llama3", {"llama_3"})
      .also("llama3.1", {"llama31", "llama3_1", "llama3.2", "llama3.3"})
      .also("chatml", {"qwen", "qwen2", "qwen2.5", "qwen2_5", "qwen_25"})
      .also("llama2", {"llama_2"})
      .also("plain", {"empty", "none"});
}

}  // namespace octet
