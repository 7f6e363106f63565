#include "model/families/llama_like.h"

namespace octet {
namespace {

void read(const HfFields& f, ModelConfig& c) {
  read_llama_like(f, c, {.max_positions = 2048});
  f.refuse_unless(!f.boolean("attention_bias", false) && !f.boolean("mlp_bias", false),
                  "octet does not support attention_bias or mlp_bias of Llama");
}

HfJson write(const ModelConfig& c) {
  HfJson fields = write_llama_like(c);
  fields["attention_bias"] = false;
  fields["mlp_bias"] = false;
  return fields;
}

ModelConfig sized(std::string name, const Sizes& sizes, bool tied, double rope_factor) {
  ModelConfig c = with_sizes(llama_family(), std::move(name), sizes);
  c.vocab = 128256;
  c.max_positions = 131072;
  c.rope_scaling = RopeScaling{.factor = rope_factor};
  c.tied_head = tied;
  return c;
}

std::vector<ModelConfig> presets() {
  const Sizes large = {80, 8192, 64, 8, 128, 28672};
  return {sized("llama-3.2-1b", {16, 2048, 32, 8, 64, 8192}, true, 32),
          sized("llama-3.2-3b", {28, 3072, 24, 8, 128, 8192}, true, 32),
          sized("llama-3.1-8b", {32, 4096, 32, 8, 128, 14336}, false, 8),
          sized("llama-3.1-70b", large, false, 8),
          sized("llama-3.3-70b", large, false, 8),
          with_tiny_sizes(llama_family(), "llama-tiny", 2, 384)};
}

FamilySpec spec() {
  FamilySpec family = llama_like_family("llama", "LlamaForCausalLM");
  family.defaults.max_positions = 8192;
  family.defaults.rope_theta = 500000;
  family.read = read;
  family.write = write;
  family.presets = presets;
  family.gguf_architecture = "llama";
  family.gguf_pairs_neighbours = true;
  return family;
}

}  // namespace

const FamilySpec& llama_family() {
  static const FamilySpec family = spec();
  return family;
}

}  // namespace octet
