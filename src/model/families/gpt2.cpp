// GPT-2: LayerNorm with biases everywhere, learned positions, GELU, one fused matrix for queries, keys and values.

#include "model/families/sizes.h"

namespace octet {
namespace {

void read(const HfFields& f, ModelConfig& c) {
  c.vocab = f.integer("vocab_size", 50257);
  c.layers = f.integer("n_layer", 12);
  c.width = f.integer("n_embd", 768);
  c.heads = c.kv_heads = f.integer("n_head", 12);
  f.refuse_unless(c.heads > 0 && c.width % c.heads == 0,
                  fmt::format("n_embd {} is not a multiple of n_head {}", c.width, c.heads));
  c.head_dim = c.width / c.heads;
  c.ffn = f.integer("n_inner", 4 * c.width);
  c.max_positions = f.integer("n_positions", 1024);
  c.norm_epsilon = static_cast<float>(f.number("layer_norm_epsilon", 1e-5));
  const std::string activation = f.text("activation_function", "gelu_new");
  f.refuse_unless(activation == "gelu_new" || activation == "gelu_pytorch_tanh",
                  fmt::format("activation_function \"{}\": octet supports only gelu_new", activation));
  f.refuse_unless(
      f.boolean("scale_attn_weights", true) && !f.boolean("scale_attn_by_inverse_layer_idx", false),
      "octet supports only attention scores that are scaled by the head width");
  c.tied_head = f.boolean("tie_word_embeddings", true);
}

HfJson write(const ModelConfig& c) {
  return {
      {"vocab_size", c.vocab},
      {"n_positions", c.max_positions},
      {"n_embd", c.width},
      {"n_layer", c.layers},
      {"n_head", c.heads},
      {"n_inner", c.ffn},
      {"activation_function", "gelu_new"},
      {"layer_norm_epsilon", shortest_double(c.norm_epsilon)},
      // octet trains without dropout. The defaults of Transformers would switch it on in a later fine-tuning.
      {"attn_pdrop", 0.0},
      {"embd_pdrop", 0.0},
      {"resid_pdrop", 0.0}};
}

ModelConfig sized(std::string name, int64_t layers, int64_t width, int64_t heads) {
  ModelConfig c =
      with_sizes(gpt2_family(), std::move(name), {layers, width, heads, heads, width / heads, 4 * width});
  c.vocab = 50257;
  return c;
}

std::vector<ModelConfig> presets() {
  return {sized("gpt2", 12, 768, 12), sized("gpt2-medium", 24, 1024, 16), sized("gpt2-large", 36, 1280, 20),
          sized("gpt2-xl", 48, 1600, 25), with_tiny_sizes(gpt2_family(), "gpt2-tiny", 4, 512)};
}

FamilySpec spec() {
  FamilySpec family;
  family.name = "gpt2";
  family.architecture = "GPT2LMHeadModel";
  family.tensors = {.embedding = "transformer.wte",
                    .positions = "transformer.wpe",
                    .block = "transformer.h",
                    .attention_norm = "ln_1",
                    .qkv = {"attn.c_attn"},
                    .out = "attn.c_proj",
                    .mlp_norm = "ln_2",
                    .up = {"mlp.c_fc"},
                    .down = "mlp.c_proj",
                    .final_norm = "transformer.ln_f",
                    .head = "lm_head",
                    .transposed = true};
  ModelConfig& c = family.defaults;
  c.max_positions = 1024;
  c.norm = NormKind::LayerNorm;
  c.activation = Activation::Gelu;
  c.learned_positions = true;
  c.qkv_bias = c.out_bias = true;
  c.tied_head = true;
  c.scaled_residual_init = true;
  family.default_ffn = [](int64_t width) { return 4 * width; };
  family.read = read;
  family.write = write;
  family.presets = presets;
  family.gguf_architecture = "gpt2";
  return family;
}

}  // namespace

const FamilySpec& gpt2_family() {
  static const FamilySpec family = spec();
  return family;
}

}  // namespace octet
