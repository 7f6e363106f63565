// DeepSpeed's JSON files: alone, or named by another configuration.

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "import/key_table.h"
#include "import/rules.h"
#include "import/tools.h"

namespace octet {
namespace {

bool says_the_same(const std::string& a, const std::string& b) {
  const auto x = parse_double(a), y = parse_double(b);
  return x && y ? *x == *y : a == b;
}

// The trainer's own setting wins; Transformers stops if the two differ.
void map_unless_set(Importer& importer, const TreeLeaf& leaf, std::string_view key,
                    const std::string& value) {
  if (importer.skips_null(leaf)) return;
  if (!importer.is_included() || !importer.is_set(key)) {
    importer.map(leaf, key, value);
  } else if (says_the_same(importer.value(key), value)) {
    importer.derive(leaf, fmt::format("the same as {} of the trainer", key));
  } else {
    importer.warn(leaf, fmt::format("{} of the trainer is {}, which is used", key, importer.value(key)));
    importer.find(
        "deepspeed-mismatch", leaf,
        fmt::format("it differs from the trainer's {}: Transformers stops with a mismatch error", key),
        "uses the trainer's value; write \"auto\" in the DeepSpeed file");
  }
}

void trainer_wins_rule(Importer& importer, const TreeLeaf& leaf) {
  map_unless_set(importer, leaf, Importer::row_of(importer.tool(), leaf.name)->target(), leaf.text);
}
void warmup_rule(Importer& importer, const TreeLeaf& leaf) {
  if (importer.is_included() && importer.is_set("warmup_ratio")) {
    importer.warn(leaf, fmt::format("warmup_ratio of the trainer is {}, which is used",
                                    importer.value("warmup_ratio")));
    return;
  }
  map_unless_set(importer, leaf, "warmup_steps", leaf.text);
}
void total_steps_rule(Importer& importer, const TreeLeaf& leaf) {
  if (importer.is_included() && importer.is_set("num_train_epochs")) {
    importer.warn(leaf, "the length of the schedule; the trainer's number of epochs is used");
    return;
  }
  map_unless_set(importer, leaf, "max_steps", leaf.text);
}

// In a file of its own it is the batch of all ranks, unless the other two give it. A file that another one names
// must agree with that one, which always has a micro-batch and an accumulation.
void train_batch_rule(Importer& importer, const TreeLeaf& leaf) {
  const SettingsTree& tree = importer.tree();
  const bool has_micro = tree.number("train_micro_batch_size_per_gpu").has_value();
  const bool has_steps = tree.number("gradient_accumulation_steps").has_value();
  if (importer.skips_null(leaf)) return;
  if (importer.is_included() || (has_micro && has_steps)) {
    importer.derive(leaf, "micro-batch x accumulation x GPUs; it follows from the other two");
    return;
  }
  importer.map(
      leaf, "target_effective_batch_size", leaf.text,
      has_micro ? "of all ranks together" : "of all ranks together; set per_device_train_batch_size, too");
  if (!has_micro) importer.set("per_device_train_batch_size", "1", "no micro-batch is given", leaf.place);
  importer.later([](Importer& after) { after.unset("gradient_accumulation_steps"); });
}

void optimizer_type_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string name = plain_word(leaf.text);
  if (name == "adam" || name == "adamw" || name == "fusedadam" || name == "cpuadam" ||
      name == "deepspeedcpuadam") {
    const bool plain_adam = importer.tree().flag("optimizer.params.adam_w_mode") == false;
    if (plain_adam) {
      importer.refuse(leaf, "with adam_w_mode false it is Adam with L2; octet has AdamW only");
    } else {
      importer.derive(leaf, "AdamW, which octet always uses");
    }
  } else {
    importer.refuse(leaf, "octet has AdamW only");
  }
}

void scheduler_type_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string name = plain_word(leaf.text);
  const auto take = [&](const char* type) {
    importer.map(leaf, "lr_scheduler_type", type);
    if (importer.tree().text("scheduler.params.warmup_type") != "linear") {
      importer.find("deepspeed-log-warmup", leaf,
                    "the warm-up of DeepSpeed's schedules is logarithmic unless warmup_type is linear: the "
                    "learning rate is near its peak after a few steps",
                    "warms up linearly");
    }
  };
  if (name == "warmuplr") {
    take("constant");
  } else if (name == "warmupdecaylr") {
    take("linear");
    importer.set("min_lr_ratio", "0", "WarmupDecayLR falls to 0", leaf.place);
  } else if (name == "warmupcosinelr") {
    take("cosine");
    if (!importer.is_set("min_lr_ratio"))
      importer.set("min_lr_ratio", "0.0001", "default of WarmupCosineLR", leaf.place);
  } else {
    importer.refuse(leaf, "octet has cosine, linear, constant and wsd schedules");
  }
}

