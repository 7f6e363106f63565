// Adapters in PEFT folders: their tensors, what can be wrong with them, and merging them.

#include "hf/peft_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "hf/merge_adapter.h"
#include "support/error_of.h"
#include "support/peft_fixture.h"
#include "support/process.h"
#include "support/tiny_run.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
constexpr const char* kQuery = "model.layers.0.self_attn.q_proj";

struct PeftFolder : testing::Test {
  std::string path(const std::string& name = "adapter") const { return join_path(folder.path(), name); }
  // The message if the adapter is opened for the model.
  std::string refusal(const PeftFixture& fixture) {
    fixture.write(path());
    return error_of([&] { PeftAdapter(posix_env(), path(), model); });
  }
  const ModelConfig model = two_layers("llama-tiny");
  TemporaryFolder folder;
};

TEST_F(PeftFolder, TensorsAreReadInEveryType) {
  PeftFixture fixture(model, {.rank = 3});
  for (const SafeDType dtype : {SafeDType::F32, SafeDType::BF16, SafeDType::F16}) {
    fixture.set_dtype(dtype);
    fixture.write(path());
    const PeftAdapter adapter(posix_env(), path(), model);
    ASSERT_EQ(adapter.plan().adapters.size(), 14u);
    // Through the rows of a module, and through the parameters that training has.
    const Adapter& query = adapter.plan().adapters[0];
    EXPECT_EQ(adapter.rows(query, 'A', 0, 3, model.width), fixture.matrix(kQuery, 'A').values);
    const std::vector<float>& b = fixture.matrix(kQuery, 'B').values;
    EXPECT_EQ(adapter.rows(query, 'B', 2, 4, 3), std::vector<float>(b.begin() + 6, b.begin() + 18));
    const HfWeights weights = adapter.weights();
    for (const ParameterSpec& spec : adapters_of(parameter_table(model, adapter.plan()))) {
      const std::vector<float> values = weights.values(spec);
      for (const HfPart& part : spec.hf) {
        const std::vector<float>& expected = fixture.tensors.at(part.name).values;
        const auto begin = values.begin() + part.row_begin * spec.shape[1];
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), begin)) << part.name;
      }
    }
  }
}

TEST_F(PeftFolder, MissingAndSurplusTensorsAreListed) {
  PeftFixture fixture(model, {.rank = 2, .targets = {"q_proj"}});
  fixture.tensors.erase(peft_tensor_name(kQuery, 'B'));
  fixture.tensors["base_model.model.lm_head.lora_A.weight"] = {{1, 1}, {0.0f}};
  EXPECT_EQ(refusal(fixture), fmt::format("[{}/adapter_model.safetensors] does not fit llama-tiny:\n"
                                          "  model.layers.0.self_attn.q_proj.lora_B.weight is missing\n"
                                          "  lm_head.lora_A.weight belongs to no module of the model that gets an adapter",
                                          path()));
}

TEST_F(PeftFolder, AnAdapterOfAnotherBaseSaysWhichShapesDiffer) {
  ModelConfig other = model;
  other.ffn += 16;
  const std::string text = refusal(PeftFixture(other, {.rank = 2}));
  EXPECT_THAT(text, HasSubstr(fmt::format(
                        "model.layers.0.mlp.gate_proj.lora_B.weight has shape ({}, 2), expected ({}, 2)",
                        other.ffn, model.ffn)));
  EXPECT_THAT(text, HasSubstr(fmt::format(
                        "model.layers.1.mlp.down_proj.lora_A.weight has shape (2, {}), expected (2, {})",
                        other.ffn, model.ffn)));
  EXPECT_THAT(text, Not(HasSubstr("q_proj")));
  EXPECT_THAT(text, HasSubstr("\nThe adapter is for another base model; its config names somewhere/else."));
  // Many faults are cut short.
  other = model;
  other.width *= 2;
  other.head_dim *= 2;
  EXPECT_THAT(refusal(PeftFixture(other, {.rank = 2})), HasSubstr("\n  and 12 more\n"));
}

TEST_F(PeftFolder, ARankThatDisagreesWithTheConfigIsNoOtherBase) {
  PeftFixture fixture(model, {.rank = 2});
  fixture.config["r"] = 4;
  EXPECT_THAT(
      refusal(fixture),
      AllOf(HasSubstr(fmt::format("q_proj.lora_A.weight has shape (2, {0}), expected (4, {0})", model.width)),
            Not(HasSubstr("another base"))));
}

TEST_F(PeftFolder, ValuesAndTypesAreChecked) {
  PeftFixture fixture(model, {.rank = 2, .targets = {"q_proj"}});
  fixture.matrix(kQuery, 'A').values[5] = NAN;
  EXPECT_THAT(refusal(fixture), HasSubstr("q_proj.lora_A.weight holds values that are not finite"));
  fixture.matrix(kQuery, 'A').values[5] = 0;
  fixture.matrix(kQuery, 'B').dtype = SafeDType::I32;
  EXPECT_THAT(refusal(fixture), HasSubstr("q_proj.lora_B.weight is I32, expected F32, BF16 or F16"));
}

