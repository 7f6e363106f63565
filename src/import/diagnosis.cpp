#include "import/diagnosis.h"

#include <fmt/format.h>

#include <initializer_list>

#include "base/text.h"
#include "import/rules.h"

namespace octet {
namespace {

// FP8 is asked for. A base in 4 bits becomes FP8 here, but there it was none.
bool is_fp8(const Importer& importer) {
  const SettingsTree& tree = importer.main_tree();
  if (importer.tool().name == "Axolotl" && !tree.is_on("fp8")) return false;
  return importer.value("mixed_precision") == "fp8";
}

// Any of these leaves that is on, or nullptr.
const TreeLeaf* first_on(const Importer& importer, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    const TreeLeaf* leaf = importer.main_tree().find(name);
    if (leaf && !leaf->is_off()) return leaf;
  }
  return nullptr;
}

std::string origin_of(const Importer& importer, std::string_view key) {
  for (const TreeLeaf& leaf : importer.main_tree().leaves) {
    if (leaf.name == key || leaf.name.ends_with(fmt::format(".{}", key))) return leaf.describe();
  }
  return std::string(key);
}

void check_warmup(Importer& importer) {
  const auto warmup = parse_double(importer.value("warmup_steps"));
  const auto steps = parse_double(importer.value("max_steps"));
  if (!warmup || !steps || *warmup <= 0 || *warmup < *steps) return;
  importer.find({.name = "warmup-longer-than-run",
                 .where = origin_of(importer, "warmup_steps"),
                 .there = fmt::format(
                     "the warm-up of {:.0f} steps is not shorter than the run of {:.0f}: the learning rate "
                     "never reaches its peak",
                     *warmup, *steps),
                 .here = "does the same, and warns; set warmup_ratio 0.03 or fewer warmup_steps"});
}

void check_length(Importer& importer) {
  const auto length = parse_double(importer.value("max_seq_length"));
  if (!length || !is_fp8(importer)) return;
  const std::string recipe = importer.value("fp8_recipe");
  const int64_t block = recipe == "mxfp8" ? 32 : recipe == "block" ? 128 : 16;
  const auto tokens = whole_number(*length);
  if (tokens % block == 0) return;
  importer.find(
      {.name = "length-not-a-multiple-of-16",
       .where = origin_of(importer, importer.main_tree().has("cutoff_len") ? "cutoff_len" : "max_seq_length"),
       .there =
           fmt::format("{} tokens are no multiple of {}: FP8 products fail an assertion, or padding spoils "
                       "their scales",
                       tokens, block),
       .here = fmt::format(
           "runs products in BF16 where the tokens of a micro-batch are no multiple of {}, and says "
           "so; {} tokens are better",
           block, (tokens + block - 1) / block * block)});
}

void check_recompute(Importer& importer) {
  const TreeLeaf* leaf =
      first_on(importer, {"gradient_checkpointing", "fsdp_config.fsdp_activation_checkpointing",
                          "fsdp_config.activation_checkpointing", "enable_activation_checkpointing"});
  if (!leaf || !is_fp8(importer)) return;
  importer.find("fp8-with-recompute", *leaf,
                "the casts to FP8 are recomputed, too; with FSDP2 that made FP8 slower than BF16",
                "recomputes only what the memory needs, and keeps what is FP8 already");
}

void check_compile(Importer& importer) {
  const std::string backend = plain_word(importer.main_tree().text("fp8_config.backend"));
  const bool torchao = backend == "ao" || backend == "torchao" ||
                       (importer.main_tree().is_on("fp8") && importer.main_tree().has("base_model"));
  const bool compiles =
      first_on(importer, {"torch_compile", "compile", "dynamo_config.dynamo_backend", "dynamo_backend"});
  if (!torchao || compiles || !is_fp8(importer)) return;
  importer.find(
      {.name = "torchao-without-compile",
       .where = origin_of(importer, backend.empty() ? "fp8" : "backend"),
       .there = "torchao's FP8 without torch.compile runs casts as separate kernels and is slower than BF16",
       .here = "fuses the casts into its kernels"});
}

void check_model(Importer& importer) {
  const std::string model = plain_word(importer.value("model_name_or_path"));
  if (is_fp8(importer) && model.find("gpt2") != model.npos && importer.tool().name != "DeepSpeed") {
    importer.find(
        {.name = "gpt2-stays-bf16",
         .where = origin_of(importer, "model_name_or_path"),
         .there =
             "the layers of GPT-2 in Transformers are Conv1D, which no FP8 backend converts: it stays in BF16",
         .here = "runs GPT-2 in FP8"});
  }
}

void check_format(Importer& importer) {
  const std::string format = plain_word(importer.value("fp8_format"));
  if (!is_fp8(importer) || (format != "e4m3" && format != "e5m2")) return;
  importer.find(
      {.name = "fp8-format",
       .where = origin_of(importer, "fp8_format"),
       .there = format == "e4m3"
                    ? "gradients in E4M3 have 14 binary orders less range than in E5M2: small ones vanish"
                    : "Transformer Engine refuses pure E5M2",
       .here =
           "does as it is told; fp8_format hybrid (E4M3 forward, E5M2 for gradients) is what training wants"});
}

void check_recipe(Importer& importer) {
  if (is_fp8(importer) && importer.value("fp8_recipe") == "mxfp8") {
    const bool by_switch = importer.main_tree().has("fp8_config.use_mxfp8_block_scaling");
    importer.find({.name = "mxfp8-not-native",
                   .where = origin_of(importer, by_switch ? "use_mxfp8_block_scaling" : "fp8_recipe"),
                   .there = "MXFP8 needs a Blackwell GPU",
                   .here = "runs delayed in its place; fp8_emulation true emulates it, slower than BF16"});
  }
}

// The others leave out what does not fit; octet trains on it, so a run with long examples takes longer and sees more.
void check_long_examples(Importer& importer) {
  const std::string_view tool = importer.tool().name;
  const bool drops = tool == "Axolotl";
  if (!drops && !tool.starts_with("LLaMA-Factory") && tool != "Hugging Face TrainingArguments") return;
  if (!importer.is_set("max_seq_length") || importer.value("packing") == "stream") return;
  const TreeLeaf* length = first_on(importer, {"cutoff_len", "max_length", "max_seq_length", "sequence_len"});
  importer.find({.name = "long-examples-are-cut",
                 .where = length ? length->describe() : "max_seq_length",
                 .there = drops ? "examples that are longer are left out, or their end is"
                                : "the end of examples that are longer is left out",
                 .here = "cuts a long example into several sequences and trains on all of them",
                 .is_note = true});
}

}  // namespace

void diagnose(Importer& importer) {
  check_warmup(importer);
  check_length(importer);
  check_recompute(importer);
  check_compile(importer);
  check_model(importer);
  check_format(importer);
  check_recipe(importer);
  check_long_examples(importer);
}

}  // namespace octet
