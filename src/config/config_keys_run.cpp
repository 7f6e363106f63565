#include "config/config_keys.h"

// How a run computes, where it runs, what it writes.

namespace octet {
namespace {

using C = TrainConfig;

void add_ranks(KeyTable<C>& keys) {
  keys.group("Ranks");
  keys.add("sharding_mode", &C::sharding_mode, {"auto", "none", "zero1", "zero2", "fsdp_full", "hsdp"},
           "What the ranks of a run share instead of keeping a copy each. none: nothing. zero1: the state of "
           "the optimizer. zero2: gradients, too. fsdp_full: the weights of the layers, too. hsdp: fsdp_full "
           "inside each node, zero1 between nodes. auto: zero1 if there are several ranks, otherwise none.")
      .alias("sharding")
      .alias("zero_stage")
      .bool_or_value_alias("fsdp", "fsdp_full", "none")
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
      .at_least(1)
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
  keys.add("output_dir", &C::output_dir, "Folder for runs.").alias("out_dir");
  keys.add("run_name", &C::run_name, "Folder of this run inside output_dir.")
      .alias("name")
      .alias("experiment_name")
      .alias("exp_name")
      .note("made from the time, the model and the precision");
  keys.add(
          "seed", &C::seed,
          "Random seed for the initial weights, the data order and the samples. octet prepare and the demo also draw with it what is held out.")
      .at_least(0)
      .alias("random_seed");
  keys.add("device", &C::device, {"auto", "cpu", "cuda"}, "Where to run. auto takes a GPU if there is one.")
      .also("cuda", {"gpu", "cuda:0"})
      .refuse({"cuda:1", "cuda:2", "cuda:3", "cuda:4", "cuda:5", "cuda:6", "cuda:7"},
              "set CUDA_VISIBLE_DEVICES to choose a GPU; octet then uses the first one it sees")
      .refuse({"mps", "xpu", "npu", "hip", "rocm", "tpu"}, "octet runs on NVIDIA GPUs and on the CPU");
  keys.add("deterministic", &C::deterministic, "Use only kernels that give the same bits every time.");
  keys.add("cuda_graphs", &C::cuda_graphs, {"auto", "on", "off"},
           "Record the kernels of a micro-step once and launch them as one graph after that. auto: only if a "
           "micro-step takes less than about 150 ms, because launch overhead matters then. Micro-batches of "
           "a new shape run kernel by kernel. With deterministic, the results are bit-equal.")
      .bools("on", "off");
  keys.add(
          "num_threads", &C::num_threads,
          "CPU threads. 0: OMP_NUM_THREADS if it is set; else one per core that this process may use (affinity, "
          "cgroup limit).")
      .at_least(0)
      .at_most(4096);
  keys.add("logging_steps", &C::logging_steps, "Steps between lines on the console and in metrics.jsonl.")
      .at_least(1)
      .at_most(kMaxCount)
      .alias("log_freq")
      .alias("log_interval")
      .alias("log_every")
      .alias("log_steps")
      .note("20 in the demo, else 1");
  keys.add(
          "eval_strategy", &C::eval_strategy, {"steps", "epoch", "no"},
          "When to evaluate. steps: every eval_steps, at each checkpoint and at the end. epoch: evals_per_epoch times "
          "per epoch, at each checkpoint and at the end. no: never, and no data is held out unless eval_split is set.")
      .alias("evaluation_strategy")
      .note("steps; epoch if evals_per_epoch is set");
  keys.add("eval_steps", &C::eval_steps, "Steps between evaluations. 0: only at the end.")
      .at_least(0)
      .at_most(kMaxCount)
      .alias("eval_freq")
      .alias("eval_interval")
      .alias("eval_every")
      .alias("val_check_interval");
  keys.add("evals_per_epoch", &C::evals_per_epoch, "Evaluations per epoch, for eval_strategy epoch.")
      .at_least(1)
      .at_most(1e6);
  keys.add("eval_batches", &C::eval_batches, "Batches per evaluation. 0: all of the evaluation data.")
      .at_least(0)
      .at_most(kMaxCount)
      .alias("eval_iters");
  keys.add(
          "eval_tasks", &C::eval_tasks,
          "Multiple-choice tasks to score the model in while it trains: hellaswag, arc_easy, arc_challenge, piqa, "
          "winogrande, mmlu, NAME=FILE, or a JSONL file with context, endings and label. See docs/eval_tasks.md.")
      .value("NAME,...");
  keys.add("eval_task_steps", &C::eval_task_steps,
           "Steps between scores in eval_tasks. There is always one at the end. 0: with each evaluation of "
           "eval_steps or evals_per_epoch.")
      .at_least(0)
      .at_most(kMaxCount);
  keys.add("eval_task_samples", &C::eval_task_samples,
           "Questions per task of eval_tasks, from the front. 0: all.")
      .at_least(0)
      .at_most(kMaxCount);
  keys.add("sample_steps", &C::sample_steps,
           "Steps between samples of generated text. 0: never. -1: one short sample at each evaluation, "
           "if the data are plain text and their tokenizer is known.")
      .at_least(-1)
      .at_most(kMaxCount)
      .alias("sample_freq")
      .note("200 in the demo; 0 with LoRA and from given weights; else -1");
  keys.add("sample_prompt", &C::sample_prompt, "Prompt for the samples.")
      .note("'Mia has' in the demo, else 'Once upon a time'");
  keys.add("sample_tokens", &C::sample_tokens, "Tokens per sample.")
      .at_least(1)
      .at_most(1 << 20)
      .note("32 if sample_steps is -1, else 64");
  keys.add("sample_temperature", &C::sample_temperature,
           "Sampling temperature of the samples. 0: always take the most likely token.")
      .at_least(0)
      .at_most(100);
  keys.add("dry_run", &C::dry_run, "Check everything, print the resolved configuration, and stop.")
      .not_dumped();
  keys.add(
          "list_checkpoints", &C::list_checkpoints,
          "List the checkpoints of the run run_name, or of checkpoint_dir, and stop. The same as 'octet checkpoints'.")
      .not_dumped();
  keys.add(
          "profile_steps", &C::profile_steps,
          "Write a trace of these steps, the first and the last one, as 10:12 or 10. The file trace-rank0.json "
          "in the folder of the run opens in Perfetto (ui.perfetto.dev) and chrome://tracing.")
      .value("FIRST:LAST")
      .not_dumped();
  keys.add("progress", &C::progress, {"auto", "bar", "plain", "quiet"},
           "How the console shows progress. auto: bar on a terminal, otherwise plain.");
}

void add_checkpoints(KeyTable<C>& keys) {
  keys.group("Checkpoints");
  keys.add("resume", &C::resume,
           "Continue from a checkpoint: latest, best, or the path of a checkpoint or run. latest and best mean the run "
           "run_name, or the newest run in output_dir. Without a configuration file, the configuration of that run or "
           "checkpoint is used. --resume alone means latest.")
      .alias("resume_from_checkpoint")
      .alias("resume_from")
      .value_if_alone("latest")
      .not_dumped();
  keys.add("checkpoint_dir", &C::checkpoint_dir, "Folder for checkpoints.")
      .note("checkpoints in the run's folder, checkpoints_fp8 when training in FP8");
  keys.add(
          "save_strategy", &C::save_strategy, {"steps", "epoch", "no"},
          "When to save. steps: every save_steps, at the end, and when a signal stops the run. epoch: the same, but "
          "saves_per_epoch times per epoch. no: never.")
      .alias("checkpoint_strategy")
      .refuse({"best"}, "octet always keeps the best checkpoint; use steps or epoch")
      .note("steps; epoch if saves_per_epoch is set");
  keys.add("save_steps", &C::save_steps, "Steps between checkpoints. 0: only at the end.")
      .at_least(0)
      .at_most(kMaxCount)
      .alias("checkpoint_freq")
      .alias("save_freq")
      .alias("save_interval")
      .alias("save_every")
      .alias("checkpoint_interval");
  keys.add("saves_per_epoch", &C::saves_per_epoch, "Checkpoints per epoch, for save_strategy epoch.")
      .at_least(1)
      .at_most(1e6);
  keys.add("save_total_limit", &C::save_total_limit,
           "Number of checkpoints to keep, at least 2. The best and the latest are always kept. 0: keep all.")
      .at_least(0)
      .at_most(kMaxCount);
  keys.add("save_async", &C::save_async,
           "Write checkpoints while training continues. Training then only waits for a copy in host memory.");
}

void add_reports(KeyTable<C>& keys) {
  keys.group("Reports");
  keys.add("use_tensorboard", &C::use_tensorboard,
           "Write TensorBoard event files into the folder of the run.")
      .alias("tensorboard");
  keys.add(
          "use_wandb", &C::use_wandb,
          "Send the run to Weights & Biases: figures, FP8 statistics, samples and the configuration. It needs python3 "
          "with the package wandb. Training does not wait for it.")
      .alias("wandb");
  keys.add("wandb_project", &C::wandb_project, "Project in Weights & Biases.")
      .note("WANDB_PROJECT, else octet");
  keys.add("wandb_entity", &C::wandb_entity, "User or team that owns the project in Weights & Biases.")
      .note("WANDB_ENTITY, else that of your login");
  keys.add("wandb_run_name", &C::wandb_run_name, "Name of the run in Weights & Biases.")
      .alias("wandb_name")
      .note("WANDB_NAME, else run_name");
  keys.add(
          "wandb_mode", &C::wandb_mode, {"online", "offline", "disabled"},
          "online: send while training. offline: write files into the folder of the run, for 'wandb sync'. disabled: "
          "nothing.")
      .also("offline", {"dryrun"})
      .note("WANDB_MODE; else online if there is a W&B key, otherwise offline");
  keys.add(
          "report_to", &C::report_to,
          "Where figures go besides the console and metrics.jsonl: wandb, tensorboard, all or none. It sets use_wandb and "
          "use_tensorboard.")
      .note("use_wandb and use_tensorboard decide")
      .not_dumped();
  keys.add(
          "price_per_hour", &C::price_per_hour,
          "Price of one hour of one GPU, in any currency. The summary then has the cost of the run. 0: not known.")
      .at_least(0)
      .at_most(1e9);
}

}  // namespace

void add_precision_keys(KeyTable<C>& keys) {
  keys.group("Precision");
  keys.add("mixed_precision", &C::mixed_precision, {"fp8", "bf16", "fp32"},
           "Precision of the matrix products in the layers.")
      .bool_alias("use_fp8", "fp8", "bf16")
      .alias("precision")
      .alias("dtype")
      .also("fp8", {"float8"})
      .also("bf16", {"bfloat16", "bf16_mixed", "bf16_true"})
      .also("fp32", {"float32", "float", "no", "none", "32", "tf32"})
      .refuse(
          {"fp16", "float16", "half", "16", "fp16_mixed", "16_mixed"},
          "octet has no fp16: bf16 has the same speed and size and needs no loss scaling; use bf16 or fp8")
      .refuse({"e4m3", "e5m2", "hybrid"}, "that is an FP8 format: set mixed_precision fp8 and fp8_format")
      .refuse({"int8", "int4", "nf4", "fp4"}, "octet trains in fp8, bf16 and fp32");
  keys.add(
          "fp8_recipe", &C::fp8_recipe, {"delayed", "current", "block", "mxfp8"},
          "How FP8 scales are chosen. delayed: from a history of maxima per tensor. current: from the "
          "tensor itself. block: per block of 1x128 or 128x128 values. mxfp8: per block of 32 values, as "
          "powers of two. A GPU without kernels for mxfp8 runs delayed instead and says so, unless fp8_emulation is set.")
      .alias("fp8_scenario")
      .alias("fp8_scaling")
      .also("delayed", {"default", "delayed_scaling", "delayedscaling", "per_tensor_delayed"})
      .also("current", {"current_scaling", "float8currentscaling", "tensorwise", "per_tensor", "dynamic",
                        "per_tensor_current"})
      .also("block", {"blockwise", "block_scaling", "blockscaling", "float8blockscaling", "fp8_blockwise"})
      .also("mxfp8", {"mx", "mxfp8_block", "mxfp8blockscaling"})
      .refuse({"rowwise"},
              "octet has no scales per row; current (per tensor) and block (finer) are the nearest")
      .refuse({"nvfp4", "mxfp4", "fp4"}, "octet has no 4-bit training");
  keys.add(
          "fp8_format", &C::fp8_format, {"hybrid", "e4m3", "e5m2"},
          "FP8 format. hybrid: E4M3 forward, E5M2 for gradients. e4m3 may cost accuracy where the head's gradients are in FP8. "
          "e5m2 may cost accuracy: inputs of layers keep one bit less.")
      .also("e4m3", {"float8_e4m3", "float8_e4m3fn", "e4m3fn"})
      .also("e5m2", {"float8_e5m2"});
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
      .at_most(1 << 16)
      .alias("fp8_amax_history")
      .alias("amax_history_len");
  keys.add("fp8_amax_compute", &C::fp8_amax_compute, {"max", "most_recent"},
           "For delayed: which part of the history sets the scale.")
      .alias("fp8_amax_compute_algo")
      .alias("amax_compute_algo");
  keys.add("fp8_block_scales", &C::fp8_block_scales, {"pow2", "exact"},
           "For block: round scales to powers of two, or keep them exact.");
  keys.add(
          "fp8_head", &C::fp8_head, {"auto", "none", "backward", "all", "forward", "dgrad", "wgrad"},
          "Products of the output head that run in FP8. backward (or true): both gradients. auto: backward if the head "
          "has 16 million weights or more and gradients are E5M2. all: also the logits, which is 1 % to 3 % faster; in earlier "
          "versions it added 0.1 % to 0.2 % to the loss. forward, dgrad, wgrad: for experiments. The "
          "head has delayed scaling with every recipe. With LoRA, losses were not compared. Measured losses: docs/fp8.md, "
          "The head.")
      .bools("backward", "none");
  keys.add(
          "fp8_fast_accum", &C::fp8_fast_accum, {"none", "forward", "forward_dgrad", "all"},
          "For delayed and current, on the GPU: products of the layers that add up inside the tensor cores, which is "
          "faster and keeps fewer bits of the sum. forward: forward products of layers with at most 16,384 inputs. "
          "forward_dgrad: also gradients of inputs; these may cost "
          "accuracy in wide layers (two runs of a model of Llama-1B's size had 0.16 % and 0.32 % more loss than with forward; "
          "in layers with more than 16,384 outputs the loss was never compared, and a run warns). "
          "all: gradients of weights, too, if a micro-batch has at most 8,192 tokens; over more tokens their sums stay exact. "
          "With LoRA, the loss was measured only with none. Measured losses: docs/fp8.md, Sums.")
      .bools("forward", "none");
  keys.add("fp8_skip_layers", &C::fp8_skip_layers,
           "Layers that stay in BF16: names or globs (layers.0.*, *.mlp.down, *down_proj), first:N, last:N. "
           "'octet plan' lists the names.");
  keys.add("fp8_eval", &C::fp8_eval, "Evaluate in FP8 instead of BF16.");
  keys.add(
          "fp8_stats_steps", &C::fp8_stats_steps,
          "Steps between records of FP8 statistics (amax, scale, saturated and underflowed share). 0: never.")
      .at_least(0)
      .at_most(kMaxCount);
  keys.add(
      "require_fp8", &C::require_fp8,
      "Fail if no layer can run in FP8, and on the CPU, which only emulates FP8 (with fp8_emulation that counts). Otherwise "
      "the run warns and continues in BF16. octet doctor --require_fp8 demands a GPU with FP8.");
  keys.add(
      "fp8_emulation", &C::fp8_emulation,
      "Run an FP8 recipe that the device has no kernels for: mxfp8 then is emulated on a GPU that lacks it, slower than "
      "BF16. Otherwise such a run takes delayed in its place. On the CPU, FP8 is always emulated; this key then "
      "satisfies require_fp8.");

  keys.group("Memory");
  keys.add("gradient_checkpointing", &C::gradient_checkpointing, {"auto", "none", "act", "mlp", "block"},
           "What backward recomputes instead of keeping. act: outputs of norms and activations. mlp: also "
           "the first product of the MLP. block: everything except the input of the block. auto: the first "
           "of none, act, mlp, block that fits the device. The results are bit-equal.")
      .bools("block", "none")
      .alias("activation_checkpointing")
      .alias("use_gradient_checkpointing")
      .alias("recompute")
      .also("block", {"full", "unsloth"})
      .also("none", {"off"});
  keys.add(
          "grad_accum_dtype", &C::grad_accum_dtype, {"auto", "fp32", "bf16"},
          "Precision in which the gradients of matrices are kept and added up over micro-batches. auto: fp32, "
          "but bf16 on a GPU if a step has one micro-batch. bf16 needs 2 bytes per weight less, unless several "
          "ranks run without sharding: there it needs 2 more.")
      .alias("gradient_accumulation_dtype");
  keys.add(
          "fp8_weight_copies", &C::fp8_weight_copies, {"auto", "two", "one"},
          "FP8 copies of each weight of a layer. two: the weight and its transpose. one: the weight only; "
          "backward transposes one matrix at a time, with the same results. auto: two in as many layers as "
          "fit the device. Smaller chunks of the head save memory, too; octet takes the way that moves fewer bytes.")
      .alias("frozen_copies");
}

void add_run_keys(KeyTable<C>& keys) {
  add_ranks(keys);
  add_run(keys);
  add_checkpoints(keys);
  add_reports(keys);
}

}  // namespace octet
