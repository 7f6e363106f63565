// Mistral: Llama whose queries may see only a window of the latest tokens.

#include "model/families/llama_like.h"

namespace octet {
namespace {

void read(const HfFields& f, ModelConfig& c) {
  read_llama_like(f, c, {.max_positions = 131072, .kv_heads = 8});
  // Transformers uses 4096 if the field is absent, and no window if it is null.
  c.window = f.is_null("sliding_window") ? 0 : f.integer("sliding_window", 4096);
  f.refuse_unless(f.is_null("sliding_window") || c.window > 0,
                  fmt::format("\"sliding_window\" is {}, expected null or at least 1", c.window));
}

HfJson write(const ModelConfig& c) {
  HfJson fields = write_llama_like(c);
  fields["sliding_window"] = c.window > 0 ? HfJson(c.window) : HfJson(nullptr);
  return fields;
}

ModelConfig sized(std::string name, int64_t vocab, double rope_theta, int64_t window) {
  ModelConfig c = with_sizes(mistral_family(), std::move(name), {32, 4096, 32, 8, 128, 14336});
  c.vocab = vocab;
  c.rope_theta = rope_theta;
  c.window = window;
  return c;
}

std::vector<ModelConfig> presets() {
  ModelConfig tiny = with_tiny_sizes(mistral_family(), "mistral-tiny", 2, 384);
  tiny.window = 16;
  return {sized("mistral-7b-v0.1", 32000, 10000, 4096), sized("mistral-7b-v0.3", 32768, 1000000, 0), tiny};
}

FamilySpec spec() {
  FamilySpec family = llama_like_family("mistral", "MistralForCausalLM");
  family.defaults.max_positions = 32768;
  family.defaults.rope_theta = 1000000;
  family.read = read;
  family.write = write;
  family.presets = presets;
  family.gguf_architecture = "llama";
  family.gguf_pairs_neighbours = true;
  return family;
}

}  // namespace

const FamilySpec& mistral_family() {
  static const FamilySpec family = spec();
  return family;
}

}  // namespace octet
