// DeepSpeed's JSON files: alone, or named by another configuration.

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
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
  if (leaf.is_null()) {
    importer.ignore(leaf, "null: the default");
  } else if (!importer.is_included() || !importer.is_set(key)) {
    importer.map(leaf, key, value);
  } else if (says_the_same(importer.value(key), value)) {
    importer.derive(leaf, fmt::format("the same as {} of the trainer", key));
  } else {
    importer.warn(leaf, fmt::format("{} of the trainer is {}, which is used", key, importer.value(key)));
    importer.find({.name = "deepspeed-mismatch",
                   .where = leaf.describe(),
                   .there = fmt::format(
                       "it differs from the trainer's {}: Transformers stops with a mismatch error", key),
                   .here = "uses the trainer's value; write \"auto\" in the DeepSpeed file"});
  }
}

void micro_batch_rule(Importer& importer, const TreeLeaf& leaf) {
  map_unless_set(importer, leaf, "per_device_train_batch_size", leaf.text);
}
void accumulation_rule(Importer& importer, const TreeLeaf& leaf) {
  map_unless_set(importer, leaf, "gradient_accumulation_steps", leaf.text);
}
void clipping_rule(Importer& importer, const TreeLeaf& leaf) {
  map_unless_set(importer, leaf, "max_grad_norm", leaf.text);
}
void lr_rule(Importer& importer, const TreeLeaf& leaf) {
  map_unless_set(importer, leaf, "learning_rate", leaf.text);
}
void eps_rule(Importer& importer, const TreeLeaf& leaf) {
  map_unless_set(importer, leaf, "adam_epsilon", leaf.text);
}
void decay_rule(Importer& importer, const TreeLeaf& leaf) {
  map_unless_set(importer, leaf, "weight_decay", leaf.text);
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
  if (leaf.is_null()) {
    importer.ignore(leaf, "null: the default");
    return;
  }
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

void stage_rule(Importer& importer, const TreeLeaf& leaf) {
  const auto stage = leaf.number();
  const auto mode = sharding_of_zero_stage(stage ? fmt::format("{}", *stage) : "");
  if (!mode) {
    importer.refuse(leaf, "expected a ZeRO stage from 0 to 3");
    return;
  }
  importer.map(leaf, "sharding_mode", *mode, "on one GPU all stages are the same");
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
      importer.find(
          {.name = "deepspeed-log-warmup",
           .where = leaf.describe(),
           .there = "the warm-up of DeepSpeed's schedules is logarithmic unless warmup_type is linear: the "
                    "learning rate is near its peak after a few steps",
           .here = "warms up linearly"});
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
      {.name = "deepspeed-fp8-section",
       .where = leaf.describe(),
       .there =
           "DeepSpeed has no fp8 section and ignores it silently: training stays in BF16, or fp32 if bf16 is "
           "off",
       .here = off ? "reads it as it is meant: off" : "trains in FP8, as it was meant"});
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
    importer.find(
        {.name = "ms-amp",
         .where = leaf.describe(),
         .there = "only DeepSpeed as MS-AMP wraps it reads this section; without 'import msamp' the run is "
                  "BF16 or fp16",
         .here = "trains in FP8; optimizer_state fp8 keeps the moments in 8 bits, too"});
  } else {
    importer.ignore(leaf, "MS-AMP's level; see optimizer_state in octet");
  }
}

void communication_type_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string type = plain_word(leaf.text);
  if (type == "fp32" || type == "float32") {
    importer.warn(
        leaf, "octet sends gradients in BF16 and adds them in fp32; gradient_reduce_dtype fp32 sends fp32");
    importer.find({.name = "communication-fp32",
                   .where = leaf.describe(),
                   .there = "every reduction of gradients moves 4 bytes per weight instead of 2",
                   .here = "sends 2 bytes per weight and adds in fp32 (gradient_reduce_dtype)"});
  } else if (type == "fp16" || type == "bf16" || type == "bfp16" || type == "bfloat16" || leaf.is_null()) {
    importer.ignore(leaf, "octet sends gradients in BF16 and adds them in fp32");
  } else {
    importer.warn(leaf, "DeepSpeed takes fp16, bf16 or fp32; octet sends gradients in BF16");
  }
}

