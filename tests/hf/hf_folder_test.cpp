// Writing the weights and the config of a model as Hugging Face has them, and reading them back.

#include "hf/hf_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "support/error_of.h"
#include "support/golden_model.h"

namespace octet {
namespace {

class StringSink : public Sink {
 public:
  using Sink::append;
  void append(std::span<const std::byte> bytes) override {
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  std::vector<std::byte> all;
};

struct Weights {
  Weights(const ModelConfig& config, DType dtype, bool training,
          RemainderKind remainder = RemainderKind::Exact)
      : device(make_cpu_device(1)),
        set(config, {.weight = dtype, .remainder = remainder}, training, planner) {
    planner.finish();
    memory = device->allocate(planner.plan().peak_bytes());
    planner.bind(memory.get());
    set.initialise(*device, 3);
  }
  std::vector<std::byte> save(SafeDType dtype) {
    StringSink sink;
    save_hf_weights(sink, *device, set, dtype);
    return std::move(sink.all);
  }

  std::unique_ptr<Device> device;
  BufferPlanner planner;
  ParameterSet set;
  std::shared_ptr<void> memory;
};

HfWeights weights_of(const SafetensorsFile& file, const std::string& prefix = "") {
  return HfWeights([&file](std::string_view name) { return file.find(name); }, file.place(), prefix);
}

class HfFolder : public testing::TestWithParam<const char*> {};

// The golden files were written by Transformers: the same names, shapes and bytes must come out.
TEST_P(HfFolder, WritesTheTensorsThatTransformersWrote) {
  const GoldenModel golden(GetParam());
  Weights model(golden.config, DType::F32, false);
  weights_of(golden.file, "weights.").load(*model.device, model.set);
  const std::vector<std::byte> bytes = model.save(SafeDType::F32);
  const SafetensorsFile file = SafetensorsFile::parse(bytes, "saved");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  size_t expected = 0;
  for (const SafeTensor& tensor : golden.file.tensors()) {
    if (!tensor.name.starts_with("weights.")) continue;
    const std::string_view name = tensor.name.substr(8);
    if (golden.config.tied_head && name == "lm_head.weight") continue;
    ++expected;
    const SafeTensor& saved = file.at(name);
    EXPECT_TRUE(std::ranges::equal(saved.shape, tensor.shape)) << name;
    EXPECT_TRUE(std::ranges::equal(saved.bytes, tensor.bytes)) << name;
  }
  EXPECT_EQ(file.tensors().size(), expected);
}

TEST_P(HfFolder, ConfigReadBackIsTheSame) {
  ModelConfig config = GoldenModel(GetParam()).config;
  config.bos_id = 3;
  for (const std::vector<int32_t>& eos : {std::vector<int32_t>{}, {4}, {4, 5, 6}}) {
    config.eos_ids = eos;
    EXPECT_EQ(model_config_from_hf(to_hf_config(config, DType::BF16), "test"), config);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, HfFolder,
                         testing::Values("gpt2", "llama_untied", "llama_rope_scaled", "qwen2_tied",
                                         "qwen2_untied", "qwen3_tied", "mistral_window"));

TEST(HfConfig, EveryPresetCanBeWritten) {
  for (const std::string& name : model_preset_names()) {
    ModelConfig config = model_preset(name);
    ModelConfig again = model_config_from_hf(to_hf_config(config, DType::F32), "test");
    again.name = name;
    EXPECT_EQ(again, config) << name;
  }
}

// What config.json of a family leaves out means what it means to Transformers.
TEST(HfConfig, AbsentFieldsHaveTheDefaultsOfTransformers) {
  const auto read = [](const std::string& type, const std::string& more) {
    return model_config_from_hf(
        fmt::format(R"({{"model_type": "{}", "vocab_size": 96, "hidden_size": 512, "num_hidden_layers": 2,
            "num_attention_heads": 32, "intermediate_size": 64{}}})",
                    type, more),
        "test");
  };
  EXPECT_EQ(read("llama", "").kv_heads, 32);
  EXPECT_EQ(read("llama", "").head_dim, 16);
  EXPECT_EQ(read("qwen3", "").head_dim, 128);
  EXPECT_EQ(read("mistral", "").kv_heads, 8);
  EXPECT_EQ(read("mistral", R"(, "num_key_value_heads": null)").kv_heads, 32);
  EXPECT_EQ(read("mistral", "").window, 4096);
  EXPECT_EQ(read("mistral", R"(, "sliding_window": null)").window, 0);
  EXPECT_EQ(read("mistral", R"(, "sliding_window": 7)").window, 7);
  EXPECT_THROW(read("mistral", R"(, "sliding_window": 0)"), Error);
  EXPECT_EQ(read("qwen3", R"(, "sliding_window": 7)").window, 0);  // use_sliding_window is off
  for (const char* type : {"qwen2", "qwen3"}) {
    EXPECT_THAT(error_of([&] { read(type, R"(, "use_sliding_window": true)"); }),
                testing::HasSubstr("\"use_sliding_window\" is true"));
  }
}

TEST(HfConfig, NumbersThatNoModelCanHaveAreRefused) {
  const auto error = [](const std::string& layers, const std::string& theta) {
    return error_of([&] {
      model_config_from_hf(
          fmt::format(
              R"({{"model_type": "llama", "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": {},
              "num_attention_heads": 2, "intermediate_size": 64, "rope_theta": {}}})",
              layers, theta),
          "test");
    });
  };
  EXPECT_THAT(error("1", "0"), testing::HasSubstr("rope_theta is 0"));
  EXPECT_THAT(error("1", "-10000.0"), testing::HasSubstr("rope_theta is -10000"));
  EXPECT_THAT(error("9223372036854775808", "1e4"), testing::HasSubstr("is 9223372036854775808, expected"));
}

