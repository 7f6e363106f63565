// Rules about the model, its weights and its adapters.

#include <fmt/format.h>
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "import/rules.h"

namespace octet {
namespace {

constexpr std::string_view kFamilies =
    "octet has GPT-2, Llama, Qwen2.5, Qwen3 and Mistral (dense text models)";
constexpr std::string_view kModelTypes[] = {"gpt2", "llama", "qwen2", "qwen3", "mistral"};

// Parts of hub ids in lower case, and what they tell: "PART PART: WHAT; ...". A part that begins with a letter begins a word
// there.

// Kinds of models that octet does not train, whatever the family.
constexpr std::string_view kKinds =
    "deepseek-coder-v2: DeepSeek, a mixture of experts; mixtral: Mixtral, a mixture of experts; "
    "pixtral: Pixtral, a vision model; voxtral: Voxtral, an audio model; "
    "llama-4 llama4: Llama 4, a mixture of experts; llava: LLaVA, a vision model; "
    "smolvlm: SmolVLM, a vision model; internvl: InternVL, a vision model; -vision _vision -vl: a vision model; "
    "-omni: a multimodal model; -audio: an audio model; whisper: Whisper, an audio model; qwen3.5: Qwen3.5; "
    "qwen3-next qwen3-coder-next: Qwen3-Next; qwen/qwen-: the first Qwen; -moe: a mixture of experts";
// Names of families are a guess: many models are a Llama by another name. These are, or are trained on top of one of octet's.
constexpr std::string_view kOwnParts[] = {"llama",         "qwen",           "mistral",
                                          "gpt2",          "deepseek-coder", "deepseek-llm",
                                          "deepseek-math", "falcon3",        "phind"};
constexpr std::string_view kFamilyMarks =
    "gemma: Gemma; deepseek: DeepSeek; phi- phi1 phi2 phi3 phi4: Phi; falcon: Falcon; mpt-: MPT; "
    "minicpm: MiniCPM; glm: GLM; lfm2: LFM2; lfm-: LFM; baichuan: Baichuan; internlm: InternLM; bloom: BLOOM; "
    "olmo: OLMo; granite: Granite; starcoder: StarCoder; stablelm: StableLM; "
    "gpt-oss: gpt-oss, a mixture of experts; gpt-neo: GPT-Neo; gpt-j: GPT-J; pythia: Pythia (GPT-NeoX); "
    "facebook/opt: OPT; kimi: Kimi; moonlight: Moonlight; command-r: Command R; aya-: Aya; nemotron: Nemotron; "
    "jamba: Jamba; mamba: Mamba; rwkv: RWKV; exaone: EXAONE; hunyuan: Hunyuan; ernie: ERNIE; seed-oss: Seed-OSS; "
    "apertus: Apertus; flan-t5 t5-: T5; bert: BERT; grok: Grok; dbrx: DBRX; jetmoe: JetMoE; minimax: MiniMax; "
    "arcee-ai/afm: AFM";
constexpr std::string_view kQuantized =
    "-awq _awq: AWQ; -gptq _gptq: GPTQ; -bnb-4bit: bitsandbytes; -4bit: 4-bit; -8bit: 8-bit; -int4: INT4; "
    "-int8: INT8; gguf: GGUF; -aqlm: AQLM; -fp8: FP8; -nvfp4: NVFP4; -mxfp4: MXFP4; -exl2: EXL2; -hqq: HQQ; "
    "-quantized: quantized; sparse-llama: pruned";

// What a folder's config.json says; "" without one, or if it is broken, which the run finds.
std::string model_type_in(const std::string& folder) {
  try {
    return read_tree_file((std::filesystem::path(folder) / "config.json").string()).text("model_type");
  } catch (const ConfigError&) {
    return "";
  }
}

bool is_letter(char c) {
  return c >= 'a' && c <= 'z';
}

bool has_word(std::string_view id, std::string_view part) {
  for (size_t at = id.find(part); at != id.npos; at = id.find(part, at + 1)) {
    if (at == 0 || !is_letter(part.front()) || !is_letter(id[at - 1])) return true;
  }
  return false;
}

// What the first part that stands in the id tells; "" if there is none.
std::string_view told_by(std::string_view marks, std::string_view id, bool at_words) {
  while (!marks.empty()) {
    std::string_view mark = marks.substr(0, marks.find("; "));
    marks.remove_prefix(std::min(marks.size(), mark.size() + 2));
    const size_t colon = mark.find(": ");
    for (const std::string_view part : parts_of(mark.substr(0, colon), ' ')) {
      if (at_words ? has_word(id, part) : id.find(part) != id.npos) return mark.substr(colon + 2);
    }
  }
  return "";
}

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
  if (const std::string_view how = told_by(kQuantized, word, false); !how.empty()) {
    return fmt::format("the weights are {}; octet reads BF16, fp16 and fp32 weights, and makes FP8 itself",
                       how == "pruned" ? "pruned to be sparse" : fmt::format("quantized ({})", how));
  }
  if (names_active_experts(word)) return fmt::format("a mixture of experts; {}", kFamilies);
  if (const std::string_view kind = told_by(kKinds, word, true); !kind.empty())
    return fmt::format("{}; {}", kind, kFamilies);
  return std::nullopt;
}

std::optional<std::string> foreign_family(std::string_view id) {
  const std::string word = plain_word(id);
  for (const std::string_view part : kOwnParts) {
    if (word.find(part) != word.npos) return std::nullopt;
  }
  if (const std::string_view family = told_by(kFamilyMarks, word, true); !family.empty())
    return fmt::format("{}; {}", family, kFamilies);
  return std::nullopt;
}

void model_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off()) {
    importer.ignore(leaf, "null: no model is named");
    return;
  }
  std::error_code code;
  const bool is_path = leaf.text.starts_with('.') || leaf.text.starts_with('/') || leaf.text.starts_with('~');
  if (std::filesystem::is_directory(leaf.text, code)) {
    const std::string type = model_type_in(leaf.text);
    if (!type.empty() && std::ranges::find(kModelTypes, type) == std::end(kModelTypes)) {
      importer.refuse(leaf,
                      fmt::format("its config.json has model_type '{}'; {}", printable(type), kFamilies));
      return;
    }
  } else if (const auto why = unsupported_model(leaf.text); why && !is_path) {
    importer.refuse(leaf, *why);
    return;
  } else if (const auto doubt = why ? why : foreign_family(leaf.text)) {
    importer.set("model_name_or_path", leaf.text, leaf.name, leaf.place);
    importer.warn(leaf, fmt::format("used, although the name sounds like {}", *doubt));
    return;
  }
  importer.map(leaf, "model_name_or_path", leaf.text);
}

// Adapters on a base of 4 or 8 bits: octet keeps the base in FP8, which is nearer to the original weights.
void quantized_base_rule(Importer& importer, const TreeLeaf& leaf) {
  if (importer.skips_off(leaf)) return;
  importer.set("mixed_precision", "fp8", fmt::format("{}: frozen weights in FP8 instead", leaf.name),
               leaf.place);
  importer.warn(
      leaf,
      "octet has no 4-bit or integer weights; with finetuning_type lora the frozen weights are FP8 instead, 1 byte "
      "each; with full nothing is frozen");
}

void lora_target_rule(Importer& importer, const TreeLeaf& leaf) {
  if (importer.skips_null(leaf)) return;
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

void set_no_system(Importer& importer, const TreeLeaf& leaf) {
  if (!importer.is_set("default_system"))
    importer.set("default_system", "", "the template has no system message there", leaf.place);
}

}  // namespace octet
