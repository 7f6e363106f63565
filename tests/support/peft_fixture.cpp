#include "support/peft_fixture.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "tensor/floats.h"

namespace octet::test {
namespace {

class StringSink : public Sink {
 public:
  using Sink::append;
  void append(std::span<const std::byte> bytes) override {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::string text;
};

// Of a value that half precision holds exactly.
uint16_t half_bits(float value) {
  if (value == 0) return 0;
  int exponent = 0;
  const float fraction = std::frexp(std::abs(value), &exponent);  // 0.5 <= fraction < 1
  const auto mantissa = static_cast<uint16_t>((fraction * 2 - 1) * 1024);
  return static_cast<uint16_t>((value < 0 ? 0x8000 : 0) | ((exponent - 1 + 15) << 10) | mantissa);
}

}  // namespace

PeftFixture::PeftFixture(const ModelConfig& model, const LoraConfig& lora, uint64_t seed)
    : plan(plan_adapters(model, lora)) {
  std::mt19937_64 random(seed);
  const auto add = [&](const std::string& name, int64_t rows, int64_t cols) {
    Matrix matrix{.shape = {rows, cols}, .values = std::vector<float>(static_cast<size_t>(rows * cols))};
    // Exact in every type that adapters are stored in.
    for (float& value : matrix.values) value = (static_cast<float>(random() % 255) - 127) / 256;
    tensors[name] = std::move(matrix);
  };
  for (const ParameterSpec& spec : parameter_table(model)) {
    if (spec.shape.rank() != 2) continue;  // biases
    for (const HfPart& part : spec.hf) {
      const Adapter* adapter = plan.find(std::string_view(part.name).substr(0, part.name.rfind('.')));
      if (!adapter) continue;
      add("base_model.model." + adapter->module + ".lora_A.weight", adapter->rank, spec.shape[1]);
      add("base_model.model." + adapter->module + ".lora_B.weight", part.rows, adapter->rank);
    }
  }
  config = {{"alpha_pattern", nlohmann::ordered_json::object()},
            {"auto_mapping", nullptr},
            {"base_model_name_or_path", "somewhere/else"},
            {"bias", "none"},
            {"corda_config", nullptr},
            {"eva_config", nullptr},
            {"exclude_modules", nullptr},
            {"fan_in_fan_out", false},
            {"inference_mode", true},
            {"init_lora_weights", true},
            {"layer_replication", nullptr},
            {"layers_pattern", nullptr},
            {"layers_to_transform", nullptr},
            {"loftq_config", nlohmann::ordered_json::object()},
            {"lora_alpha", lora.alpha},
            {"lora_bias", false},
            {"lora_dropout", lora.dropout},
            {"megatron_config", nullptr},
            {"megatron_core", "megatron.core"},
            {"modules_to_save", nullptr},
            {"peft_type", "LORA"},
            {"peft_version", "0.18.0"},
            {"qalora_group_size", 16},
            {"r", lora.rank},
            {"rank_pattern", nlohmann::ordered_json::object()},
            {"revision", nullptr},
            {"target_modules", lora.targets},
            {"target_parameters", nullptr},
            {"task_type", "CAUSAL_LM"},
            {"trainable_token_indices", nullptr},
            {"use_dora", false},
            {"use_qalora", false},
            {"use_rslora", lora.rslora}};
  if (lora.targets == std::vector<std::string>{"all"}) config["target_modules"] = "all-linear";
}

PeftFixture::Matrix& PeftFixture::matrix(const std::string& module, char matrix) {
  return tensors.at(peft_tensor_name(module, matrix));
}

void PeftFixture::set_dtype(SafeDType dtype) {
  for (auto& [name, matrix] : tensors) matrix.dtype = dtype;
}

std::string PeftFixture::weights() const {
  std::vector<SafeTensorSpec> specs;
  for (const auto& [name, matrix] : tensors) specs.push_back({name, matrix.dtype, matrix.shape});
  StringSink sink;
  SafetensorsWriter writer(sink, specs, {{"format", "pt"}});
  for (const SafeTensorSpec& spec : writer.specs()) {
    const Matrix& matrix = tensors.at(spec.name);
    std::vector<std::byte> bytes(static_cast<size_t>(spec.byte_size()));
    const size_t width = static_cast<size_t>(safe_dtype_bits(matrix.dtype) / 8);
    for (size_t i = 0; i < matrix.values.size(); ++i) {
      const float value = matrix.values[i];
      const uint16_t narrow = matrix.dtype == SafeDType::F16 ? half_bits(value) : to_bf16(value).bits;
      std::memcpy(bytes.data() + i * width, width == 2 ? static_cast<const void*>(&narrow) : &value,
                  std::min<size_t>(width, 4));
    }
    writer.append(spec.name, bytes);
  }
  writer.finish();
  return sink.text;
}

void PeftFixture::write(const std::string& folder) const {
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/adapter_config.json") << config.dump(2);
  std::ofstream(folder + "/adapter_model.safetensors", std::ios::binary) << weights();
}

std::vector<double> PeftFixture::merged(const ParameterSpec& spec, const std::vector<float>& base) const {
  std::vector<double> result(base.begin(), base.end());
  for (const HfPart& part : spec.hf) {
    const Adapter* adapter = plan.find(std::string_view(part.name).substr(0, part.name.rfind('.')));
    if (!adapter || spec.shape.rank() != 2) continue;
    const Matrix& a = tensors.at(peft_tensor_name(adapter->module, 'A'));
    const Matrix& b = tensors.at(peft_tensor_name(adapter->module, 'B'));
    const auto rank = static_cast<size_t>(adapter->rank), cols = static_cast<size_t>(spec.shape[1]);
    for (size_t row = 0; row < static_cast<size_t>(part.rows); ++row) {
      for (size_t col = 0; col < cols; ++col) {
        double sum = 0;
        for (size_t k = 0; k < rank; ++k)
          sum += static_cast<double>(b.values[row * rank + k]) * a.values[k * cols + col];
        result[(static_cast<size_t>(part.row_begin) + row) * cols + col] += sum * adapter->scale();
      }
    }
  }
  return result;
}

}  // namespace octet::test
