// Reading and writing a Hugging Face config.json. Fields have the names and defaults of the Transformers classes.

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "model/config.h"

namespace octet {
namespace {

using Json = nlohmann::json;

class Fields {
 public:
  Fields(const Json& json, std::string_view place) : json_(json), place_(place) {}

  bool has(const char* name) const { return json_.contains(name) && !json_.at(name).is_null(); }

  int64_t integer(const char* name, std::optional<int64_t> fallback = {}) const {
    if (!has(name)) return required(name, fallback);
    const Json& value = json_.at(name);
    require(value.is_number_integer(), "[{}] \"{}\" is {}, expected a whole number", place_, name,
            value.dump());
    return value.get<int64_t>();
  }
  double number(const char* name, std::optional<double> fallback = {}) const {
    if (!has(name)) return required(name, fallback);
    const Json& value = json_.at(name);
    require(value.is_number(), "[{}] \"{}\" is {}, expected a number", place_, name, value.dump());
    return value.get<double>();
  }
  bool boolean(const char* name, bool fallback) const {
    if (!has(name)) return fallback;
    const Json& value = json_.at(name);
    require(value.is_boolean(), "[{}] \"{}\" is {}, expected true or false", place_, name, value.dump());
    return value.get<bool>();
  }
  std::string text(const char* name, const char* fallback) const {
    if (!has(name)) return fallback;
    const Json& value = json_.at(name);
    require(value.is_string(), "[{}] \"{}\" is {}, expected a string", place_, name, value.dump());
    return value.get<std::string>();
  }
  std::optional<Fields> object(const char* name) const {
    if (!has(name)) return std::nullopt;
    const Json& value = json_.at(name);
    require(value.is_object(), "[{}] \"{}\" is {}, expected an object", place_, name, value.dump());
    return Fields(value, place_);
  }
  // One id or a list of ids; some write -1 where there is none.
  std::vector<int32_t> token_ids(const char* name) const {
    std::vector<int32_t> ids;
    if (!has(name)) return ids;
    const Json& value = json_.at(name);
    for (const Json& id : value.is_array() ? value : Json::array({value})) {
      require(id.is_number_integer() && id.get<int64_t>() >= -1 && id.get<int64_t>() < (int64_t{1} << 31),
              "[{}] \"{}\" is {}, expected a token id or a list of them", place_, name, value.dump());
      if (id.get<int64_t>() >= 0) ids.push_back(id.get<int32_t>());
    }
    return ids;
  }
  // A feature of the reference that octet does not compute must be off.
  void refuse_unless(bool condition, const std::string& what) const {
    require(condition, "[{}] {}", place_, what);
  }

 private:
  template <class T>
  T required(const char* name, std::optional<T> fallback) const {
    require(fallback.has_value(), "[{}] \"{}\" is missing", place_, name);
    return *fallback;
  }

