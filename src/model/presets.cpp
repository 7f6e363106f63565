#include <algorithm>

#include "base/keys.h"
#include "model/config.h"

namespace octet {
namespace {

ModelConfig gpt2(std::string name, int64_t layers, int64_t width, int64_t heads) {
  ModelConfig c;
  c.name = std::move(name);
  c.family = Family::Gpt2;
  c.vocab = 50257;
  c.layers = layers;
  c.width = width;
  c.heads = c.kv_heads = heads;
  c.head_dim = width / heads;
  c.ffn = 4 * width;
  c.max_positions = 1024;
  c.norm = NormKind::LayerNorm;
  c.activation = Activation::Gelu;
  c.learned_positions = true;
  c.qkv_bias = c.out_bias = true;
  c.tied_head = true;
  return c;
}

struct Sizes {
  int64_t layers, width, heads, kv_heads, head_dim, ffn;
};

ModelConfig llama(std::string name, Sizes s, bool tied, double rope_factor) {
  ModelConfig c;
  c.name = std::move(name);
  c.family = Family::Llama;
  c.vocab = 128256;
  c.layers = s.layers;
  c.width = s.width;
  c.heads = s.heads;
  c.kv_heads = s.kv_heads;
  c.head_dim = s.head_dim;
  c.ffn = s.ffn;
  c.max_positions = 131072;
  c.rope_theta = 500000;
  c.rope_scaling = RopeScaling{.factor = rope_factor};
  c.tied_head = tied;
  return c;
}

ModelConfig qwen(std::string name, Sizes s, int64_t vocab, bool tied, float epsilon, int64_t max_positions) {
  ModelConfig c;
  c.name = std::move(name);
  c.family = Family::Qwen2;
  c.vocab = vocab;
  c.layers = s.layers;
  c.width = s.width;
  c.heads = s.heads;
  c.kv_heads = s.kv_heads;
  c.head_dim = s.head_dim;
  c.ffn = s.ffn;
  c.max_positions = max_positions;
  c.norm_epsilon = epsilon;
  c.rope_theta = 1000000;
  c.qkv_bias = true;
  c.tied_head = tied;
  return c;
}

// The byte tokenizer's 256 bytes and its end-of-text token.
constexpr int64_t kBytesVocab = 257;

ModelConfig tiny(ModelConfig c, std::string name) {
  c.name = std::move(name);
  c.vocab = kBytesVocab;
  c.layers = 4;
  c.width = 128;
  c.heads = 4;
  c.kv_heads = c.family == Family::Gpt2 ? 4 : 2;
  c.head_dim = 32;
  c.ffn = c.family == Family::Gpt2 ? 512 : 384;
  c.max_positions = 1024;
  c.rope_scaling.reset();
  c.rope_theta = 10000;
  c.tied_head = true;
  return c;
}

std::vector<ModelConfig> all_presets() {
  std::vector<ModelConfig> presets = {
      gpt2("gpt2", 12, 768, 12),
      gpt2("gpt2-medium", 24, 1024, 16),
      gpt2("gpt2-large", 36, 1280, 20),
      gpt2("gpt2-xl", 48, 1600, 25),
      llama("llama-3.2-1b", {16, 2048, 32, 8, 64, 8192}, true, 32),
      llama("llama-3.2-3b", {28, 3072, 24, 8, 128, 8192}, true, 32),
      llama("llama-3.1-8b", {32, 4096, 32, 8, 128, 14336}, false, 8),
      qwen("qwen2.5-0.5b", {24, 896, 14, 2, 64, 4864}, 151936, true, 1e-6f, 32768),
      qwen("qwen2.5-1.5b", {28, 1536, 12, 2, 128, 8960}, 151936, true, 1e-6f, 131072),
      qwen("qwen2.5-3b", {36, 2048, 16, 2, 128, 11008}, 151936, true, 1e-6f, 32768),
      qwen("qwen2.5-7b", {28, 3584, 28, 4, 128, 18944}, 152064, false, 1e-6f, 131072),
      qwen("qwen2.5-14b", {48, 5120, 40, 8, 128, 13824}, 152064, false, 1e-5f, 131072),
  };
  presets.push_back(tiny(presets[0], "gpt2-tiny"));
  presets.push_back(tiny(presets[4], "llama-tiny"));
  presets.push_back(tiny(presets[7], "qwen2.5-tiny"));
  return presets;
}

// Other names people use for the same model.
constexpr std::pair<std::string_view, std::string_view> kPresetAliases[] = {
    {"gpt2-124m", "gpt2"},
    {"gpt2-355m", "gpt2-medium"},
    {"gpt2-774m", "gpt2-large"},
    {"gpt2-1558m", "gpt2-xl"},
};

}  // namespace

ModelConfig model_preset(std::string_view name) {
  for (const auto& [alias, preset] : kPresetAliases) {
    if (name == alias) name = preset;
  }
  for (ModelConfig& preset : all_presets()) {
    if (preset.name == name) return preset;
  }
  const std::string near = nearest_name(name, model_preset_names());
  fail_config("[model] no preset is called '{}'{}; there are: {}", name,
              near.empty() ? "" : fmt::format("; did you mean '{}'?", near),
              fmt::join(model_preset_names(), ", "));
}

std::vector<std::string> model_preset_names() {
  std::vector<std::string> names;
  for (const ModelConfig& preset : all_presets()) names.push_back(preset.name);
  return names;
}

}  // namespace octet
