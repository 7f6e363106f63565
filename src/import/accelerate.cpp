// Accelerate's YAML and JSON files, which 'accelerate config' writes: precision and ranks, but no model and no data.

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "import/fsdp_rules.h"
#include "import/key_table.h"
#include "import/rules.h"
#include "import/tools.h"

namespace octet {
namespace {

std::string distributed_type(const SettingsTree& tree) {
  return plain_word(tree.text("distributed_type"));
}

// fp8_config may have its own prefix: fp8_backend.
const TreeLeaf* fp8_setting(const SettingsTree& tree, std::string_view name) {
  if (const TreeLeaf* leaf = tree.find(fmt::format("fp8_config.{}", name))) return leaf;
  return tree.find(fmt::format("fp8_config.fp8_{}", name));
}

bool is_fp8(const SettingsTree& tree) {
  return plain_word(tree.text("mixed_precision")) == "fp8";
}

// te, ao, msamp or "".
std::string fp8_backend(const SettingsTree& tree) {
  const TreeLeaf* leaf = fp8_setting(tree, "backend");
  std::string word = leaf ? plain_word(leaf->text) : "";
  if (word == "torchao") word = "ao";
  if (word == "ms-amp" || word == "ms_amp") word = "msamp";
  return word;
}

void precision_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string word = plain_word(leaf.text);
  if (word == "bf16" || word == "fp8") {
    importer.map(leaf, "mixed_precision", word);
  } else if (word == "fp16") {
    fp16_rule(importer, leaf);
  } else if (word == "no" || word == "false") {
    importer.map(leaf, "mixed_precision", "fp32",
                 "fp32 is several times slower than bf16 and fp8; use it only if you need it");
  } else if (leaf.is_null()) {
    importer.ignore(leaf, "null: the training script decides");
  } else {
    importer.refuse(leaf, "expected no, fp16, bf16 or fp8");
  }
}

void processes_rule(Importer& importer, const TreeLeaf& leaf) {
  const auto count = leaf.number();
  if (leaf.is_off() || count == 1.0) {
    importer.ignore(leaf, "one process");
    return;
  }
  const auto machines = importer.tree().number("num_machines").value_or(1);
  if (!count || *count < 1) {
    importer.ignore(leaf, "the launcher says it");
  } else if (machines > 1) {
    importer.derive(
        leaf, fmt::format("{} ranks on {} machines: start {} on each, see docs/ranks.md", *count, machines,
                          fmt::format("'octet launch -n {} train ...'", whole_number(*count / machines))));
  } else {
    importer.derive(leaf, fmt::format("start the run with 'octet launch -n {} train ...'", *count));
  }
}

void backend_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string backend = fp8_backend(importer.tree());
  if (!is_fp8(importer.tree())) {
    importer.ignore(leaf, "mixed_precision is not fp8");
  } else if (backend == "ao") {
    importer.map(leaf, "fp8_recipe", "current", "torchao scales each tensor by its own maximum");
  } else if (backend == "te") {
    importer.map(leaf, "fp8_recipe", "delayed");
  } else if (backend == "msamp") {
    importer.map(leaf, "fp8_recipe", "delayed",
                 "MS-AMP also keeps gradients and moments in 8 bits; see optimizer_state in octet");
  } else {
    importer.refuse(leaf, "expected TE, AO or MSAMP");
  }
}

void interval_of_scales_rule(Importer& importer, const TreeLeaf& leaf) {
  importer.map(leaf, "fp8_interval", leaf.text);
  if (leaf.number() && leaf.number() != 1.0) {
    importer.find("fp8-interval", leaf,
                  "Transformer Engine has no such argument any more; a value other than 1 ends the run",
                  "updates the scales every so many steps");
  }
}

// What the questions of 'accelerate config' write, and nothing reads.
void unread_rule(Importer& importer, const TreeLeaf& leaf) {
  const bool is_length = leaf.name.ends_with("amax_history_length");
  const std::string_view read_name = is_length ? "amax_history_len" : "amax_compute_algo";
  importer.map(leaf, is_length ? "fp8_amax_history_len" : "fp8_amax_compute", plain_word(leaf.text));
  importer.find(
      {.name = fmt::format("accelerate-unread-{}", is_length ? "history" : "algorithm"),
       .where = leaf.describe(),
       .there = fmt::format("'accelerate config' writes this name, but Accelerate reads {}: the value is not "
                            "used there",
                            read_name),
       .here = "uses the value"});
}

void algorithm_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string word = plain_word(leaf.text);
  importer.map(leaf, "fp8_amax_compute", word);
  if (word == "most_recent") {
    importer.find("accelerate-most-recent", leaf,
                  "Accelerate hands on only values that differ from its own default, which is most_recent; "
                  "Transformer Engine then uses max",
                  "uses most_recent");
  }
}