void grad_accumulation_type_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string type = plain_word(leaf.text);
  if (type == "fp32") {
    importer.find({.name = "grad-accum-fp32",
                   .where = leaf.describe(),
                   .there = "gradient buffers take 4 bytes per weight, and each micro-step casts into them",
                   .here = "adds gradients where they are computed, without casts"});
    importer.ignore(
        leaf,
        "octet adds up micro-batches in fp32; a step of one micro-batch needs no sum (grad_accum_dtype)");
  } else if (type == "bf16") {
    importer.map(leaf, "grad_accum_dtype", type);
  } else {
    importer.ignore(leaf, "octet adds gradients in fp32 or bf16");
  }
}

void adam_mode_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off()) {
    importer.refuse(leaf, "Adam with L2 instead of AdamW; octet has AdamW only");
  } else {
    importer.ignore(leaf, "AdamW, which octet always uses");
  }
}

void bias_correction_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off()) {
    importer.refuse(leaf, "octet's AdamW always corrects the bias");
  } else {
    importer.ignore(leaf, "octet's AdamW always corrects the bias");
  }
}

void bf16_storage_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off()) {
    importer.ignore(leaf, "off");
  } else if (leaf.name.ends_with("bf16_optimizer_states")) {
    importer.map(leaf, "optimizer_state", "bf16");
  } else {
    importer.map(
        leaf, "master_weights", "stochastic",
        "no fp32 copy; octet rounds updates stochastically, so that small ones count. More accurate: "
        "compact, with half a byte more per weight");
  }
}

void overlap_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.flag() == false) {
    importer.find({.name = "no-overlap",
                   .where = leaf.describe(),
                   .there = "gradients are reduced after backward instead of during it",
                   .here = "always overlaps communication with backward"});
  }
  importer.ignore(leaf, "octet always overlaps communication with backward");
}

void bucket_rule(Importer& importer, const TreeLeaf& leaf) {
  const auto size = leaf.number();
  if (size && *size > 0 && *size < 1e6) {
    importer.find(
        {.name = "small-buckets",
         .where = leaf.describe(),
         .there = "buckets below a million elements make many small messages, which waste bandwidth",
         .here = "plans its own buckets"});
  }
  importer.ignore(leaf, "octet plans its own buckets");
}

void no_such_section_rule(Importer& importer, const TreeLeaf& leaf) {
  importer.warn(leaf, "DeepSpeed has no such section and ignores it");
  importer.find(
      {.name = "unknown-deepspeed-section",
       .where = leaf.describe(),
       .there = "DeepSpeed reads no such section: unknown names at the top of the file are ignored silently",
       .here = "does not use it either"});
}

constexpr const char* kHow = "how DeepSpeed does it; octet plans its own";
constexpr const char* kLogs = "logging and profiling of DeepSpeed; see metrics.jsonl and 'octet bench'";
constexpr const char* kScaling = "loss scaling is for fp16 alone";
constexpr const char* kMethod = "changes how the model is trained, and octet does not have it";

