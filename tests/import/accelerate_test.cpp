// Configurations that 'accelerate config' writes.

#include <gmock/gmock.h>

#include "import/tools.h"
#include "import_case.h"

namespace octet {
namespace {

const std::string kHead =
    "compute_environment: LOCAL_MACHINE\ndebug: false\ndowncast_bf16: 'no'\nenable_cpu_affinity: false\n"
    "machine_rank: 0\nmain_training_function: main\nnum_machines: 1\nrdzv_backend: static\nsame_network: true\n"
    "tpu_env: []\ntpu_use_cluster: false\ntpu_use_sudo: false\nuse_cpu: false\n";

TEST(Accelerate, MisspeltKeysOfDeepSpeedAreWarnedOf) {
  const ImportResult result = test::import_text(
      kHead +
      "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config:\n  zero_stge: 3\n"
      "  zero_optimization: {stage: 3}\n  zero3_init_flag: true\n");
  EXPECT_THAT(test::reason_of(result, "deepspeed_config.zero_stge"),
              testing::HasSubstr("did you mean deepspeed_config.zero_stage?"));
  EXPECT_EQ(test::fate_of(result, "deepspeed_config.zero_optimization.stage"), "warned");
  EXPECT_EQ(test::fate_of(result, "deepspeed_config.zero3_init_flag"), "ignored");
}

TEST(Accelerate, Types) {
  expect_import(
      {.name = "one",
       .tool = "Accelerate",
       .text = kHead + "distributed_type: 'NO'\nmixed_precision: bf16\nnum_processes: 1\ngpu_ids: all\n",
       .settings = {{"mixed_precision", "bf16"}, {"sharding_mode", "-"}}});
  expect_import({.name = "ddp",
                 .tool = "Accelerate",
                 .text = kHead + "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 8\n",
                 .settings = {{"sharding_mode", "none"}}});
  expect_import(
      {.name = "fsdp1",
       .tool = "Accelerate",
       .text = kHead +
               "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 4\nfsdp_config:\n"
               "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_backward_prefetch: BACKWARD_PRE\n"
               "  fsdp_cpu_ram_efficient_loading: true\n  fsdp_forward_prefetch: false\n"
               "  fsdp_offload_params: false\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n"
               "  fsdp_state_dict_type: SHARDED_STATE_DICT\n  fsdp_sync_module_states: true\n"
               "  fsdp_use_orig_params: true\n",
       .settings = {{"sharding_mode", "zero2"}}});
  expect_import({.name = "fsdp2",
                 .tool = "Accelerate",
                 .text = kHead +
                         "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config:\n  fsdp_version: 2\n"
                         "  fsdp_reshard_after_forward: true\n  fsdp_activation_checkpointing: true\n",
                 .settings = {{"sharding_mode", "fsdp_full"}, {"gradient_checkpointing", "auto"}}});
  expect_import(
      {.name = "deepspeed",
       .tool = "Accelerate",
       .text =
           kHead +
           "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config:\n  zero_stage: 3\n"
           "  gradient_accumulation_steps: 4\n  gradient_clipping: 1.0\n  offload_optimizer_device: none\n"
           "  offload_param_device: none\n  zero3_init_flag: true\n  zero3_save_16bit_model: true\n",
       .settings = {
           {"sharding_mode", "fsdp_full"}, {"gradient_accumulation_steps", "4"}, {"max_grad_norm", "1.0"}}});
  expect_import({.name = "xpu",
                 .tool = "Accelerate",
                 .text = kHead + "distributed_type: MULTI_XPU\nmixed_precision: bf16\n",
                 .refused = {"distributed_type"}});
  expect_import({.name = "megatron",
                 .tool = "Accelerate",
                 .text = kHead + "distributed_type: MEGATRON_LM\nmixed_precision: bf16\n",
                 .refused = {"distributed_type"}});
}

TEST(Accelerate, Launching) {
  const ImportResult result = import_tree(parse_tree(
      kHead + "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 8\n", "accelerate.yaml"));
  const auto verdict =
      std::ranges::find_if(result.verdicts, [](const Verdict& v) { return v.leaf.name == "num_processes"; });
  ASSERT_NE(verdict, result.verdicts.end());
  EXPECT_THAT(verdict->reason, testing::HasSubstr("octet launch -n 8 train"));
}

TEST(Accelerate, Precision) {
  expect_import({.name = "fp16",
                 .tool = "Accelerate",
                 .text = kHead + "distributed_type: 'NO'\nmixed_precision: fp16\n",
                 .settings = {{"mixed_precision", "bf16"}},
                 .warned = {"mixed_precision"},
                 .findings = {"fp16"}});
  expect_import({.name = "no",
                 .tool = "Accelerate",
                 .text = kHead + "distributed_type: 'NO'\nmixed_precision: 'no'\n",
                 .settings = {{"mixed_precision", "fp32"}}});
}

const std::string kFp8 =
    kHead + "distributed_type: MULTI_GPU\nmixed_precision: fp8\nnum_processes: 2\nfp8_config:\n";

TEST(Accelerate, TransformerEngine) {
  expect_import(
      {.name = "te",
       .tool = "Accelerate",
       .text = kFp8 +
               "  backend: TE\n  amax_compute_algo: max\n  amax_history_len: 64\n  fp8_format: HYBRID\n"
               "  interval: 1\n  margin: 1\n  override_linear_precision: [false, false, false]\n"
               "  use_autocast_during_eval: true\n",
       .settings = {{"mixed_precision", "fp8"},
                    {"fp8_recipe", "delayed"},
                    {"fp8_amax_compute", "max"},
                    {"fp8_amax_history_len", "64"},
                    {"fp8_format", "hybrid"},
                    {"fp8_margin", "1"},
                    {"fp8_eval", "true"}}});
  expect_import(
      {.name = "mistakes",
       .tool = "Accelerate",
       .text = kFp8 +
               "  backend: TE\n  amax_compute_algorithm: most_recent\n  amax_history_length: 32\n"
               "  interval: 4\n  fp8_format: E4M3\n  override_linear_precision: (false, false, false)\n",
       .settings = {{"fp8_amax_history_len", "32"},
                    {"fp8_amax_compute", "most_recent"},
                    {"fp8_interval", "4"}},
       .findings = {"accelerate-unread-algorithm", "accelerate-unread-history", "fp8-interval",
                    "override-linear-precision-text", "fp8-format"}});
  expect_import({.name = "most recent",
                 .tool = "Accelerate",
                 .text = kFp8 + "  backend: TE\n  amax_compute_algo: most_recent\n",
                 .settings = {{"fp8_amax_compute", "most_recent"}, {"fp8_amax_history_len", "1024"}},
                 .findings = {"accelerate-most-recent"}});
  expect_import({.name = "override",
                 .tool = "Accelerate",
                 .text = kFp8 + "  backend: TE\n  override_linear_precision: [false, false, true]\n",
                 .refused = {"fp8_config.override_linear_precision"}});
  expect_import({.name = "mxfp8",
                 .tool = "Accelerate",
                 .text = kFp8 + "  backend: TE\n  use_mxfp8_block_scaling: true\n",
                 .settings = {{"fp8_recipe", "mxfp8"}},
                 .findings = {"mxfp8-not-native"}});
  expect_import({.name = "ms-amp",
                 .tool = "Accelerate",
                 .text = kFp8 + "  backend: MSAMP\n  optimization_level: O2\n",
                 .settings = {{"fp8_recipe", "delayed"}}});
  expect_import({.name = "unread",
                 .tool = "Accelerate",
                 .text = kFp8 + "  backend: TE\n  amax_length: 3\n",
                 .warned = {"fp8_config.amax_length"}});
}

TEST(Accelerate, Torchao) {
  const std::string text = kHead +
                           "distributed_type: FSDP\nmixed_precision: fp8\nfp8_config:\n  backend: AO\n"
                           "  enable_fsdp_float8_all_gather: true\n  pad_inner_dim: true\n";
  expect_import({.name = "good",
                 .tool = "Accelerate",
                 .text = text +
                         "dynamo_config:\n  dynamo_backend: INDUCTOR\nfsdp_config:\n  fsdp_version: 2\n"
                         "  fsdp_cpu_ram_efficient_loading: false\n",
                 .settings = {{"fp8_recipe", "current"}, {"sharding_mode", "fsdp_full"}}});
  expect_import({.name = "mistakes",
                 .tool = "Accelerate",
                 .text = text + "fsdp_config:\n  fsdp_version: 1\n  fsdp_cpu_ram_efficient_loading: true\n"
                                "  fsdp_activation_checkpointing: true\n  fsdp_offload_params: true\n",
                 .warned = {"fsdp_config.fsdp_offload_params"},
                 .findings = {"cpu-offload", "float8-all-gather", "ram-efficient-loading-with-torchao",
                              "fp8-with-recompute", "torchao-without-compile"}});
}

TEST(Accelerate, Fp8WithDeepSpeedOrWithoutABackend) {
  expect_import({.name = "deepspeed",
                 .tool = "Accelerate",
                 .text = kHead +
                         "distributed_type: DEEPSPEED\nmixed_precision: fp8\nfp8_config:\n  backend: TE\n"
                         "deepspeed_config:\n  zero_stage: 2\n  offload_optimizer_device: cpu\n",
                 .settings = {{"sharding_mode", "zero2"}},
                 .warned = {"deepspeed_config.offload_optimizer_device"},
                 .findings = {"cpu-offload", "accelerate-fp8-with-deepspeed"}});
  expect_import({.name = "no backend",
                 .tool = "Accelerate",
                 .text = kHead + "distributed_type: 'NO'\nmixed_precision: fp8\n",
                 .settings = {{"mixed_precision", "fp8"}},
                 .findings = {"fp8-backend-by-chance"}});
}

TEST(Accelerate, Meshes) {
  const std::string text = kHead + "distributed_type: FSDP\nmixed_precision: bf16\nparallelism_config:\n";
  expect_import({.name = "hsdp",
                 .tool = "Accelerate",
                 .text = text +
                         "  parallelism_config_dp_replicate_size: 2\n  parallelism_config_dp_shard_size: 4\n"
                         "  parallelism_config_tp_size: 1\n  parallelism_config_cp_size: 1\n",
                 .settings = {{"sharding_mode", "hsdp"}}});
  expect_import(
      {.name = "cp",
       .tool = "Accelerate",
       .text = text + "  parallelism_config_cp_size: 2\n  parallelism_config_cp_comm_strategy: allgather\n",
       .refused = {"parallelism_config.parallelism_config_cp_size"}});
}

TEST(Torchtitan, TomlIsRefusedWithAdvice) {
  const std::string error = test::config_error_of([] { import_file("llama3_8b.toml"); });
  EXPECT_THAT(error, testing::HasSubstr("torchtitan"));
  EXPECT_THAT(error, testing::HasSubstr("mixed_precision: fp8"));
}

}  // namespace
}  // namespace octet
