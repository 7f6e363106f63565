// Rules about the model, its weights and its adapters.

#include <fmt/format.h>
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <utility>

#include "import/rules.h"

namespace octet {
namespace {

constexpr std::string_view kFamilies =
    "octet has GPT-2, Llama, Qwen2.5, Qwen3 and Mistral (dense text models)";

// Parts of hub ids that tell a family, and what it is. The first that matches decides, so exceptions come first.
struct FamilyMark {
  std::string_view part;  // of the id in lower case
  std::string_view what;  // "": octet has it
};
constexpr FamilyMark kMarks[] = {
    {"deepseek-r1-distill-llama", ""},
    {"deepseek-r1-distill-qwen", ""},
    {"cogito-v1-preview", ""},
    {"nemotron-nano-8b", ""},
    {"mixtral", "Mixtral, a mixture of experts"},
    {"gemma", "Gemma"},
    {"deepseek", "DeepSeek"},
    {"pixtral", "Pixtral, a vision model"},
    {"voxtral", "Voxtral, an audio model"},
    {"phi-", "Phi"},
    {"phi_", "Phi"},
    {"phi1", "Phi"},
    {"phi2", "Phi"},
    {"phi3", "Phi"},
    {"phi4", "Phi"},
    {"/phi", "Phi"},
    {"falcon", "Falcon"},
    {"mpt-", "MPT"},
    {"llama-4", "Llama 4, a mixture of experts"},
    {"llama4", "Llama 4, a mixture of experts"},
    {"llava", "LLaVA, a vision model"},
    {"smolvlm", "SmolVLM, a vision model"},
    {"internvl", "InternVL, a vision model"},
    {"minicpm", "MiniCPM"},
    {"-vision", "a vision model"},
    {"_vision", "a vision model"},
    {"-vl-", "a vision model"},
    {"-vl", "a vision model"},
    {"-omni", "a multimodal model"},
    {"-audio", "an audio model"},
    {"whisper", "Whisper, an audio model"},
    {"qwen3.5", "Qwen3.5"},
    {"qwen3-next", "Qwen3-Next"},
    {"qwen3-coder-next", "Qwen3-Next"},
    {"qwen/qwen-", "the first Qwen"},
    {"-moe", "a mixture of experts"},
    {"glm", "GLM"},
    {"lfm2", "LFM2"},
    {"lfm-", "LFM"},
    {"baichuan", "Baichuan"},
    {"internlm", "InternLM"},
    {"bloom", "BLOOM"},
    {"olmo", "OLMo"},
    {"granite", "Granite"},
    {"starcoder", "StarCoder"},
    {"stablelm", "StableLM"},
    {"gpt-oss", "gpt-oss, a mixture of experts"},
    {"gpt-neo", "GPT-Neo"},
    {"gpt-j", "GPT-J"},
    {"pythia", "Pythia (GPT-NeoX)"},
    {"facebook/opt", "OPT"},
    {"kimi", "Kimi"},
    {"moonlight", "Moonlight"},
    {"command-r", "Command R"},
    {"aya-", "Aya"},
    {"nemotron", "Nemotron"},
    {"jamba", "Jamba"},
    {"mamba", "Mamba"},
    {"rwkv", "RWKV"},
    {"exaone", "EXAONE"},
    {"hunyuan", "Hunyuan"},
    {"ernie", "ERNIE"},
    {"seed-oss", "Seed-OSS"},
    {"apertus", "Apertus"},
    {"flan-t5", "T5"},
    {"t5-", "T5"},
    {"bert", "BERT"},
    {"grok", "Grok"},
    {"dbrx", "DBRX"},
    {"jetmoe", "JetMoE"},
    {"minimax", "MiniMax"},
    {"arcee-ai/afm", "AFM"},
};
constexpr FamilyMark kQuantized[] = {
    {"-awq", "AWQ"},
    {"_awq", "AWQ"},
    {"-gptq", "GPTQ"},
    {"_gptq", "GPTQ"},
    {"-bnb-4bit", "bitsandbytes"},
    {"-4bit", "4-bit"},
    {"-8bit", "8-bit"},
    {"-int4", "INT4"},
    {"-int8", "INT8"},
    {"gguf", "GGUF"},
    {"-aqlm", "AQLM"},
    {"-fp8", "FP8"},
    {"-nvfp4", "NVFP4"},
    {"-mxfp4", "MXFP4"},
    {"-exl2", "EXL2"},
    {"-hqq", "HQQ"},
    {"-quantized", "quantized"},
    {"sparse-llama", "pruned"},
};

// 30B-A3B, 122b-a10b: the second number counts active weights of a mixture of experts.
bool names_active_experts(std::string_view id) {
  for (size_t at = id.find("b-a"); at != std::string_view::npos; at = id.find("b-a", at + 1)) {
    size_t end = at + 3;
    while (end < id.size() && (std::isdigit(static_cast<unsigned char>(id[end])) || id[end] == '.')) ++end;
    if (end > at + 3 && end < id.size() && id[end] == 'b') return true;
  }
  return id.find("8x7b") != id.npos || id.find("8x22b") != id.npos;
}

}  // namespace

std::string plain_word(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  std::string word(text);
  std::ranges::transform(word, word.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return word;
}

std::optional<std::string> unsupported_model(std::string_view id) {
  const std::string word = plain_word(id);
  for (const FamilyMark& mark : kQuantized) {
    if (word.find(mark.part) != word.npos) {
      return fmt::format(
          "the weights are {}; octet reads BF16, fp16 and fp32 weights, and makes FP8 itself",
          mark.what == "pruned" ? "pruned to be sparse" : fmt::format("quantized ({})", mark.what));
    }
  }
  if (names_active_experts(word)) return fmt::format("a mixture of experts; {}", kFamilies);
  for (const FamilyMark& mark : kMarks) {
    if (word.find(mark.part) == word.npos) continue;
    if (mark.what.empty()) return std::nullopt;
    return fmt::format("{}; {}", mark.what, kFamilies);
  }
  return std::nullopt;
}

void model_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off()) {
    importer.ignore(leaf, "null: no model is named");
    return;
  }
  // A folder says in its config.json what it is.
  std::error_code code;
  if (!std::filesystem::is_directory(leaf.text, code)) {
    if (const auto why = unsupported_model(leaf.text)) {
      importer.refuse(leaf, *why);
      return;
    }
  }
  importer.map(leaf, "model_name_or_path", leaf.text);
}

