// Qwen3 (dense): Llama with a norm per query and key head, and a head width independent of width / heads.

#include "model/families/llama_like.h"

namespace octet {
namespace {

void read(const HfFields& f, ModelConfig& c) {
  read_llama_like(f, c, {.max_positions = 32768, .kv_heads = 32, .head_dim = 128});
  f.refuse_unless(!f.boolean("attention_bias", false), "octet does not support attention_bias of Qwen3");
  refuse_partial_window(f);
}

HfJson write(const ModelConfig& c) {
  HfJson fields = write_llama_like(c);
  fields["attention_bias"] = false;
  fields["use_sliding_window"] = false;
  return fields;
}

ModelConfig sized(std::string name, const Sizes& sizes, bool tied) {
  ModelConfig c = with_sizes(qwen3_family(), std::move(name), sizes);
  c.vocab = 151936;
  c.tied_head = tied;
  return c;
}

std::vector<ModelConfig> presets() {
  ModelConfig tiny = with_tiny_sizes(qwen3_family(), "qwen3-tiny", 2, 384);
  tiny.head_dim = 48;  // 192 wide with four heads
  return {sized("qwen3-0.6b", {28, 1024, 16, 8, 128, 3072}, true),
          sized("qwen3-1.7b", {28, 2048, 16, 8, 128, 6144}, true),
          sized("qwen3-4b", {36, 2560, 32, 8, 128, 9728}, true),
          sized("qwen3-8b", {36, 4096, 32, 8, 128, 12288}, false),
          sized("qwen3-14b", {40, 5120, 40, 8, 128, 17408}, false),
          sized("qwen3-32b", {64, 5120, 64, 8, 128, 25600}, false),
          tiny};
}

FamilySpec spec() {
  FamilySpec family = llama_like_family("qwen3", "Qwen3ForCausalLM");
  family.defaults.max_positions = 40960;
  family.defaults.norm_epsilon = 1e-6f;
  family.defaults.rope_theta = 1000000;
  family.defaults.qk_norm = true;
  family.head_dim = 128;
  family.read = read;
  family.write = write;
  family.presets = presets;
  family.gguf_architecture = "qwen3";
  return family;
}

}  // namespace

const FamilySpec& qwen3_family() {
  static const FamilySpec family = spec();
  return family;
}

}  // namespace octet
