// Reading and writing a Hugging Face config.json: what all families share. The rest is in families/.

#include "base/json.h"
#include "model/family.h"

namespace octet {

std::string to_hf_config(const ModelConfig& config, DType weights) {
  require(weights == DType::F32 || weights == DType::BF16, "[model {}] weights are {}, expected F32 or BF16",
          config.name, name_of(weights));
  const FamilySpec& family = *config.family;
  HfJson json = {{"architectures", {family.architecture}}, {"model_type", family.name}};
  json.update(family.write(config));
  json["initializer_range"] = shortest_double(config.init_std);
  json["tie_word_embeddings"] = config.tied_head;
  // Null, because a Transformers class has its own default ids.
  json["bos_token_id"] = config.bos_id ? HfJson(*config.bos_id) : HfJson(nullptr);
  if (config.eos_ids.size() == 1) {
    json["eos_token_id"] = config.eos_ids.front();
  } else {
    json["eos_token_id"] = config.eos_ids.empty() ? HfJson(nullptr) : HfJson(config.eos_ids);
  }
  if (config.pad_id) json["pad_token_id"] = *config.pad_id;
  json["torch_dtype"] = weights == DType::F32 ? "float32" : "bfloat16";
  json["use_cache"] = true;
  const std::string text = json.dump(2) + "\n";

  // A model that the family's format cannot express (other biases, another head width) must not be written as a
  // different one.
  ModelConfig again = model_config_from_hf(text, "config.json");
  again.name = config.name;
  // Fields of rotary positions do not matter for a model with learned positions.
  if (config.learned_positions)
    again.rope_theta = config.rope_theta, again.rope_scaling = config.rope_scaling;
  require(again == config, "[model {}] is not a model that config.json of type {} can describe", config.name,
          family.name);
  return text;
}

ModelConfig model_config_from_hf(std::string_view json_text, std::string_view place) {
  const nlohmann::json json = parse_json(json_text, place);
  require(json.is_object(), "[{}] is not a JSON object", place);
  const HfFields fields(json, place);
  const std::string type = fields.text("model_type", "");
  const FamilySpec* family = find_family(type);
  if (!family) {
    std::vector<std::string> known;
    for (const FamilySpec* other : model_families()) known.push_back(other->name);
    fail("[{}] \"model_type\" is \"{}\", expected one of {}", place, type, fmt::join(known, ", "));
  }
  ModelConfig config = family->start();
  family->read(fields, config);
  config.init_std = static_cast<float>(fields.number("initializer_range", 0.02));
  if (const std::vector<int32_t> bos = fields.token_ids("bos_token_id"); !bos.empty())
    config.bos_id = bos.front();
  config.eos_ids = fields.token_ids("eos_token_id");
  // Some files name a padding token that the model does not have.
  const std::vector<int32_t> pad = fields.token_ids("pad_token_id");
  if (!pad.empty() && pad.front() < config.vocab) config.pad_id = pad.front();
  config.validate();
  return config;
}

}  // namespace octet