// Only rotary positions turn pairs of values.
TEST(HfConfig, HeadsOfGpt2MayHaveAnyWidth) {
  const ModelConfig config = model_config_from_hf(
      R"({"model_type": "gpt2", "vocab_size": 96, "n_embd": 12, "n_head": 12, "n_layer": 1, "n_positions": 8})",
      "test");
  EXPECT_EQ(config.head_dim, 1);
  EXPECT_THAT(error_of([] {
                model_config_from_hf(
                    R"({"model_type": "llama", "vocab_size": 96, "hidden_size": 12, "num_attention_heads": 12,
                        "num_hidden_layers": 1, "intermediate_size": 8})",
                    "test");
              }),
              testing::HasSubstr("the head dimension is 1, expected an even number for rotary positions"));
}

TEST(HfConfig, AModelThatTheFormatCannotSayIsRefused) {
  ModelConfig config = model_preset("llama-tiny");
  config.out_bias = true;
  EXPECT_THROW(to_hf_config(config, DType::F32), Error);
  config = model_preset("gpt2-tiny");
  config.head_dim = 64;
  EXPECT_THROW(to_hf_config(config, DType::F32), Error);
}

TEST(HfFolderPrecision, Bf16KeepsTheWeightsAndF32TheExactValues) {
  for (const char* preset : {"gpt2-tiny", "qwen2.5-tiny", "qwen3-tiny"}) {
    Weights model(model_preset(preset), DType::BF16, true);
    const std::vector<std::byte> narrow = model.save(SafeDType::BF16), wide = model.save(SafeDType::F32);
    const SafetensorsFile narrow_file = SafetensorsFile::parse(narrow, "bf16");
    const SafetensorsFile wide_file = SafetensorsFile::parse(wide, "fp32");
    Weights again(model_preset(preset), DType::BF16, true);
    for (const Parameter& p : model.set.all()) {
      const std::vector<float> exact = ParameterSet::weight_values(*model.device, p);
      EXPECT_EQ(weights_of(wide_file).values(p.spec), exact) << p.spec.name;
      // A bf16 value has no remainder, so reading it back gives the same bits of the weight.
      ParameterSet::set_weight(*again.device, again.set[p.spec.name], weights_of(narrow_file).values(p.spec));
      EXPECT_EQ(std::memcmp(again.set[p.spec.name].weight.data, p.weight.data,
                            static_cast<size_t>(p.weight.bytes())),
                0)
          << p.spec.name;
    }
  }
}

// A compact run takes bf16 as it is and rounds fp32 to its 20 bits; an export in fp32 has all of them.
TEST(HfFolderPrecision, CompactWeightsTakeWhatTheyCanHold) {
  for (const char* preset : {"gpt2-tiny", "llama-tiny"}) {  // with transposed matrices, and without
    Weights exact(model_preset(preset), DType::F32, false);
    const std::vector<std::byte> narrow = exact.save(SafeDType::BF16), wide = exact.save(SafeDType::F32);
    const SafetensorsFile narrow_file = SafetensorsFile::parse(narrow, "bf16");
    const SafetensorsFile wide_file = SafetensorsFile::parse(wide, "fp32");
    Weights from_narrow(model_preset(preset), DType::BF16, true, RemainderKind::Compact);
    Weights from_wide(model_preset(preset), DType::BF16, true, RemainderKind::Compact);
    weights_of(narrow_file).load(*from_narrow.device, from_narrow.set);
    weights_of(wide_file).load(*from_wide.device, from_wide.set);
    const std::vector<std::byte> saved = from_wide.save(SafeDType::F32);
    const SafetensorsFile saved_file = SafetensorsFile::parse(saved, "compact");
    for (const Parameter& p : exact.set.all()) {
      const auto values = [&](const Weights& of) {
        for (const Parameter& q : of.set.all()) {
          if (q.spec.name == p.spec.name) return ParameterSet::weight_values(*of.device, q);
        }
        return std::vector<float>{};
      };
      EXPECT_EQ(values(from_narrow), weights_of(narrow_file).values(p.spec)) << p.spec.name;
      std::vector<float> expected = values(exact);
      if (p.spec.shape.rank() == 2) {
        for (float& x : expected) x = std::bit_cast<float>(compact_nearest(std::bit_cast<uint32_t>(x)));
      }
      EXPECT_EQ(values(from_wide), expected) << p.spec.name;
      EXPECT_EQ(weights_of(saved_file).values(p.spec), expected) << p.spec.name;
    }
  }
}

TEST(HfFolderPrecision, Fp32RoundsToNearestEven) {
  Weights model(model_preset("llama-tiny"), DType::F32, false);
  const std::vector<std::byte> bytes = model.save(SafeDType::BF16);
  const SafetensorsFile file = SafetensorsFile::parse(bytes, "bf16");
  const Parameter& p = model.set["layers.3.mlp.up.weight"];
  std::vector<float> expected = ParameterSet::weight_values(*model.device, p);
  for (float& x : expected) x = round_to_bf16(x);
  EXPECT_EQ(weights_of(file).values(p.spec), expected);
}

}  // namespace
}  // namespace octet