// Adapters on a base of 4 or 8 bits: octet keeps the base in FP8, which is nearer to the original weights.
void quantized_base_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off()) {
    importer.ignore(leaf, "off");
    return;
  }
  importer.set("mixed_precision", "fp8", fmt::format("{}: frozen weights in FP8 instead", leaf.name),
               leaf.place);
  importer.warn(
      leaf,
      "octet has no 4-bit or integer weights; with finetuning_type lora the frozen weights are FP8 instead, 1 byte "
      "each; with full nothing is frozen");
}

void lora_target_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_null()) {
    importer.ignore(leaf, "null: the default");
    return;
  }
  std::vector<std::string> names = leaf.list();
  for (std::string& name : names) {
    if (name == "all-linear" || name == "all_linear") name = "all";
    if (name == "lm_head" || name == "embed_tokens") {
      importer.refuse(leaf,
                      fmt::format("{} gets no adapter in octet; only the matrices of the layers do", name));
      return;
    }
  }
  importer.map_list(leaf, "lora_target", std::move(names));
}

void revision_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off() || leaf.text == "main") {
    importer.ignore(leaf, "main: the newest");
  } else {
    importer.refuse(leaf, "octet takes the main revision; download this one and name its folder");
  }
}

void set_no_system(Importer& importer, const TreeLeaf& leaf) {
  if (!importer.is_set("default_system"))
    importer.set("default_system", "", "the template has no system message there", leaf.place);
}

}  // namespace octet
