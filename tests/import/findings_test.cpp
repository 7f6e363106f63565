// Known mistakes: each is named where it is made, and only there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "import/environment.h"
#include "import_support.h"

namespace octet {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Mistake {
  const char* name;
  const char* with;
  const char* without;
};

constexpr const char* kLf = "stage: sft\ndo_train: true\ntemplate: llama3\n";
constexpr const char* kDs = "{\"zero_optimization\": {\"stage\": 2";

// LLaMA-Factory unless the text begins with a comma: that is the rest of a DeepSpeed file.
const Mistake kMistakes[] = {
    {"deepspeed-fp8-section", "}, \"fp8\": {\"enabled\": true}}", "}, \"bf16\": {\"enabled\": true}}"},
    {"communication-fp32", "}, \"communication_data_type\": \"fp32\"}",
     "}, \"communication_data_type\": \"bf16\"}"},
    {"grad-accum-fp32", "}, \"data_types\": {\"grad_accum_dtype\": \"fp32\"}}",
     "}, \"data_types\": {\"grad_accum_dtype\": \"bf16\"}}"},
    {"cpu-offload", ", \"offload_optimizer\": {\"device\": \"cpu\"}}}",
     ", \"offload_optimizer\": {\"device\": \"none\"}}}"},
    {"no-overlap", ", \"overlap_comm\": false}}", ", \"overlap_comm\": true}}"},
    {"small-buckets", ", \"reduce_bucket_size\": 1e5}}", ", \"reduce_bucket_size\": 5e8}}"},
    {"unknown-deepspeed-section", "}, \"monitor_config\": {\"x\": 1}}",
     "}, \"tensorboard\": {\"enabled\": true}}"},
    {"deepspeed-log-warmup", "}, \"scheduler\": {\"type\": \"WarmupLR\"}}",
     "}, \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_type\": \"linear\"}}}"},
    {"fp8-on-fp32", "}, \"fp8\": {\"enabled\": true}, \"bf16\": {\"enabled\": false}}",
     "}, \"fp8\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}"},
    {"fp8-backend", "fp8: true\nfp8_backend: auto\n", "fp8: true\nfp8_backend: te\n"},
    {"fp8-backend", "fp8: true\nfp8_backend: torchao\n", "fp8_backend: torchao\n"},
    {"fp8-backend", "fp8: true\n", "bf16: true\n"},  // auto is the default
    {"no-precision", "}}", "}, \"bf16\": {\"enabled\": true}}"},
    {"no-precision", "}, \"fp16\": {\"enabled\": false}}", "}, \"fp16\": {\"enabled\": \"auto\"}}"},
    {"ms-amp", "}, \"msamp\": {\"enabled\": true, \"opt_level\": \"O2\"}}",
     "}, \"msamp\": {\"enabled\": false}}"},
    {"fp16", "fp16: true\n", "fp16: false\n"},
    {"fp8-with-recompute", "fp8: true\ngradient_checkpointing: true\n",
     "bf16: true\ngradient_checkpointing: true\n"},
    {"gradient-checkpointing-unused", "gradient_checkpointing: true\n",
     "disable_gradient_checkpointing: true\n"},
    {"length-not-a-multiple-of-16", "fp8: true\ncutoff_len: 1000\n", "fp8: true\ncutoff_len: 1008\n"},
    {"length-not-a-multiple-of-16", "fp8: true\ncutoff_len: 2047\n", "bf16: true\ncutoff_len: 2047\n"},
    {"warmup-longer-than-run", "warmup_steps: 2000\nmax_steps: 1760\n",
     "warmup_steps: 200\nmax_steps: 1760\n"},
    {"all-gather-without-fp8", "fp8_enable_fsdp_float8_all_gather: true\n",
     "fp8: true\nfp8_enable_fsdp_float8_all_gather: true\n"},
    {"float8-all-gather", "fp8: true\nfp8_enable_fsdp_float8_all_gather: true\n",
     "fp8: true\nfp8_enable_fsdp_float8_all_gather: true\nfsdp_config: {fsdp_version: 2}\n"},
    {"fp8-with-lora", "fp8: true\nfinetuning_type: lora\n", "fp8: true\nfinetuning_type: full\n"},
    {"fp8-with-quantization", "fp8: true\nquantization_bit: 4\n", "quantization_bit: 4\n"},
    {"packing-mixes-documents", "packing: true\n", "packing: true\nneat_packing: true\n"},
    {"constant-ignores-warmup", "lr_scheduler_type: constant\nwarmup_ratio: 0.1\n",
     "lr_scheduler_type: constant_with_warmup\nwarmup_ratio: 0.1\n"},
    {"gpt2-stays-bf16", "fp8: true\nmodel_name_or_path: openai-community/gpt2\n",
     "bf16: true\nmodel_name_or_path: openai-community/gpt2\n"},
    {"fp8-format", "fp8: true\nfp8_format: e4m3\n", "fp8: true\nfp8_format: hybrid\n"},
    {"mxfp8-not-native", "fp8: true\nfp8_recipe: mxfp8\n", "fp8: true\nfp8_recipe: delayed\n"},
};

ImportResult import_case(const std::string& text) {
  const bool deepspeed = text.starts_with('}') || text.starts_with(',');
  return test::import_text((deepspeed ? kDs : kLf) + text, deepspeed ? "ds.json" : "lf.yaml");
}

TEST(Findings, AreMadeWhereTheMistakeIsAndOnlyThere) {
  for (const Mistake& mistake : kMistakes) {
    const ImportResult with = import_case(mistake.with), without = import_case(mistake.without);
    EXPECT_TRUE(test::has_finding(with, mistake.name)) << mistake.name << "\n" << import_report(with);
    EXPECT_FALSE(test::has_finding(without, mistake.name)) << mistake.name << "\n" << import_report(without);
    for (const Finding& finding : with.findings) {
      EXPECT_FALSE(finding.there.empty());
      EXPECT_FALSE(finding.here.empty());
      EXPECT_THAT(import_report(with), HasSubstr("[" + finding.name + "]"));
    }
  }
}

TEST(Findings, FileAndLineAreNamed) {
  const ImportResult result = import_case("warmup_steps: 2000\nmax_steps: 1760\n");
  ASSERT_EQ(test::mistakes_of(result).size(), 1u);
  EXPECT_THAT(finding_text(result.findings[0]),
              AllOf(HasSubstr("warmup_steps in lf.yaml:4"), HasSubstr("2000 steps"), HasSubstr("1760"),
                    HasSubstr("octet does the same")));
}

TEST(Environment, TheValueDecidesWhetherAVariableHurts) {
  const auto effect = [](const std::string& variable) {
    return environment_effects({variable}).at(0).effect;
  };
  EXPECT_EQ(effect("CUDA_LAUNCH_BLOCKING=1"), EnvironmentEffect::Hurts);
  EXPECT_TRUE(environment_effects({"CUDA_LAUNCH_BLOCKING=0"}).empty());
  EXPECT_EQ(effect("OMP_NUM_THREADS=1"), EnvironmentEffect::Hurts);
  EXPECT_EQ(effect("OMP_NUM_THREADS=16"), EnvironmentEffect::Works);
  EXPECT_EQ(effect("NCCL_IB_DISABLE=1"), EnvironmentEffect::Hurts);
  EXPECT_EQ(effect("NCCL_IB_DISABLE=0"), EnvironmentEffect::Works);
  EXPECT_EQ(effect("CUDA_DEVICE_MAX_CONNECTIONS=8"), EnvironmentEffect::Nothing);
}

TEST(Environment, VariablesOfOtherProgramsAreNamed) {
  EXPECT_THAT(environment_notes({"NVTE_FP8_ALLREDUCE=1"}), ElementsAre(HasSubstr("never existed")));
  EXPECT_THAT(environment_notes({"NVTE_FLASH_ATTN=0"}), ElementsAre(HasSubstr("attention kernel")));
  EXPECT_THAT(environment_notes({"NVTE_SOMETHING=0"}), ElementsAre(HasSubstr("Transformer Engine")));
  EXPECT_THAT(environment_notes({"CUDA_DEVICE_MAX_CONNECTIONS=1"}), ElementsAre(HasSubstr("Megatron")));
  EXPECT_THAT(environment_notes({"ACCELERATE_FP8_AMAX_HISTORY_LENGTH=8"}),
              ElementsAre(HasSubstr("read by nothing")));
  EXPECT_THAT(environment_notes({"ACCELERATE_FP8_MARGIN=0", "ACCELERATE_USE_FSDP=1"}),
              ElementsAre(HasSubstr("ACCELERATE_FP8_MARGIN is for Accelerate. The keys here"),
                          HasSubstr("ACCELERATE_USE_FSDP is for Accelerate: it has no effect")));
  EXPECT_THAT(environment_notes({"FP8_BACKEND=te"}), ElementsAre(HasSubstr("LLaMA-Factory")));
  EXPECT_THAT(environment_notes({"PATH=/bin", "NCCL_DEBUG=INFO", "OMP_NUM_THREADS=4", "HF_HOME=/x", "NVTE"}),
              IsEmpty());
  EXPECT_THAT(environment_notes({"NCCL_DEBUG=INFO", "OMP_NUM_THREADS=4"}, true),
              ElementsAre(HasSubstr("NCCL here, too"), HasSubstr("limits the CPU threads")));
}

}  // namespace
}  // namespace octet
