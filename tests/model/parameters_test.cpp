#include "model/parameters.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace octet {
namespace {

// Parameter counts as published with the models.
TEST(ModelPresets, HaveThePublishedSizes) {
  const std::pair<const char*, int64_t> expected[] = {
      {"gpt2", 124'439'808},
      {"gpt2-medium", 354'823'168},
      {"gpt2-large", 774'030'080},
      {"gpt2-xl", 1'557'611'200},
      {"llama-3.2-1b", 1'235'814'400},
      {"llama-3.2-3b", 3'212'749'824},
      {"llama-3.1-8b", 8'030'261'248},
      {"qwen2.5-0.5b", 494'032'768},
      {"qwen2.5-1.5b", 1'543'714'304},
      {"qwen2.5-3b", 3'085'938'688},
      {"qwen2.5-7b", 7'615'616'512},
      {"qwen2.5-14b", 14'770'033'664},
      {"llama-3.1-70b", 70'553'706'496},
      {"llama-3.3-70b", 70'553'706'496},
      {"qwen3-0.6b", 596'049'920},
      {"qwen3-1.7b", 1'720'574'976},
      {"qwen3-4b", 4'022'468'096},
      {"qwen3-8b", 8'190'735'360},
      {"qwen3-14b", 14'768'307'200},
      {"qwen3-32b", 32'762'123'264},
      {"mistral-7b-v0.1", 7'241'732'096},
      {"mistral-7b-v0.3", 7'248'023'552},
  };
  for (const auto& [name, count] : expected) EXPECT_EQ(model_preset(name).parameter_count(), count) << name;
}

TEST(ModelPresets, TheTableHoldsEveryParameterOnce) {
  for (const std::string& name : model_preset_names()) {
    const ModelConfig config = model_preset(name);
    config.validate();
    int64_t covered = 0;
    std::set<std::string> names, hf_names;
    for (const ParameterSpec& spec : parameter_table(config)) {
      EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
      for (const HfPart& part : spec.hf) {
        EXPECT_TRUE(hf_names.insert(part.name).second) << part.name;
        covered += part.rows * (spec.shape.rank() == 1 ? 1 : spec.shape[1]);
      }
    }
    EXPECT_EQ(covered, config.parameter_count()) << name;
  }
}

TEST(ModelPresets, AnUnknownNameSuggestsTheNearest) {
  try {
    model_preset("lama-tiny");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'llama-tiny'"), std::string::npos) << error.what();
  }
}

double deviation(const std::vector<float>& values) {
  double squares = 0;
  for (const float x : values) squares += static_cast<double>(x) * static_cast<double>(x);
  return std::sqrt(squares / static_cast<double>(values.size()));
}

struct Initialised {
  explicit Initialised(const ModelConfig& config, DType dtype = DType::F32, int threads = 1)
      : device(make_cpu_device(threads)), set(config, {.weight = dtype}, true, planner) {
    planner.finish();
    memory = device->allocate(planner.plan().peak_bytes());
    planner.bind(memory.get());
    set.initialise(*device, 5);
  }
  std::vector<float> values(const char* name) { return ParameterSet::weight_values(*device, set[name]); }

  std::unique_ptr<Device> device;
  BufferPlanner planner;
  ParameterSet set;
  std::shared_ptr<void> memory;
};

TEST(Initialisation, FollowsEachFamily) {
  Initialised gpt2(model_preset("gpt2-tiny"));
  EXPECT_NEAR(deviation(gpt2.values("layers.1.mlp.up.weight")), 0.02, 2e-4);
  EXPECT_NEAR(deviation(gpt2.values("layers.1.mlp.down.weight")), 0.02 / std::sqrt(8.0), 1e-4);
  EXPECT_NEAR(deviation(gpt2.values("layers.1.attention.out.weight")), 0.02 / std::sqrt(8.0), 2e-4);
  EXPECT_EQ(deviation(gpt2.values("layers.1.attention.qkv.bias")), 0.0);
  EXPECT_EQ(gpt2.values("final_norm.gain"), std::vector<float>(128, 1.0f));
  Initialised llama(model_preset("llama-tiny"));
  EXPECT_NEAR(deviation(llama.values("layers.1.mlp.down.weight")), 0.02, 3e-4);
}

TEST(Initialisation, PaddingRowsAreZero) {
  const ModelConfig config = model_preset("llama-tiny");
  ASSERT_GT(config.padded_vocab(), config.vocab);
  Initialised model(config);
  const std::vector<float> values = model.values("embedding.tokens");
  for (size_t i = static_cast<size_t>(config.vocab * config.width); i < values.size(); ++i)
    ASSERT_EQ(values[i], 0.0f);
}

TEST(Initialisation, DoesNotDependOnThreads) {
  Initialised one(model_preset("llama-tiny"), DType::F32, 1);
  Initialised three(model_preset("llama-tiny"), DType::F32, 3);
  EXPECT_EQ(one.values("layers.2.attention.qkv.weight"), three.values("layers.2.attention.qkv.weight"));
}

TEST(Initialisation, Bf16WithRemainderHoldsTheExactFp32) {
  Initialised wide(model_preset("qwen2.5-tiny")), split(model_preset("qwen2.5-tiny"), DType::BF16);
  EXPECT_EQ(split.values("layers.0.mlp.up.weight"), wide.values("layers.0.mlp.up.weight"));
}

}  // namespace
}  // namespace octet