  const Json& json_;
  std::string_view place_;
};

void read_gpt2(const Fields& f, ModelConfig& c) {
  c.family = Family::Gpt2;
  c.vocab = f.integer("vocab_size", 50257);
  c.layers = f.integer("n_layer", 12);
  c.width = f.integer("n_embd", 768);
  c.heads = c.kv_heads = f.integer("n_head", 12);
  f.refuse_unless(c.heads > 0 && c.width % c.heads == 0,
                  fmt::format("n_embd {} is not a multiple of n_head {}", c.width, c.heads));
  c.head_dim = c.width / c.heads;
  c.ffn = f.integer("n_inner", 4 * c.width);
  c.max_positions = f.integer("n_positions", 1024);
  c.norm = NormKind::LayerNorm;
  c.norm_epsilon = static_cast<float>(f.number("layer_norm_epsilon", 1e-5));
  c.activation = Activation::Gelu;
  const std::string activation = f.text("activation_function", "gelu_new");
  f.refuse_unless(activation == "gelu_new" || activation == "gelu_pytorch_tanh",
                  fmt::format("activation_function \"{}\": octet computes gelu_new", activation));
  f.refuse_unless(
      f.boolean("scale_attn_weights", true) && !f.boolean("scale_attn_by_inverse_layer_idx", false),
      "attention scores scaled otherwise than by the head width are not computed by octet");
  c.learned_positions = true;
  c.qkv_bias = c.out_bias = true;
  c.tied_head = f.boolean("tie_word_embeddings", true);
}

void read_rope(const Fields& f, ModelConfig& c, double default_theta) {
  c.rope_theta = f.number("rope_theta", default_theta);
  // Transformers 5 keeps both under rope_parameters, earlier versions the scaling under rope_scaling.
  const std::optional<Fields> scaling =
      f.object(f.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  if (!scaling) return;
  c.rope_theta = scaling->number("rope_theta", c.rope_theta);
  const std::string type = scaling->text("rope_type", scaling->text("type", "default").c_str());
  if (type == "default") return;
  f.refuse_unless(type == "llama3", fmt::format("rope scaling of type \"{}\": octet computes llama3", type));
  c.rope_scaling =
      RopeScaling{.factor = scaling->number("factor"),
                  .low_freq_factor = scaling->number("low_freq_factor"),
                  .high_freq_factor = scaling->number("high_freq_factor"),
                  .original_max_positions = scaling->integer("original_max_position_embeddings")};
  f.refuse_unless(
      c.rope_scaling->factor > 0 && c.rope_scaling->high_freq_factor > c.rope_scaling->low_freq_factor,
      "rope scaling needs factor > 0 and high_freq_factor > low_freq_factor");
}

void read_llama_like(const Fields& f, ModelConfig& c, bool qwen) {
  c.family = qwen ? Family::Qwen2 : Family::Llama;
  c.vocab = f.integer("vocab_size");
  c.layers = f.integer("num_hidden_layers");
  c.width = f.integer("hidden_size");
  c.heads = f.integer("num_attention_heads");
  c.kv_heads = f.integer("num_key_value_heads", c.heads);
  c.head_dim = f.integer("head_dim", c.heads > 0 ? c.width / c.heads : 0);
  c.ffn = f.integer("intermediate_size");
  c.max_positions = f.integer("max_position_embeddings", qwen ? 32768 : 2048);
  c.norm_epsilon = static_cast<float>(f.number("rms_norm_eps", 1e-6));
  const std::string activation = f.text("hidden_act", "silu");
  f.refuse_unless(activation == "silu", fmt::format("hidden_act \"{}\": octet computes silu", activation));
  read_rope(f, c, 10000.0);
  c.qkv_bias = qwen;
  f.refuse_unless(qwen || (!f.boolean("attention_bias", false) && !f.boolean("mlp_bias", false)),
                  "attention_bias and mlp_bias of Llama are not computed by octet");
  f.refuse_unless(!f.boolean("use_sliding_window", false),
                  "sliding-window attention is not computed by octet");
  c.tied_head = f.boolean("tie_word_embeddings", false);
}

using OrderedJson = nlohmann::ordered_json;

// 1e-5f as 1e-05 and not as 9.999999747378752e-06: the double with the fewest digits that is this float again.
double shortest(float value) {
  return std::stod(fmt::format("{}", value));
}

OrderedJson gpt2_fields(const ModelConfig& c) {
  return {
      {"vocab_size", c.vocab},
      {"n_positions", c.max_positions},
      {"n_embd", c.width},
      {"n_layer", c.layers},
      {"n_head", c.heads},
      {"n_inner", c.ffn},
      {"activation_function", "gelu_new"},
      {"layer_norm_epsilon", shortest(c.norm_epsilon)},
      // octet trains without dropout; the defaults of Transformers would switch it on in a later fine-tuning.
      {"attn_pdrop", 0.0},
      {"embd_pdrop", 0.0},
      {"resid_pdrop", 0.0}};
}

OrderedJson llama_like_fields(const ModelConfig& c) {
  OrderedJson fields = {{"vocab_size", c.vocab},
                        {"hidden_size", c.width},
                        {"intermediate_size", c.ffn},
                        {"num_hidden_layers", c.layers},
                        {"num_attention_heads", c.heads},
                        {"num_key_value_heads", c.kv_heads},
                        {"head_dim", c.head_dim},
                        {"hidden_act", "silu"},
                        {"max_position_embeddings", c.max_positions},
                        {"rms_norm_eps", shortest(c.norm_epsilon)},
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
  if (c.family == Family::Llama) {
    fields["attention_bias"] = false;
    fields["mlp_bias"] = false;
  } else {
    fields["use_sliding_window"] = false;
  }
  return fields;
}

}  // namespace

std::string to_hf_config(const ModelConfig& config, DType weights) {
  require(weights == DType::F32 || weights == DType::BF16, "[model {}] weights are {}, expected F32 or BF16",
          config.name, name_of(weights));
  const char* architecture = config.family == Family::Gpt2    ? "GPT2LMHeadModel"
                             : config.family == Family::Llama ? "LlamaForCausalLM"
                                                              : "Qwen2ForCausalLM";
  OrderedJson json = {{"architectures", {architecture}}, {"model_type", name_of(config.family)}};
  json.update(config.family == Family::Gpt2 ? gpt2_fields(config) : llama_like_fields(config));
  json["initializer_range"] = shortest(config.init_std);
  json["tie_word_embeddings"] = config.tied_head;
  // Null, since a class of Transformers has default ids of its own.
  json["bos_token_id"] = config.bos_id ? OrderedJson(*config.bos_id) : OrderedJson(nullptr);
  if (config.eos_ids.size() == 1) {
    json["eos_token_id"] = config.eos_ids.front();
  } else {
    json["eos_token_id"] = config.eos_ids.empty() ? OrderedJson(nullptr) : OrderedJson(config.eos_ids);
  }
  json["torch_dtype"] = weights == DType::F32 ? "float32" : "bfloat16";
  json["use_cache"] = true;
  const std::string text = json.dump(2) + "\n";

  // A model that the family's format cannot say (other biases, another head width) must not be written as another.
  ModelConfig again = model_config_from_hf(text, "config.json");
  again.name = config.name;
  // What rotary models say of positions does not matter with a table of them, and the other way round.
  if (config.learned_positions)
    again.rope_theta = config.rope_theta, again.rope_scaling = config.rope_scaling;
  require(again == config, "[model {}] is not a model that config.json of type {} can describe", config.name,
          name_of(config.family));
  return text;
}

ModelConfig model_config_from_hf(std::string_view json_text, std::string_view place) {
  const Json json = parse_json(json_text, place);
  require(json.is_object(), "[{}] is not a JSON object", place);
  const Fields fields(json, place);
  const std::string type = fields.text("model_type", "");
  ModelConfig config;
  config.name = type;
  if (type == "gpt2") {
    read_gpt2(fields, config);
  } else if (type == "llama" || type == "qwen2") {
    read_llama_like(fields, config, type == "qwen2");
  } else {
    fail("[{}] \"model_type\" is \"{}\", expected gpt2, llama or qwen2", place, type);
  }
  config.init_std = static_cast<float>(fields.number("initializer_range", 0.02));
  if (const std::vector<int32_t> bos = fields.token_ids("bos_token_id"); !bos.empty())
    config.bos_id = bos.front();
  config.eos_ids = fields.token_ids("eos_token_id");
  config.validate();
  return config;
}

}  // namespace octet