void fp8_section_rule(Importer& importer, const TreeLeaf& leaf) {
  const TreeLeaf* enabled = importer.tree().find("fp8.enabled");
  const bool off = enabled && enabled->is_off();
  importer.find(
      "deepspeed-fp8-section", leaf,
      "DeepSpeed has no fp8 section and ignores it silently: training stays in BF16, or fp32 if bf16 is "
      "off",
      off ? "reads it as it is meant: off" : "trains in FP8, as it was meant");
  if (leaf.name == "fp8.enabled" || leaf.name == "fp8") {
    if (leaf.is_off()) {
      importer.ignore(leaf, "off");
    } else {
      importer.map(leaf, "mixed_precision", "fp8", "DeepSpeed itself ignores it");
    }
    return;
  }
  importer.ignore(leaf, "DeepSpeed has no fp8 section; loss scaling is for fp16 alone");
}

void msamp_rule(Importer& importer, const TreeLeaf& leaf) {
  const TreeLeaf* enabled = importer.tree().find("msamp.enabled");
  if (!enabled || enabled->is_off()) {
    importer.ignore(leaf, "off");
  } else if (&leaf == enabled) {
    importer.map(leaf, "mixed_precision", "fp8");
    importer.find("ms-amp", leaf,
                  "only DeepSpeed as MS-AMP wraps it reads this section; without 'import msamp' the run is "
                  "BF16 or fp16",
                  "trains in FP8; optimizer_state fp8 keeps the moments in 8 bits, too");
  } else {
    importer.ignore(leaf, "MS-AMP's level; see optimizer_state in octet");
  }
}

void communication_type_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string type = plain_word(leaf.text);
  if (type == "fp32" || type == "float32") {
    importer.warn(
        leaf, "octet sends gradients in BF16 and adds them in fp32; gradient_reduce_dtype fp32 sends fp32");
    importer.find("communication-fp32", leaf,
                  "every reduction of gradients moves 4 bytes per weight instead of 2",
                  "sends 2 bytes per weight and adds in fp32 (gradient_reduce_dtype)");
  } else if (type == "fp16" || type == "bf16" || type == "bfp16" || type == "bfloat16" || leaf.is_null()) {
    importer.ignore(leaf, "octet sends gradients in BF16 and adds them in fp32");
  } else {
    importer.warn(leaf, "DeepSpeed takes fp16, bf16 or fp32; octet sends gradients in BF16");
  }
}

void grad_accumulation_type_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string type = plain_word(leaf.text);
  if (type == "fp32") {
    importer.find("grad-accum-fp32", leaf,
                  "gradient buffers take 4 bytes per weight, and each micro-step casts into them",
                  "adds gradients where they are computed, without casts");
    importer.ignore(
        leaf,
        "octet adds up micro-batches in fp32; a step of one micro-batch needs no sum (grad_accum_dtype)");
  } else if (type == "bf16") {
    importer.map(leaf, "grad_accum_dtype", type);
  } else {
    importer.ignore(leaf, "octet adds gradients in fp32 or bf16");
  }
}

void overlap_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.flag() == false) {
    importer.find("no-overlap", leaf, "gradients are reduced after backward instead of during it",
                  "always overlaps communication with backward");
  }
  importer.ignore(leaf, "octet always overlaps communication with backward");
}

void bucket_rule(Importer& importer, const TreeLeaf& leaf) {
  const auto size = leaf.number();
  if (size && *size > 0 && *size < 1e6) {
    importer.find("small-buckets", leaf,
                  "buckets below a million elements make many small messages, which waste bandwidth",
                  "plans its own buckets");
  }
  importer.ignore(leaf, "octet plans its own buckets");
}

void no_such_section_rule(Importer& importer, const TreeLeaf& leaf) {
  importer.warn(leaf, "DeepSpeed has no such section and ignores it");
  importer.find("unknown-deepspeed-section", leaf,
                "DeepSpeed reads no such section: unknown names at the top of the file are ignored silently",
                "does not use it either");
}

