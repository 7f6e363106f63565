// Public files of Axolotl, torchtune and Accelerate, where they are at hand.

#include <cstdlib>
#include <filesystem>

#include "import/import.h"
#include "import_case.h"

namespace octet {
namespace {

struct PublicFile {
  const char* path;
  const char* tool;
  std::vector<std::string> refused = {};
  std::vector<std::pair<std::string, std::string>> settings = {};
  std::vector<std::string> findings = {};
};

const std::vector<PublicFile>& public_files() {
  static const std::vector<PublicFile> files = {
      {"axolotl/LiquidAI/lfm2-350m-fft.yaml", "Axolotl", {"base_model"}},
      {"axolotl/archived/mpt-7b/config.yml", "Axolotl", {"base_model"}},
      {"axolotl/deepcogito/cogito-v1-preview-qwen-14B-lora.yml",
       "Axolotl",
       {},
       {{"model_name_or_path", "deepcogito/cogito-v1-preview-qwen-14B"},
        {"finetuning_type", "lora"},
        {"mixed_precision", "fp8"},
        {"optimizer_state", "fp8"},
        {"lora_target", "all"},
        {"eval_split", "0.05"}}},
      {"axolotl/falcon-h1/falcon-h1-34b-qlora.yaml", "Axolotl", {"base_model", "chat_template"}},
      {"axolotl/glm47-flash/lora_fsdp.yaml", "Axolotl", {"base_model", "quantize_moe_experts"}},
      {"axolotl/llama-3-vision/lora-11b.yaml", "Axolotl", {"base_model", "processor_type", "chat_template"}},
      {"axolotl/llama-3/sparse-finetuning.yaml",
       "Axolotl",
       {"base_model", "plugins",
        "llmcompressor.recipe.finetuning_stage.finetuning_modifiers.ConstantPruningModifier.targets"}},
      {"axolotl/mistral/dpo/mistral-dpo-qlora.yml",
       "Axolotl",
       {"rl", "datasets.0.field_chosen", "datasets.0.field_rejected", "lora_modules_to_save"}},
      {"axolotl/phi/phi2-ft.yml", "Axolotl", {"base_model", "resize_token_embeddings_to_32x"}},
      {"axolotl/qwen3.5/122b-a10b-moe-qlora-fsdp.yaml",
       "Axolotl",
       {"base_model", "chat_template", "quantize_moe_experts"},
       {},
       {"cpu-offload"}},
      {"axolotl/voxtral/voxtral-mini-audio-qlora.yml",
       "Axolotl",
       {"base_model", "processor_type", "tokenizer_use_mistral_common"}},
      {"torchtune/dev/11B_lora_multi_dataset.yaml",
       "torchtune",
       {"model._component_", "model.decoder_trainable", "model.encoder_trainable", "model.fusion_trainable",
        "model.image_size", "tokenizer.image_size", "dataloader.shuffle", "datasets.0.source"},
       {},
       {"warmup-longer-than-run"}},
      {"torchtune/gemma2/9B_lora.yaml", "torchtune", {"model._component_"}},
      {"torchtune/llama3/8B_dora_single_device.yaml", "torchtune", {"model.use_dora"}},
      {"torchtune/llama3_2/1B_full_single_device.yaml",
       "torchtune",
       {},
       {{"model_name_or_path", "/tmp/Llama-3.2-1B-Instruct"},
        {"optimizer_state", "fp8"},
        {"seed", "123"},
        {"max_grad_norm", "0"},
        {"learning_rate", "2e-5"},
        {"lr_scheduler_type", "constant"}}},
      {"torchtune/llama3_2_vision/90B_qlora.yaml",
       "torchtune",
       {"model._component_", "model.decoder_trainable", "model.encoder_trainable", "model.fusion_trainable",
        "model.image_size", "tokenizer.image_size", "collate_fn"}},
      {"torchtune/phi4/14B_lora.yaml", "torchtune", {"model._component_"}},
      {"torchtune/qwen2_5/1.5B_full_single_device.yaml",
       "torchtune",
       {},
       {{"model_name_or_path", "/tmp/Qwen2.5-1.5B-Instruct"},
        {"optimizer_state", "-"},
        {"chat_template", "chatml"}}},
      {"torchtune/qwen3/1.7B_full_single_device.yaml",
       "torchtune",
       {},
       {{"model_name_or_path", "/tmp/Qwen3-1.7B"}, {"weight_decay", "0.01"}, {"train_on", "all"}}},
      // The DeepSpeed file that it names is not next to it.
      {"accelerate/examples/alst_ulysses_sequence_parallelism/sp-alst.accelerate-config.yml",
       "Accelerate",
       {"deepspeed_config.deepspeed_config_file"}},
      {"accelerate/examples/config_yaml_templates/multi_node.yaml",
       "Accelerate",
       {},
       {{"sharding_mode", "none"}}},
      {"accelerate/examples/torch_native_parallelism/configs/tp_hsdp.yaml",
       "Accelerate",
       {"parallelism_config.parallelism_config_tp_size"}},
      {"accelerate/tests/test_configs/0_34_0_fp8.yaml",
       "Accelerate",
       {},
       {{"mixed_precision", "fp8"},
        {"fp8_recipe", "delayed"},
        {"fp8_format", "e4m3"},
        {"fp8_amax_history_len", "1024"}},
       {"override-linear-precision-text", "fp8-format"}},
      {"accelerate/tests/tp/fsdp2_tp_preparation_config.yaml",
       "Accelerate",
       {},
       {{"mixed_precision", "fp32"}, {"sharding_mode", "fsdp_full"}}},
      {"llamafactory/accelerate/fsdp2_config.yaml",
       "Accelerate",
       {},
       {{"mixed_precision", "bf16"}, {"sharding_mode", "fsdp_full"}}},
  };
  return files;
}

TEST(PublicFiles, OfAxolotlTorchtuneAndAccelerate) {
  const char* named = std::getenv("OCTET_SHARED_DATA");
  const std::string data = named ? named : OCTET_SOURCE_DIR "/../shared/data";
  if (!std::filesystem::exists(data + "/configs")) {
    GTEST_SKIP() << data << "/configs is not there (OCTET_SHARED_DATA names the folder)";
  }
  for (const PublicFile& file : public_files()) {
    expect_result({.name = file.path,
                   .tool = file.tool,
                   .text = "",
                   .settings = file.settings,
                   .refused = file.refused,
                   .findings = file.findings},
                  import_file(data + "/configs/" + file.path));
  }
}

}  // namespace
}  // namespace octet
