// Public configurations, read where they are: which are imported, and which are refused for what.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "import_support.h"
#include "support/places.h"

namespace octet {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

struct PublicConfig {
  const char* file;
  const char* tool;
  std::vector<std::string> refused;           // parts of the refusals, in their order; none: it is imported
  std::map<std::string, std::string> values;  // the main ones of the result
};

const std::vector<PublicConfig>& configs() {
  static const std::vector<PublicConfig> all = {
      {"llamafactory/v1/train_lora/train_lora_sft.yaml",
       "LLaMA-Factory v1",
       {},
       {{"model_name_or_path", "Qwen/Qwen3-4B"},
        {"lora_rank", "16"},
        {"lora_alpha", "32"},
        {"sharding_mode", "fsdp_full"},
        {"max_seq_length", "2048"},
        {"max_steps", "10"}}},
      {"llamafactory/v1/train_full/train_full_deepspeed.yaml",
       "LLaMA-Factory v1",
       {},
       {{"model_name_or_path", "Qwen/Qwen3-0.6B"},
        {"sharding_mode", "fsdp_full"},
        {"per_device_train_batch_size", "1"},
        {"run_name", "Qwen3-0.6B-deepspeed"}}},
      {"llamafactory/extras/fp8/llama3_fp8_fsdp_sft.yaml",
       "LLaMA-Factory",
       {},
       {{"mixed_precision", "fp8"},
        {"sharding_mode", "fsdp_full"},
        {"finetuning_type", "full"},
        {"max_seq_length", "1024"},
        {"warmup_ratio", "0.1"},
        {"use_wandb", "true"},
        {"output_dir", "saves/llama3-8b/fp8-fsdp"},
        {"run_name", "llama3_fp8_fsdp_sft"}}},
      {"llamafactory/extras/oft/llama3_oft_sft.yaml",
       "LLaMA-Factory",
       {"is oft: octet has full and lora"},
       {}},
      {"llamafactory/train_lora/qwen3_lora_pretrain.yaml",
       "LLaMA-Factory",
       {},
       {{"finetuning_type", "lora"},
        {"lora_rank", "8"},
        {"packing", "stream"},
        {"dataset", "c4_demo"},
        {"max_samples", "1000"},
        {"mixed_precision", "bf16"}}},
      {"llamafactory/inference/qwen3_lora_sft.yaml",
       "LLaMA-Factory",
       {
           "infer_backend",
       },
       {}},
      {"llamafactory/train_qlora/llama3_lora_sft_awq.yaml", "LLaMA-Factory", {"quantized (AWQ)"}, {}},
      {"llamafactory/merge_lora/qwen3_gptq.yaml",
       "LLaMA-Factory",
       {"export_dir", "export_quantization_bit"},
       {}},
      {"llamafactory/deepspeed/ds_z3_offload_config.json", "DeepSpeed", {}, {{"sharding_mode", "fsdp_full"}}},
      {"llamafactory/ascend/qwen3moe_full_sft_fsdp.yaml", "LLaMA-Factory", {"a mixture of experts"}, {}},
      {"llamafactory/ktransformers/train_lora/deepseek_v3_lora_sft_kt.yaml", "LLaMA-Factory", {"use_kt"}, {}},
      {"deepspeed/axolotl/zero1.json", "DeepSpeed", {}, {{"sharding_mode", "zero1"}}},
      {"deepspeed/axolotl/zero3_bf16.json",
       "DeepSpeed",
       {},
       {{"sharding_mode", "fsdp_full"}, {"mixed_precision", "bf16"}}},
      {"deepspeed/accelerate/examples/alst_ulysses_sequence_parallelism/sp-alst.ds-config.json",
       "DeepSpeed",
       {},
       {{"sharding_mode", "fsdp_full"}, {"gradient_accumulation_steps", "1"}}},
      {"deepspeed/accelerate/examples/deepspeed_config_templates/zero_stage3_offload_config.json",
       "DeepSpeed",
       {},
       {{"sharding_mode", "fsdp_full"}, {"mixed_precision", "bf16"}, {"lr_scheduler_type", "linear"}}},
      {"deepspeed/llamafactory/ds_z2_config.json", "DeepSpeed", {}, {{"sharding_mode", "zero2"}}},
      {"axolotl/LiquidAI/lfm2-350m-fft.yaml", "Axolotl", {}, {{"model_name_or_path", "LiquidAI/LFM2-350M"}}},
      {"axolotl/archived/mpt-7b/config.yml", "Axolotl", {}, {{"model_name_or_path", "mosaicml/mpt-7b"}}},
      {"axolotl/deepcogito/cogito-v1-preview-qwen-14B-lora.yml",
       "Axolotl",
       {},
       {{"model_name_or_path", "deepcogito/cogito-v1-preview-qwen-14B"},
        {"finetuning_type", "lora"},
        {"mixed_precision", "fp8"},
        {"optimizer_state", "fp8"},
        {"lora_target", "all"},
        {"eval_split", "0.05"}}},
      {"axolotl/falcon-h1/falcon-h1-34b-qlora.yaml", "Axolotl", {"chat_template"}, {}},
      {"axolotl/glm47-flash/lora_fsdp.yaml", "Axolotl", {"quantize_moe_experts"}, {}},
      {"axolotl/llama-3-vision/lora-11b.yaml",
       "Axolotl",
       {"base_model", "processor_type", "chat_template"},
       {}},
      {"axolotl/llama-3/sparse-finetuning.yaml",
       "Axolotl",
       {"base_model", "plugins",
        "llmcompressor.recipe.finetuning_stage.finetuning_modifiers.ConstantPruningModifier.targets"},
       {}},
      {"axolotl/mistral/dpo/mistral-dpo-qlora.yml",
       "Axolotl",
       {"rl", "datasets.0.field_chosen", "datasets.0.field_rejected", "lora_modules_to_save"},
       {}},
      {"axolotl/phi/phi2-ft.yml", "Axolotl", {"resize_token_embeddings_to_32x"}, {}},
      {"axolotl/qwen3.5/122b-a10b-moe-qlora-fsdp.yaml",
       "Axolotl",
       {"base_model", "chat_template", "quantize_moe_experts"},
       {}},
      {"axolotl/voxtral/voxtral-mini-audio-qlora.yml",
       "Axolotl",
       {"base_model", "processor_type", "tokenizer_use_mistral_common"},
       {}},
      {"accelerate/examples/config_yaml_templates/multi_node.yaml",
       "Accelerate",
       {},
       {{"sharding_mode", "none"}}},
      {"accelerate/examples/torch_native_parallelism/configs/tp_hsdp.yaml",
       "Accelerate",
       {"parallelism_config.parallelism_config_tp_size"},
       {}},
      {"accelerate/tests/test_configs/0_34_0_fp8.yaml",
       "Accelerate",
       {},
       {{"mixed_precision", "fp8"},
        {"fp8_recipe", "delayed"},
        {"fp8_format", "e4m3"},
        {"fp8_amax_history_len", "1024"}}},
      {"accelerate/tests/tp/fsdp2_tp_preparation_config.yaml",
       "Accelerate",
       {},
       {{"mixed_precision", "fp32"}, {"sharding_mode", "fsdp_full"}}},
      {"llamafactory/accelerate/fsdp2_config.yaml",
       "Accelerate",
       {},
       {{"mixed_precision", "bf16"}, {"sharding_mode", "fsdp_full"}}},
      {"accelerate/examples/alst_ulysses_sequence_parallelism/sp-alst.accelerate-config.yml",
       "Accelerate",
       {"the file is not here"},
       {}},
  };
  return all;
}

fs::path folder() {
  const char* named = std::getenv("OCTET_SHARED_DATA");
  return (named ? fs::path(named) : fs::path(test::source_path("")) / "../shared/data") / "configs";
}

TEST(PublicConfigs, AreImportedOrRefusedForTheRightReason) {
  if (!fs::exists(folder())) GTEST_SKIP() << "no public configurations in " << folder();
  for (const PublicConfig& expected : configs()) {
    SCOPED_TRACE(expected.file);
    const ImportResult result = import_file((folder() / expected.file).string());
    EXPECT_EQ(result.tool, expected.tool);
    const std::vector<std::string> refused = refusals(result);
    ASSERT_EQ(refused.size(), expected.refused.size()) << import_report(result);
    for (size_t i = 0; i < refused.size(); ++i) EXPECT_THAT(refused[i], HasSubstr(expected.refused[i]));
    for (const auto& [key, value] : expected.values) EXPECT_EQ(result.value(key), value) << key;
    if (refused.empty()) {
      EXPECT_NO_THROW(test::load(result));
    }
    for (const Verdict& verdict : result.verdicts)
      EXPECT_FALSE(verdict.reason.starts_with("not a known key")) << verdict.leaf.name;
  }
}

TEST(PublicConfigs, EveryFileHasItsCase) {
  if (!fs::exists(folder())) GTEST_SKIP() << "no public configurations in " << folder();
  for (const auto& entry : fs::recursive_directory_iterator(folder())) {
    if (!entry.is_regular_file()) continue;
    const std::string name = fs::relative(entry.path(), folder()).string();
    if (name.starts_with("torchtune/")) {
      EXPECT_THAT(test::config_error_of([&] { import_file(entry.path().string()); }),
                  HasSubstr("octet imports LLaMA-Factory, "))
          << name;
      continue;
    }
    EXPECT_TRUE(std::ranges::any_of(configs(), [&](const PublicConfig& c) { return name == c.file; }))
        << name;
  }
}

}  // namespace
}  // namespace octet