constexpr KeyRules kRules[] = {
    {"train_micro_batch_size_per_gpu=per_device_train_batch_size gradient_accumulation_steps "
     "gradient_clipping=max_grad_norm optimizer.params.lr=learning_rate "
     "scheduler.params.warmup_max_lr=learning_rate optimizer.params.eps=adam_epsilon "
     "optimizer.params.weight_decay=weight_decay",
     trainer_wins_rule},
    {"train_batch_size", train_batch_rule},
    {"zero_optimization.offload_optimizer.device zero_optimization.offload_param.device "
     "zero_optimization.cpu_offload zero_optimization.cpu_offload_param",
     offload_rule},
    {"zero_optimization.overlap_comm", overlap_rule},
    {"zero_optimization.allgather_bucket_size zero_optimization.reduce_bucket_size", bucket_rule},
    {"fp16.enabled", fp16_rule},
    {"bf16.enabled bfloat16.enabled", bf16_rule},
    {"fp8 fp8.**", fp8_section_rule},
    {"msamp.**", msamp_rule},
    {"data_types.grad_accum_dtype", grad_accumulation_type_rule},
    {"communication_data_type", communication_type_rule},
    {"optimizer.type", optimizer_type_rule},
    {"optimizer.params.betas", betas_rule},
    {"scheduler.type", scheduler_type_rule},
    {"scheduler.params.warmup_num_steps", warmup_rule},
    {"scheduler.params.total_num_steps", total_steps_rule},
    {"comms_config.** monitor_config.**", no_such_section_rule},
    {"sequence_parallel_size", parallel_size_rule},
};

constexpr std::string_view kKeys = R"(
scheduler.params.cos_min_ratio=min_lr_ratio : mapped
scheduler.params.warmup_type : derived, octet warms up linearly
zero_optimization.zero_hpz_partition_size : ignored, groups of ZeRO++; sharding_mode hsdp is near it
zero_optimization.mics_hierarchical_params_gather zero_optimization.** zero_allow_untested_optimizer
  zero_force_ds_cpu_optimizer optimizer.legacy_fusion gradient_predivide_factor prescale_gradients sparse_gradients
  disable_allgather managed_gradient_accumulation vocabulary_size graph_harvesting aio.**
  use_data_before_expert_parallelism : ignored, octet shards layer by layer, by sharding_mode
fp16.** : ignored, loss scaling is for fp16 alone
bf16.** bfloat16.** : ignored, octet chooses by master_weights and optimizer_state
torch_autocast.** : ignored, mixed_precision decides here
amp.** : ignored, Apex AMP; mixed_precision decides here
data_types.** : ignored, octet stores weights in BF16
seq_parallel_communication_data_type : ignored, only with a method or an optimizer that octet does not have
optimizer.params.torch_adam optimizer.params.fused compile.** : ignored, octet has its own kernels
scheduler.params.warmup_min_ratio scheduler.params.last_batch_iteration
  : ignored, octet's schedule warms up linearly from 0 and resumes itself
activation_checkpointing.** : ignored, octet chooses itself what to recompute
dump_state steps_per_print wall_clock_breakdown memory_breakdown log_level flops_profiler.** comms_logger.**
  tensorboard.** wandb.** csv_monitor.** comet.** timers.** autotuning.**
  : ignored, octet logs to the console, metrics.jsonl and TensorBoard
_comment comment : ignored, no setting
checkpoint.** nebula.** datastates.** : ignored, octet saves in its own way, and can always resume
dataloader_drop_last : ignored, octet prepares, packs and loads data in its own way
zero_optimization.zero_quantized_weights zero_optimization.zero_quantized_nontrainable_weights
  : warned, ZeRO++ sends integers; octet sends FP8 or BF16
zero_optimization.zero_quantized_gradients : warned, ZeRO++ sends integers; octet sends BF16
zero_optimization.mics_shard_size : warned, MiCS; sharding_mode hsdp is near it
zero_optimization : warned, not a map; octet reads its stage
amp.enabled : warned, Apex AMP; octet trains in FP8, BF16 or fp32
optimizer.params.max_grad_norm : warned, DeepSpeed uses it for fp16 alone; set gradient_clipping
optimizer.params.** : warned, not a setting of AdamW
scheduler.params.warmup_min_lr : warned, octet warms up from 0
scheduler.params.** : warned, not a setting of octet's schedules
activation_checkpointing.cpu_checkpointing : warned, octet keeps or recomputes activations on the GPU
zero_optimization.zeropp_loco_param.** zero_optimization.zenflow.** elasticity.** curriculum_learning.**
  data_efficiency.** progressive_layer_drop.** eigenvalue.** quantize_training.** compression_training.**
  sparse_attention.** hybrid_engine.** weight_quantization.**
  : refused, changes how the model is trained, and octet does not have it