constexpr ToolKey kKeys[] = {
    {"train_batch_size", Fate::Derived, "", "", train_batch_rule},
    {"train_micro_batch_size_per_gpu", Fate::Mapped, "per_device_train_batch_size", "", micro_batch_rule},
    {"gradient_accumulation_steps", Fate::Mapped, "gradient_accumulation_steps", "", accumulation_rule},
    {"gradient_clipping", Fate::Mapped, "max_grad_norm", "", clipping_rule},
    {"zero_optimization.stage", Fate::Mapped, "sharding_mode", "", stage_rule},
    {"zero_optimization.offload_optimizer.device", Fate::Warned, "", "", offload_rule},
    {"zero_optimization.offload_param.device", Fate::Warned, "", "", offload_rule},
    {"zero_optimization.cpu_offload", Fate::Warned, "", "", offload_rule},
    {"zero_optimization.cpu_offload_param", Fate::Warned, "", "", offload_rule},
    {"zero_optimization.overlap_comm", Fate::Ignored, "", "", overlap_rule},
    {"zero_optimization.allgather_bucket_size", Fate::Ignored, "", "", bucket_rule},
    {"zero_optimization.reduce_bucket_size", Fate::Ignored, "", "", bucket_rule},
    {"zero_optimization.zero_quantized_weights", Fate::Warned, "",
     "ZeRO++ sends integers; octet sends FP8 or BF16"},
    {"zero_optimization.zero_quantized_gradients", Fate::Warned, "",
     "ZeRO++ sends integers; octet sends BF16"},
    {"zero_optimization.zero_quantized_nontrainable_weights", Fate::Warned, "",
     "ZeRO++ sends integers; octet sends FP8 or BF16"},
    {"zero_optimization.zero_hpz_partition_size", Fate::Ignored, "",
     "groups of ZeRO++; sharding_mode hsdp is near it"},
    {"zero_optimization.zeropp_loco_param.**", Fate::Refused, "", kMethod},
    {"zero_optimization.mics_shard_size", Fate::Warned, "", "MiCS; sharding_mode hsdp is near it"},
    {"zero_optimization.mics_hierarchical_params_gather", Fate::Ignored, "", kHow},
    {"zero_optimization.zenflow.**", Fate::Refused, "", kMethod},
    {"zero_optimization.**", Fate::Ignored, "", kHow},
    {"zero_optimization", Fate::Warned, "", "not a map; octet reads its stage"},
    {"zero_allow_untested_optimizer", Fate::Ignored, "", kHow},
    {"zero_force_ds_cpu_optimizer", Fate::Ignored, "", kHow},
    {"fp16.enabled", Fate::Warned, "", "", fp16_rule},
    {"fp16.fp16_master_weights_and_grads", Fate::Refused, "", "octet does not train in fp16"},
    {"fp16.**", Fate::Ignored, "", kScaling},
    {"bf16.enabled", Fate::Mapped, "mixed_precision", "", bf16_rule},
    {"bfloat16.enabled", Fate::Mapped, "mixed_precision", "", bf16_rule},
    {"bf16.bf16_master_weights_and_grads", Fate::Mapped, "master_weights", "", bf16_storage_rule},
    {"bf16.bf16_optimizer_states", Fate::Mapped, "optimizer_state", "", bf16_storage_rule},
    {"bfloat16.bf16_master_weights_and_grads", Fate::Mapped, "master_weights", "", bf16_storage_rule},
    {"bfloat16.bf16_optimizer_states", Fate::Mapped, "optimizer_state", "", bf16_storage_rule},
    {"bf16.**", Fate::Ignored, "", "octet chooses by master_weights and optimizer_state"},
    {"bfloat16.**", Fate::Ignored, "", "octet chooses by master_weights and optimizer_state"},
    {"fp8", Fate::Mapped, "mixed_precision", "", fp8_section_rule},
    {"fp8.**", Fate::Mapped, "mixed_precision", "", fp8_section_rule},
    {"msamp.**", Fate::Mapped, "mixed_precision", "", msamp_rule},
    {"torch_autocast.**", Fate::Ignored, "", "mixed_precision decides here"},
    {"amp.enabled", Fate::Warned, "", "Apex AMP; octet trains in FP8, BF16 or fp32"},
    {"amp.**", Fate::Ignored, "", "Apex AMP; mixed_precision decides here"},
    {"data_types.grad_accum_dtype", Fate::Mapped, "grad_accum_dtype", "", grad_accumulation_type_rule},
    {"data_types.**", Fate::Ignored, "", "octet stores weights in BF16"},
    {"communication_data_type", Fate::Warned, "", "", communication_type_rule},
    {"seq_parallel_communication_data_type", Fate::Ignored, "", "octet has no sequence parallelism"},
    {"optimizer.type", Fate::Derived, "", "", optimizer_type_rule},
    {"optimizer.params.lr", Fate::Mapped, "learning_rate", "", lr_rule},
    {"optimizer.params.betas", Fate::Mapped, "", "", betas_rule},
    {"optimizer.params.eps", Fate::Mapped, "adam_epsilon", "", eps_rule},
    {"optimizer.params.weight_decay", Fate::Mapped, "weight_decay", "", decay_rule},
    {"optimizer.params.adam_w_mode", Fate::Ignored, "", "", adam_mode_rule},
    {"optimizer.params.bias_correction", Fate::Ignored, "", "", bias_correction_rule},
    {"optimizer.params.max_grad_norm", Fate::Warned, "",
     "DeepSpeed uses it for fp16 alone; set gradient_clipping"},
    {"optimizer.params.torch_adam", Fate::Ignored, "", "which implementation of AdamW; octet has its own"},
    {"optimizer.params.fused", Fate::Ignored, "", "which implementation of AdamW; octet has its own"},
    {"optimizer.params.**", Fate::Warned, "", "not a setting of AdamW"},
    {"optimizer.legacy_fusion", Fate::Ignored, "", kHow},
    {"scheduler.type", Fate::Mapped, "lr_scheduler_type", "", scheduler_type_rule},
    {"scheduler.params.warmup_min_lr", Fate::Warned, "", "octet warms up from 0"},
    {"scheduler.params.warmup_max_lr", Fate::Mapped, "learning_rate", "", lr_rule},
    {"scheduler.params.warmup_num_steps", Fate::Mapped, "warmup_steps", "", warmup_rule},
    {"scheduler.params.total_num_steps", Fate::Mapped, "max_steps", "", total_steps_rule},
    {"scheduler.params.warmup_type", Fate::Derived, "", "octet warms up linearly"},
    {"scheduler.params.cos_min_ratio", Fate::Mapped, "min_lr_ratio"},
    {"scheduler.params.warmup_min_ratio", Fate::Ignored, "", "octet warms up from 0"},
    {"scheduler.params.last_batch_iteration", Fate::Ignored, "", "octet resumes schedules itself"},
    {"scheduler.params.**", Fate::Warned, "", "not a setting of octet's schedules"},
    {"activation_checkpointing.cpu_checkpointing", Fate::Warned, "",
     "octet keeps or recomputes activations on the GPU"},
    {"activation_checkpointing.**", Fate::Ignored, "",
     "trainers do not use this section; see gradient_checkpointing"},
    {"gradient_predivide_factor", Fate::Ignored, "", kHow},
    {"prescale_gradients", Fate::Ignored, "", kHow},
    {"sparse_gradients", Fate::Ignored, "", kHow},
    {"disable_allgather", Fate::Ignored, "", kHow},
    {"managed_gradient_accumulation", Fate::Ignored, "", kHow},
    {"dump_state", Fate::Ignored, "", kLogs},
    {"steps_per_print", Fate::Ignored, "", kLogs},
    {"wall_clock_breakdown", Fate::Ignored, "", kLogs},
    {"memory_breakdown", Fate::Ignored, "", kLogs},
    {"log_level", Fate::Ignored, "", kLogs},
    {"flops_profiler.**", Fate::Ignored, "", kLogs},
    {"comms_logger.**", Fate::Ignored, "", kLogs},
    {"tensorboard.**", Fate::Ignored, "", kLogs},
    {"wandb.**", Fate::Ignored, "", kLogs},
    {"csv_monitor.**", Fate::Ignored, "", kLogs},
    {"comet.**", Fate::Ignored, "", kLogs},
    {"timers.**", Fate::Ignored, "", kLogs},
    {"autotuning.**", Fate::Ignored, "", kLogs},
    {"comms_config.**", Fate::Warned, "", "", no_such_section_rule},
    {"monitor_config.**", Fate::Warned, "", "", no_such_section_rule},
    {"_comment", Fate::Ignored, "", "a comment"},
    {"comment", Fate::Ignored, "", "a comment"},
    {"vocabulary_size", Fate::Ignored, "", kHow},
    {"graph_harvesting", Fate::Ignored, "", kHow},
    {"compile.**", Fate::Ignored, "", "octet is compiled already"},
    {"aio.**", Fate::Ignored, "", kHow},
    {"checkpoint.**", Fate::Ignored, "", "octet saves in its own way"},
    {"nebula.**", Fate::Ignored, "", "octet saves in its own way"},
    {"datastates.**", Fate::Ignored, "", "octet saves in its own way"},
    {"dataloader_drop_last", Fate::Ignored, "", "octet has its own loader"},
    {"use_data_before_expert_parallelism", Fate::Ignored, "", kHow},
    {"gradient_allreduce_op", Fate::Derived, "", "",
     [](Importer& importer, const TreeLeaf& leaf) {
       if (plain_word(leaf.text) == "sum") {
         importer.refuse(
             leaf, "the sum over GPUs scales gradients by their number; octet takes the mean over tokens");
       } else {
         importer.ignore(leaf, "octet takes the mean over tokens");
       }
     }},
    {"tensor_parallel.**", Fate::Refused, "", "octet has no tensor parallelism"},
    {"expert_parallel.**", Fate::Refused, "", "octet has no experts"},
    {"pipeline.**", Fate::Refused, "", "octet has no pipeline parallelism"},
    {"sequence_parallel_size", Fate::Derived, "", "",
     [](Importer& importer, const TreeLeaf& leaf) {
       if (leaf.number().value_or(2) > 1) {
         importer.refuse(leaf, "octet has no sequence parallelism");
       } else {
         importer.ignore(leaf, "1: off");
       }
     }},
    {"elasticity.**", Fate::Refused, "", kMethod},
    {"curriculum_learning.**", Fate::Refused, "", kMethod},
    {"data_efficiency.**", Fate::Refused, "", kMethod},
    {"progressive_layer_drop.**", Fate::Refused, "", kMethod},
    {"eigenvalue.**", Fate::Refused, "", kMethod},
    {"quantize_training.**", Fate::Refused, "", kMethod},
    {"compression_training.**", Fate::Refused, "", kMethod},
    {"sparse_attention.**", Fate::Refused, "", kMethod},
    {"hybrid_engine.**", Fate::Refused, "", kMethod},
    {"weight_quantization.**", Fate::Refused, "", kMethod},
};

int score(const SettingsTree& tree) {
  constexpr std::string_view kCertain[] = {"zero_optimization", "train_micro_batch_size_per_gpu"};
  constexpr std::string_view kTypical[] = {"train_batch_size", "gradient_clipping", "fp16.enabled",
                                           "bf16.enabled",     "steps_per_print",   "scheduler.type",
                                           "optimizer.params"};
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
    importer.find({.name = "fp8-on-fp32",
                   .where = bf16->describe(),
                   .there = "with bf16 off, weights and everything outside FP8 are fp32",
                   .here = "uses BF16 outside the FP8 matrix products"});
  }
}

}  // namespace

const Tool& deepspeed_tool() {
  static const Tool tool{.name = "DeepSpeed",
                         .word = "deepspeed",
                         .keys = kKeys,
                         .defaults = {},
                         .score = score,
                         .finish = finish,
                         .auto_is_unset = true};
  return tool;
}

}  // namespace octet