void override_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.kind == TreeLeaf::Kind::Scalar && leaf.text.starts_with('(')) {
    importer.find(
        "override-linear-precision-text", leaf,
        "(false, false, false) is a text in YAML, not a list; Accelerate stops with \"invalid truth "
        "value (\"",
        "reads it as a list");
  }
  std::string words;
  for (const std::string& item : leaf.list()) words += plain_word(item) + " ";
  if (words.find("true") != words.npos) {
    importer.refuse(
        leaf,
        "octet runs forward and both backward products of a layer in FP8, or none; see fp8_skip_layers");
  } else {
    importer.ignore(leaf, "all three products in FP8, as in octet");
  }
}

void trainer_value_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null() || leaf.is_auto()) {
    importer.ignore(leaf, "auto: the training script decides");
  } else {
    importer.map(leaf, leaf.name.ends_with("clipping") ? "max_grad_norm" : "gradient_accumulation_steps",
                 leaf.text);
  }
}

void mesh_rule(Importer& importer, const TreeLeaf& leaf) {
  const std::string_view name = leaf.name;
  if (name.ends_with("dp_replicate_size") || name.ends_with("dp_shard_size")) {
    importer.derive(leaf, "gives sharding_mode");
  } else if (name.ends_with("_size")) {
    parallel_size_rule(importer, leaf);
  } else {
    importer.ignore(leaf, "part of parallelism_config");
  }
}

constexpr KeyRules kRules[] = {
    {"mixed_precision", precision_rule},
    {"fp16", fp16_rule},
    {"num_processes", processes_rule},
    {"fp8_config.backend fp8_config.fp8_backend", backend_rule},
    {"fp8_config.interval", interval_of_scales_rule},
    {"fp8_config.amax_history_length fp8_config.amax_compute_algorithm", unread_rule},
    {"fp8_config.amax_compute_algo", algorithm_rule},
    {"fp8_config.override_linear_precision", override_rule},
    {"deepspeed_config.deepspeed_config_file", deepspeed_file_rule},
    {"deepspeed_config.offload_optimizer_device deepspeed_config.offload_param_device", offload_rule},
    {"deepspeed_config.gradient_accumulation_steps deepspeed_config.gradient_clipping", trainer_value_rule},
    {"fsdp_config.**", fsdp_config_rule},
    {"parallelism_config.**", mesh_rule},
};

constexpr std::string_view kKeys = R"(
fp8_config.margin=fp8_margin fp8_config.amax_history_len=fp8_amax_history_len
  fp8_config.use_autocast_during_eval=fp8_eval : mapped
num_machines : derived, one 'octet launch' per machine, or srun; see docs/ranks.md
machine_rank main_process_ip main_process_port rdzv_backend same_network main_training_function enable_cpu_affinity
  debug enable_numa_affinity deepspeed_config.zero3_init_flag deepspeed_config.zero3_save_16bit_model
  deepspeed_config.deepspeed_hostfile deepspeed_config.deepspeed_exclusion_filter
  deepspeed_config.deepspeed_inclusion_filter deepspeed_config.deepspeed_multinode_launcher
  deepspeed_config.deepspeed_moe_layer_cls_names
  : ignored, octet starts and connects its ranks in its own way, see docs/ranks.md
gpu_ids : ignored, set CUDA_VISIBLE_DEVICES to choose GPUs
downcast_bf16 tpu_name tpu_zone tpu_use_cluster tpu_use_sudo command_file commands tpu_vm tpu_env mpirun_config.**
  ipex_config.** ipex megatron_lm_config.** ec2_instance_type iam_role_name image_uri profile region base_job_name
  pytorch_version transformers_version py_version sagemaker_inputs_file sagemaker_metrics_file additional_args.**
  : ignored, for other hardware or services
dynamo_config.** dynamo_backend : ignored, octet has its own kernels
fp8_config.opt_level fp8_config.optimization_level : ignored, MS-AMP's level; see optimizer_state in octet
fp8_config.enable_fsdp_float8_all_gather : ignored, octet always sends FP8 codes in an FP8 run
fp8_config.pad_inner_dim : ignored, a product whose sizes do not fit stays in BF16, and octet lists it
deepspeed_config.offload_optimizer_nvme_path deepspeed_config.offload_param_nvme_path
  : ignored, octet saves in its own way, and can always resume
fp8_config.** : warned, nothing reads it, neither Accelerate nor octet
compute_environment : amazon_sagemaker refused, octet does not start jobs at SageMaker; start 'octet train' there yourself
  | ignored, octet runs where it is started