fp16.fp16_master_weights_and_grads : refused, octet does not train in fp16
tensor_parallel.** : refused, octet has no tensor parallelism
expert_parallel.** : refused, octet has no experts
pipeline.** : refused, octet has no pipeline parallelism
zero_optimization.stage : 0 -> sharding_mode none | 1 -> sharding_mode zero1 | 2 -> sharding_mode zero2
  | 3 -> sharding_mode fsdp_full | refused, expected a ZeRO stage from 0 to 3
bf16.bf16_optimizer_states bfloat16.bf16_optimizer_states : off ignored, off | -> optimizer_state bf16
bf16.bf16_master_weights_and_grads bfloat16.bf16_master_weights_and_grads : off ignored, off
  | -> master_weights stochastic, no fp32 copy; more accurate is compact, with half a byte more per weight
optimizer.params.adam_w_mode : off refused, Adam with L2 instead of AdamW; octet has AdamW only
  | ignored, AdamW, which octet always uses
optimizer.params.bias_correction : off refused, octet's AdamW always corrects the bias | ignored, as in octet
gradient_allreduce_op : sum refused, it scales gradients by the number of GPUs; octet takes the mean over tokens
  | ignored, octet takes the mean over tokens
)";

int score(const SettingsTree& tree) {
  constexpr std::string_view kCertain = "zero_optimization train_micro_batch_size_per_gpu";
  constexpr std::string_view kTypical =
      "train_batch_size gradient_clipping fp16.enabled bf16.enabled steps_per_print scheduler.type "
      "optimizer.params";
  // Others name a model; DeepSpeed knows nothing of the like.
  if (tree.has("base_model") || tree.has("model")) return 0;
  return count_keys(tree, kCertain, 60) + count_keys(tree, kTypical, 25);
}

// A section that is switched off refuses nothing.
void finish(Importer& importer) {
  for (const TreeLeaf& leaf : importer.tree().leaves) {
    const std::string section = leaf.name.substr(0, leaf.name.find('.'));
    const TreeLeaf* enabled = importer.tree().find(section + ".enabled");
    if (section == leaf.name || section == "fp8" || section == "bf16" || section == "fp16") continue;
    if (enabled && enabled->is_off()) importer.ignore(leaf, "the section is off");
  }
  constexpr const char* kPrecisions[] = {"bf16.enabled", "bfloat16.enabled",       "fp16.enabled",
                                         "amp.enabled",  "torch_autocast.enabled", "msamp.enabled",
                                         "fp8"};
  const bool says_precision = std::ranges::any_of(kPrecisions, [&](const char* name) {
    const TreeLeaf* leaf = importer.tree().find(name);
    return leaf ? !leaf->is_off() : importer.tree().has(name);
  });
  if (importer.has_defaults() && !importer.is_included() && !importer.is_set("mixed_precision") &&
      !says_precision) {
    importer.find(
        {.name = "no-precision",
         .where = "bf16",
         .there =
             "neither bf16 nor fp16 is on, so DeepSpeed alone trains in fp32; Transformers sets them by its "
             "own keys",
         .here = "trains in FP8, its default, unless mixed_precision is set"});
  }
  const bool fp8 = importer.value("mixed_precision") == "fp8";
  const TreeLeaf* bf16 = importer.tree().find("bf16.enabled");
  if (fp8 && bf16 && bf16->is_off() && importer.tree().has("fp8")) {
    importer.find("fp8-on-fp32", *bf16, "with bf16 off, weights and everything outside FP8 are fp32",
                  "uses BF16 outside the FP8 matrix products");
  }
}

}  // namespace

const Tool& deepspeed_tool() {
  static const std::vector<ToolKey> keys = key_table(kRules, kKeys);
  static const Tool tool{.name = "DeepSpeed",
                         .word = "deepspeed",
                         .keys = keys,
                         .defaults = {},
                         .score = score,
                         .finish = finish,
                         .auto_is_unset = true};
  return tool;
}

}  // namespace octet
