#include "train/hf_folder.h"

#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

namespace octet {
namespace {

float half_to_float(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1F, fraction = bits & 0x3FF;
  if (exponent == 0) {
    const float value = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -value : value;
  }
  const uint32_t wide_exponent = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide_exponent << 23 | fraction << 13);
}

template <class T>
T element(const SafeTensor& tensor, int64_t index) {
  T value;
  std::memcpy(&value, tensor.bytes.data() + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

bool is_readable(SafeDType dtype) {
  return dtype == SafeDType::F32 || dtype == SafeDType::BF16 || dtype == SafeDType::F16;
}

float element_as_float(const SafeTensor& tensor, int64_t index) {
  switch (tensor.dtype) {
    case SafeDType::F32:
      return element<float>(tensor, index);
    case SafeDType::BF16:
      return to_float(Bf16{element<uint16_t>(tensor, index)});
    default:
      return half_to_float(element<uint16_t>(tensor, index));
  }
}

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

// Tensors that folders hold beside the parameters: causal masks and rotary tables of older versions, and the head
// where it is tied to the embedding.
bool is_known_surplus(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with("rotary_emb.inv_freq") || name == "lm_head.weight";
}

}  // namespace

ModelConfig read_hf_config(const std::string& folder) {
  const std::string path = folder + "/config.json";
  std::ifstream file(path);
  require(file.good(),
          "[{}] cannot be opened; model_name_or_path must be a Hugging Face folder with config.json and "
          "model.safetensors",
          path);
  std::stringstream text;
  text << file.rdbuf();
  return model_config_from_hf(text.str(), path);
}

void HfWeights::read(const ParameterSpec& spec, std::vector<float>& values,
                     std::vector<std::string>& faults) const {
  const int64_t cols = spec.shape.rank() == 1 ? 1 : spec.shape[1];
  values.assign(static_cast<size_t>(spec.shape.numel()), 0.0f);
  for (const HfPart& part : spec.hf) {
    const SafeTensor* tensor = find_(prefix_ + part.name);
    if (!tensor) {
      faults.push_back(fmt::format("{} is missing", part.name));
      continue;
    }
    std::vector<int64_t> expected = {part.rows};
    if (spec.shape.rank() == 2) expected.push_back(cols);
    if (part.transposed) std::swap(expected[0], expected[1]);
    if (!std::equal(expected.begin(), expected.end(), tensor->shape.begin(), tensor->shape.end())) {
      faults.push_back(fmt::format("{} has shape {}, expected {}", part.name, shape_text(tensor->shape),
                                   shape_text(expected)));
      continue;
    }
    if (!is_readable(tensor->dtype)) {
      faults.push_back(
          fmt::format("{} is {}, expected F32, BF16 or F16", part.name, safe_dtype_name(tensor->dtype)));
      continue;
    }
#pragma omp parallel for
    for (int64_t row = 0; row < part.rows; ++row) {
      for (int64_t col = 0; col < cols; ++col) {
        const int64_t source = part.transposed ? col * part.rows + row : row * cols + col;
        values[static_cast<size_t>((part.row_begin + row) * cols + col)] = element_as_float(*tensor, source);
      }
    }
  }
}

std::vector<float> HfWeights::values(const ParameterSpec& spec) const {
  std::vector<float> values;
  std::vector<std::string> faults;
  read(spec, values, faults);
  require(faults.empty(), "[{}] {}", place_, fmt::join(faults, "; "));
  return values;
}

void HfWeights::load(Backend& backend, ParameterSet& parameters) const {
  // All faults are found before anything is written.
  std::vector<std::string> faults;
  std::vector<float> values;
  for (const Parameter& parameter : parameters.all()) read(parameter.spec, values, faults);
  require(faults.empty(), "[{}] does not fit the model:\n  {}", place_, fmt::join(faults, "\n  "));
  for (Parameter& parameter : parameters.all()) {
    read(parameter.spec, values, faults);
    ParameterSet::set_weight(backend, parameter, values);
  }
}

void load_hf_folder(Backend& backend, ParameterSet& parameters, const std::string& folder) {
  const SafetensorsFolder files = SafetensorsFolder::open(posix_env(), folder);
  // GPT-2 folders made by the bare model have no "transformer." before their names.
  std::string_view dropped_prefix;
  if (!files.find("transformer.wte.weight") && files.find("wte.weight")) dropped_prefix = "transformer.";
  const auto find = [&](std::string_view name) {
    if (name.starts_with(dropped_prefix)) name.remove_prefix(dropped_prefix.size());
    return files.find(name);
  };

  std::set<std::string, std::less<>> known;
  for (const Parameter& parameter : parameters.all()) {
    for (const HfPart& part : parameter.spec.hf) {
      std::string_view name = part.name;
      if (name.starts_with(dropped_prefix)) name.remove_prefix(dropped_prefix.size());
      known.emplace(name);
    }
  }
  std::vector<std::string> surplus;
  for (const SafetensorsFile& file : files.files()) {
    for (const SafeTensor& tensor : file.tensors()) {
      if (!known.contains(tensor.name) && !is_known_surplus(tensor.name)) surplus.emplace_back(tensor.name);
    }
  }
  require(surplus.empty(), "[{}] holds tensors that the model does not have:\n  {}", folder,
          fmt::join(surplus, "\n  "));
  HfWeights(find, folder).load(backend, parameters);
}

}  // namespace octet