distributed_type : no false ignored, one process | fsdp deepspeed derived, gives sharding_mode | multi_cpu -> device cpu
  | multi_gpu -> sharding_mode none, every GPU has a whole copy; zero1 gives the same results in less memory
  | megatron_lm refused, octet has no tensor and pipeline parallelism; use distributed_type FSDP
  | refused, octet runs on NVIDIA GPUs and on CPUs
use_cpu : off ignored, off | -> device cpu
fp8_config.fp8_format : e4m3 e5m2 hybrid -> fp8_format | -> fp8_format
fp8_config.use_mxfp8_block_scaling : off ignored, off
  | -> fp8_recipe mxfp8, octet has no kernels for it yet and runs delayed in its place
deepspeed_config.zero_stage : 0 -> sharding_mode none | 1 -> sharding_mode zero1 | 2 -> sharding_mode zero2
  | 3 -> sharding_mode fsdp_full | refused, expected 0, 1, 2 or 3
)";

int score(const SettingsTree& tree) {
  constexpr std::string_view kLikely =
      "compute_environment num_machines num_processes machine_rank rdzv_backend fsdp_config fp8_config "
      "deepspeed_config parallelism_config same_network mixed_precision";
  // Of DeepSpeed's own file, even if a key is left over in it.
  if (tree.has("zero_optimization") || tree.has("train_micro_batch_size_per_gpu")) return 0;
  return (tree.has("distributed_type") ? 60 : 0) + count_keys(tree, kLikely, 10);
}

void finish_ranks(Importer& importer) {
  const SettingsTree& tree = importer.tree();
  const auto size = [&](std::string_view name) -> const TreeLeaf* {
    const TreeLeaf* leaf = tree.find(fmt::format("parallelism_config.parallelism_config_{}", name));
    return leaf ? leaf : tree.find(fmt::format("parallelism_config.{}", name));
  };
  const TreeLeaf* shard = size("dp_shard_size");
  const TreeLeaf* replicate = size("dp_replicate_size");
  const auto number = [](const TreeLeaf* leaf) { return leaf ? leaf->number().value_or(0) : 0; };
  if (number(shard) > 1 || number(replicate) > 1)
    set_mesh_sharding(importer, number(replicate), number(shard), number(shard) > 1 ? *shard : *replicate);
  if (distributed_type(tree) == "fsdp")
    set_default_fsdp_sharding(importer, "FSDP shards everything by default");
  if (distributed_type(tree) == "deepspeed" && !importer.is_set("sharding_mode"))
    importer.set("sharding_mode", "zero2", "zero_stage 2 is the default of Accelerate");
}

void find_mistakes(Importer& importer) {
  const SettingsTree& tree = importer.tree();
  if (!is_fp8(tree)) return;
  const std::string where = tree.find("mixed_precision")->describe();
  const std::string backend = fp8_backend(tree);
  if (backend.empty()) {
    importer.find(
        {.name = "fp8-backend-by-chance",
         .where = where,
         .there = "without fp8_config.backend, Accelerate takes what is installed: torchao, then Transformer "
                  "Engine, then MS-AMP",
         .here = "has one implementation; fp8_recipe chooses the scaling"});
  }
  if (backend == "ao" || backend.empty()) {
    find_torchao_fsdp_mistakes(importer, fp8_setting(tree, "enable_fsdp_float8_all_gather"),
                               backend == "ao" ? fsdp_setting(tree, "cpu_ram_efficient_loading") : nullptr,
                               distributed_type(tree) == "fsdp" ? fsdp_version_of(tree) : 0);
  }
  if (distributed_type(tree) == "deepspeed") {
    importer.find(
        {.name = "accelerate-fp8-with-deepspeed",
         .where = where,
         .there =
             "many versions of Accelerate convert no layer to FP8 when DeepSpeed is used: the run is BF16",
         .here = "runs in FP8 with every sharding_mode"});
  }
}

void finish(Importer& importer) {
  const SettingsTree& tree = importer.tree();
  finish_ranks(importer);
  find_mistakes(importer);
  if (is_fp8(tree) && fp8_backend(tree) == "te" && !importer.is_set("fp8_amax_history_len"))
    importer.set("fp8_amax_history_len", "1024", "default of Accelerate");
  if (!importer.is_set("mixed_precision") && importer.has_defaults() && !importer.is_included() &&
      !tree.has("mixed_precision"))
    importer.set("mixed_precision", "bf16", "not in the file: the training script decides there");
}

}  // namespace

const Tool& accelerate_tool() {
  static const std::vector<ToolKey> keys = key_table(kRules, kKeys);
  static const Tool tool{.name = "Accelerate",
                         .word = "accelerate",
                         .keys = keys,
                         .defaults = {},
                         .score = score,
                         .finish = finish};
  return tool;
}

}  // namespace octet