TEST_F(PeftFolder, ATruncatedFileIsNamedWithItsSizes) {
  const PeftFixture fixture(model, {.rank = 2, .targets = {"q_proj"}});
  fixture.write(path());
  const std::string bytes = fixture.weights();
  for (const size_t size : {size_t{0}, size_t{100}, bytes.size() - 1}) {
    folder.write("adapter/adapter_model.safetensors", bytes.substr(0, size));
    const std::string text = error_of([&] { PeftAdapter(posix_env(), path(), model); });
    EXPECT_THAT(text, HasSubstr(path() + "/adapter_model.safetensors")) << size;
  }
  const std::string text = error_of([&] { PeftAdapter(posix_env(), path(), model); });
  EXPECT_THAT(text, testing::ContainsRegex("ends at [0-9]+, the file has [0-9]+ bytes of data"));
}

TEST_F(PeftFolder, MissingFilesAreNamed) {
  const PeftFixture fixture(model, {.rank = 2});
  fixture.write(path());
  std::filesystem::remove(path("adapter/adapter_model.safetensors"));
  EXPECT_EQ(error_of([&] { PeftAdapter(posix_env(), path(), model); }),
            fmt::format("[{}] holds adapter_config.json but no adapter_model.safetensors", path()));
  folder.write("adapter/adapter_model.bin", "pickle");
  EXPECT_THAT(error_of([&] { PeftAdapter(posix_env(), path(), model); }),
              AllOf(HasSubstr("holds adapter_model.bin, which octet does not read"),
                    HasSubstr("safe_serialization=True")));
  EXPECT_THAT(error_of([&] { read_peft_config(posix_env(), folder.path()); }),
              HasSubstr("is not an adapter: it holds no adapter_config.json"));
}

// Sums of fp32 against sums of double. Values are below 1/2, so a sum of r products is below r / 4.
TEST_F(PeftFolder, MergedWeightsAreThoseOfTheFormula) {
  for (const char* preset : {"llama-tiny", "gpt2-tiny", "qwen2.5-tiny"}) {
    const ModelConfig config = two_layers(preset);
    for (const LoraConfig& lora :
         {LoraConfig{.rank = 5, .alpha = 3}, LoraConfig{.rank = 8, .alpha = 3, .rslora = true}}) {
      const PeftFixture fixture(config, lora);
      fixture.write(path());
      const PeftAdapter adapter(posix_env(), path(), config);
      const std::vector<ParameterSpec> table = parameter_table(config);
      const AdapterMerge merge(adapter, table);
      for (const ParameterSpec& spec : table) {
        EXPECT_EQ(merge.changes(spec), spec.name.starts_with("layers.") && spec.shape.rank() == 2)
            << spec.name;
        std::vector<float> base(static_cast<size_t>(spec.shape.numel()));
        for (size_t i = 0; i < base.size(); ++i) base[i] = static_cast<float>(i % 17) / 16;
        const std::vector<double> expected = fixture.merged(spec, base);
        std::vector<float> values = base;
        merge.add_to(spec, 0, values);
        double worst = 0;
        for (size_t i = 0; i < values.size(); ++i) worst = std::max(worst, std::abs(values[i] - expected[i]));
        EXPECT_LE(worst, 1e-6) << spec.name;
        if (!merge.changes(spec)) {
          EXPECT_EQ(values, base) << spec.name;
          continue;
        }
        EXPECT_NE(values, base) << spec.name;
        // In pieces that cut through the parts of fused matrices: the same bits.
        const int64_t cols = spec.shape[1], rows = spec.shape[0];
        std::vector<float> pieces = base;
        for (int64_t begin = 0; begin < rows; begin += 7) {
          const int64_t count = std::min<int64_t>(7, rows - begin);
          merge.add_to(spec, begin,
                       std::span(pieces).subspan(static_cast<size_t>(begin * cols),
                                                 static_cast<size_t>(count * cols)));
        }
        EXPECT_EQ(pieces, values) << spec.name;
      }
    }
  }
}

// A part of a fused matrix has its own rank, and the others stay.
TEST_F(PeftFolder, OnlyTheRowsOfAnAdapterChange) {
  LoraConfig lora{
      .rank = 4, .alpha = 4, .targets = {"k_proj"}, .rank_pattern = {{"layers.1.self_attn.k_proj", 2}}};
  PeftFixture fixture(model, lora);
  fixture.config["rank_pattern"] = {{"layers.1.self_attn.k_proj", 2}};
  fixture.write(path());
  const PeftAdapter adapter(posix_env(), path(), model);
  const std::vector<ParameterSpec> table = parameter_table(model);
  const AdapterMerge merge(adapter, table);
  for (const ParameterSpec& spec : table) {
    if (!merge.changes(spec)) continue;
    ASSERT_THAT(spec.name, HasSubstr("attention.qkv.weight"));
    const HfPart& key = spec.hf[1];
    std::vector<float> values(static_cast<size_t>(spec.shape.numel()), 0.0f);
    merge.add_to(spec, 0, values);
    for (int64_t row = 0; row < spec.shape[0]; ++row) {
      const auto begin = values.begin() + row * spec.shape[1];
      const bool changed = std::any_of(begin, begin + spec.shape[1], [](float v) { return v != 0; });
      EXPECT_EQ(changed, row >= key.row_begin && row < key.row_begin + key.rows) << row;
    }
  }
}

}  // namespace
}  // namespace octet::test
