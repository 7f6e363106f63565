// Qwen2 and Qwen2.5: Llama with biases for queries, keys and values.

#include "model/families/llama_like.h"

namespace octet {
namespace {

void read(const HfFields& f, ModelConfig& c) {
  read_llama_like(f, c, {.max_positions = 32768, .kv_heads = 32});
  refuse_partial_window(f);
}

HfJson write(const ModelConfig& c) {
  HfJson fields = write_llama_like(c);
  fields["use_sliding_window"] = false;
  return fields;
}

ModelConfig sized(std::string name, const Sizes& sizes, int64_t vocab, bool tied, float epsilon,
                  int64_t max_positions) {
  ModelConfig c = with_sizes(qwen2_family(), std::move(name), sizes);
  c.vocab = vocab;
  c.max_positions = max_positions;
  c.norm_epsilon = epsilon;
  c.tied_head = tied;
  return c;
}

std::vector<ModelConfig> presets() {
  return {sized("qwen2.5-0.5b", {24, 896, 14, 2, 64, 4864}, 151936, true, 1e-6f, 32768),
          sized("qwen2.5-1.5b", {28, 1536, 12, 2, 128, 8960}, 151936, true, 1e-6f, 131072),
          sized("qwen2.5-3b", {36, 2048, 16, 2, 128, 11008}, 151936, true, 1e-6f, 32768),
          sized("qwen2.5-7b", {28, 3584, 28, 4, 128, 18944}, 152064, false, 1e-6f, 131072),
          sized("qwen2.5-14b", {48, 5120, 40, 8, 128, 13824}, 152064, false, 1e-5f, 131072),
          with_tiny_sizes(qwen2_family(), "qwen2.5-tiny", 2, 384)};
}

FamilySpec spec() {
  FamilySpec family = llama_like_family("qwen2", "Qwen2ForCausalLM");
  family.defaults.max_positions = 32768;
  family.defaults.norm_epsilon = 1e-6f;
  family.defaults.rope_theta = 1000000;
  family.defaults.qkv_bias = true;
  family.alias = "qwen2.5";
  family.read = read;
  family.write = write;
  family.presets = presets;
  family.gguf_architecture = "qwen2";
  return family;
}

}  // namespace

const FamilySpec& qwen2_family() {
  static const FamilySpec family = spec();
  return family;
}

}  // namespace octet
