#include "model/families/llama_like.h"

#include "base/checked.h"

namespace octet {
namespace {

void read_rope(const HfFields& f, ModelConfig& c) {
  c.rope_theta = f.number("rope_theta", 10000.0);
  // Transformers 5 keeps theta and scaling under rope_parameters; earlier versions keep the scaling under
  // rope_scaling.
  const std::optional<HfFields> scaling =
      f.object(f.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  if (!scaling) return;
  c.rope_theta = scaling->number("rope_theta", c.rope_theta);
  const std::string type = scaling->text("rope_type", scaling->text("type", "default").c_str());
  if (type == "default") return;
  f.refuse_unless(type == "llama3",
                  fmt::format("rope scaling of type \"{}\": octet supports only llama3", type));
  c.rope_scaling =
      RopeScaling{.factor = scaling->number("factor"),
                  .low_freq_factor = scaling->number("low_freq_factor"),
                  .high_freq_factor = scaling->number("high_freq_factor"),
                  .original_max_positions = scaling->integer("original_max_position_embeddings")};
  f.refuse_unless(
      c.rope_scaling->factor > 0 && c.rope_scaling->high_freq_factor > c.rope_scaling->low_freq_factor,
      "rope scaling needs factor > 0 and high_freq_factor > low_freq_factor");
}

}  // namespace

TensorNames llama_like_tensors() {
  return {.embedding = "model.embed_tokens",
          .block = "model.layers",
          .attention_norm = "input_layernorm",
          .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
          .q_norm = "self_attn.q_norm",
          .k_norm = "self_attn.k_norm",
          .out = "self_attn.o_proj",
          .mlp_norm = "post_attention_layernorm",
          .up = {"mlp.gate_proj", "mlp.up_proj"},
          .down = "mlp.down_proj",
          .final_norm = "model.norm",
          .head = "lm_head"};
}

int64_t llama_like_ffn(int64_t width) {
  return round_up(div_up(8 * width, 3), 128);
}

void read_llama_like(const HfFields& f, ModelConfig& c, const LlamaLikeDefaults& defaults) {
  c.vocab = f.integer("vocab_size");
  c.layers = f.integer("num_hidden_layers");
  c.width = f.integer("hidden_size");
  c.heads = f.integer("num_attention_heads");
  // A field that is null is derived from the others. The defaults of the class apply only to absent fields.
  const auto or_derived = [&](const char* name, std::optional<int64_t> fallback, int64_t derived) {
    return f.integer(name, f.is_null(name) ? derived : fallback.value_or(derived));
  };
  c.kv_heads = or_derived("num_key_value_heads", defaults.kv_heads, c.heads);
  c.head_dim = or_derived("head_dim", defaults.head_dim, c.heads > 0 ? c.width / c.heads : 0);
  c.ffn = f.integer("intermediate_size");
  c.max_positions = f.integer("max_position_embeddings", defaults.max_positions);
  c.norm_epsilon = static_cast<float>(f.number("rms_norm_eps", 1e-6));
  const std::string activation = f.text("hidden_act", "silu");
  f.refuse_unless(activation == "silu",
                  fmt::format("hidden_act \"{}\": octet supports only silu", activation));
  read_rope(f, c);
  c.tied_head = f.boolean("tie_word_embeddings", false);
}

void refuse_partial_window(const HfFields& f) {
  f.refuse_unless(!f.boolean("use_sliding_window", false),
                  "\"use_sliding_window\" is true: then only some layers have a window, which octet does not "
                  "support; expected false");
}

HfJson write_llama_like(const ModelConfig& c) {
  HfJson fields = {{"vocab_size", c.vocab},
                   {"hidden_size", c.width},
                   {"intermediate_size", c.ffn},
                   {"num_hidden_layers", c.layers},
                   {"num_attention_heads", c.heads},
                   {"num_key_value_heads", c.kv_heads},
                   {"head_dim", c.head_dim},
                   {"hidden_act", "silu"},
                   {"max_position_embeddings", c.max_positions},
                   {"rms_norm_eps", shortest_double(c.norm_epsilon)},
                   {"rope_theta", c.rope_theta},
                   {"rope_scaling", nullptr},
                   {"attention_dropout", 0.0}};
  if (c.rope_scaling) {
    fields["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", c.rope_scaling->factor},
                              {"low_freq_factor", c.rope_scaling->low_freq_factor},
                              {"high_freq_factor", c.rope_scaling->high_freq_factor},
                              {"original_max_position_embeddings", c.rope_scaling->original_max_positions}};
  }
  return fields;
}

FamilySpec llama_like_family(std::string name, std::string architecture) {
  FamilySpec family;
  family.name = std::move(name);
  family.architecture = std::move(architecture);
  family.tensors = llama_like_tensors();
  family.default_ffn = llama_like_ffn;
  return family;
}

}  // namespace octet
