#include "hf/gguf_model.h"

#include <cmath>

#include "base/error.h"
#include "model/family.h"

namespace octet {
namespace {

// The numbers of general.file_type.
int64_t file_type(GgmlType type) {
  switch (type) {
    case GgmlType::F32:
      return 0;
    case GgmlType::F16:
      return 1;
    case GgmlType::Q8_0:
      return 7;
    case GgmlType::BF16:
      break;
  }
  return 32;
}

void add_keys(GgufWriter& writer, const ModelConfig& config, GgmlType type) {
  const std::string& architecture = config.family->gguf_architecture;
  const auto key = [&](const char* name) { return architecture + "." + name; };
  writer.add("general.architecture", architecture);
  writer.add("general.type", "model");
  writer.add("general.name", config.name);
  writer.add_count("general.file_type", file_type(type));
  writer.add_count("general.quantization_version", 2);
  writer.add_count(key("block_count"), config.layers);
  writer.add_count(key("context_length"), config.max_positions);
  writer.add_count(key("embedding_length"), config.width);
  writer.add_count(key("feed_forward_length"), config.ffn);
  writer.add_count(key("attention.head_count"), config.heads);
  writer.add_count(key("attention.head_count_kv"), config.kv_heads);
  writer.add(key(config.norm == NormKind::RmsNorm ? "attention.layer_norm_rms_epsilon"
                                                  : "attention.layer_norm_epsilon"),
             config.norm_epsilon);
  writer.add_count(key("vocab_size"), config.vocab);
  if (config.learned_positions) return;
  writer.add(key("rope.freq_base"), static_cast<float>(config.rope_theta));
  writer.add_count(key("rope.dimension_count"), config.head_dim);
  writer.add_count(key("attention.key_length"), config.head_dim);
  writer.add_count(key("attention.value_length"), config.head_dim);
}

// The tensors that the rows of one parameter become: names without ".weight" and ".bias".
std::vector<std::string> names_of(const ModelConfig& config, std::string_view name) {
  if (name == "embedding.tokens") return {"token_embd"};
  if (name == "embedding.positions") return {"position_embd"};
  if (name == "final_norm") return {"output_norm"};
  if (name == "head") return {"output"};
  const size_t number = std::string_view("layers.").size(), dot = name.find('.', number);
  require(name.starts_with("layers.") && dot != std::string_view::npos, "[gguf] unknown parameter {}", name);
  const std::string block = fmt::format("blk.{}.", name.substr(number, dot - number));
  const std::string_view part = name.substr(dot + 1);
  const auto in_block = [&](std::vector<std::string> names) {
    for (std::string& one : names) one.insert(0, block);
    return names;
  };
  if (part == "attention.norm") return in_block({"attn_norm"});
  if (part == "attention.qkv") {
    if (config.family->tensors.qkv.size() == 1) return in_block({"attn_qkv"});
    return in_block({"attn_q", "attn_k", "attn_v"});
  }
  if (part == "attention.q_norm") return in_block({"attn_q_norm"});
  if (part == "attention.k_norm") return in_block({"attn_k_norm"});
  if (part == "attention.out") return in_block({"attn_output"});
  if (part == "mlp.norm") return in_block({"ffn_norm"});
  if (part == "mlp.up") {
    if (config.family->tensors.up.size() == 1) return in_block({"ffn_up"});
    return in_block({"ffn_gate", "ffn_up"});
  }
  require(part == "mlp.down", "[gguf] unknown parameter {}", name);
  return in_block({"ffn_down"});
}

}  // namespace

int64_t GgufSource::source_row(int64_t row) const {
  if (head_dim == 0) return row_begin + row;
  const int64_t head = row / head_dim, in_head = row % head_dim;
  return row_begin + head * head_dim + in_head % 2 * (head_dim / 2) + in_head / 2;
}

std::vector<float> rope_factors(const ModelConfig& config) {
  if (!config.rope_scaling || config.learned_positions) return {};
  ModelConfig plain = config;
  plain.rope_scaling.reset();
  const std::vector<double> scaled = rope_frequencies(config), unscaled = rope_frequencies(plain);
  std::vector<float> factors;
  for (size_t i = 0; i < scaled.size(); ++i) factors.push_back(static_cast<float>(unscaled[i] / scaled[i]));
  return factors;
}

std::vector<GgufSource> add_gguf_model(GgufWriter& writer, const ModelConfig& config,
                                       std::span<const ParameterSpec> table, GgmlType type) {
  add_keys(writer, config, type);
  std::vector<GgufSource> sources;
  for (size_t p = 0; p < table.size(); ++p) {
    const ParameterSpec& spec = table[p];
    const bool is_matrix = spec.shape.rank() == 2, is_bias = spec.name.ends_with(".bias");
    std::string base = spec.name;
    for (const char* end : {".weight", ".bias", ".gain"}) {
      if (base.ends_with(end)) base.resize(base.size() - std::string_view(end).size());
    }
    const std::vector<std::string> names = names_of(config, base);
    require(names.size() == spec.hf.size(), "[gguf] {}: {} parts, expected {}", spec.name, spec.hf.size(),
            names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      const HfPart& part = spec.hf[i];
      GgufTensor tensor{.name = names[i] + (is_bias ? ".bias" : ".weight")};
      GgufSource source{.parameter = p, .row_begin = part.row_begin};
      const bool reordered = config.family->gguf_pairs_neighbours &&
                             (names[i].ends_with("attn_q") || names[i].ends_with("attn_k"));
      if (reordered) source.head_dim = config.head_dim;
      if (is_matrix) {
        tensor.rows = part.rows;
        tensor.columns = spec.shape[1];
        const bool holds = type != GgmlType::Q8_0 || tensor.columns % kQ8Block == 0;
        tensor.type = spec.name == "embedding.positions" ? GgmlType::F32 : holds ? type : GgmlType::F16;
      } else {
        tensor.columns = part.rows;
      }
      writer.add_tensor(std::move(tensor));
      sources.push_back(source);
    }
  }
  if (const std::vector<float> factors = rope_factors(config); !factors.empty()) {
    // llama.cpp reads the tensor for this architecture alone; elsewhere it would be silently left out.
    if (config.family->gguf_architecture != "llama")
      fail_config("[{}] has scaled rotary frequencies, which llama.cpp does not read for the architecture {}",
                  config.name, config.family->gguf_architecture);
    writer.add_tensor({.name = "rope_freqs.weight", .columns = std::ssize(factors)});
    sources.push_back({.parameter = GgufSource::kRopeFactors});
  }
  return sources;
}

}  // namespace octet
