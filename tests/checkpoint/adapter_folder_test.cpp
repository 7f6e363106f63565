// Adapters with their base: how they are named, loaded and exported.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/base_identity.h"
#include "checkpoint/export.h"
#include "checkpoint/model_weights.h"
#include "support/captured_log.h"
#include "support/error_of.h"
#include "support/model_fixture.h"
#include "support/peft_fixture.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

struct AdapterFolders : testing::Test {
  AdapterFolders() : base(config, DType::BF16), fixture(config, {.rank = 4, .alpha = 6}) {
    base.write_folder(path("base"));
    fixture.config["base_model_name_or_path"] = path("base");
    fixture.write(path("adapter"));
  }
  std::string path(const std::string& name) const { return join_path(folder.path(), name); }

  // A checkpoint as LoRA training leaves it.
  void save(CheckpointStore& store, int64_t step, double loss, bool best, const std::string& train_config,
            const std::string& identity = "") {
    store.save(
        step,
        [&](CheckpointWriter& writer) {
          const auto file = [&](const char* name, const std::string& text) {
            writer.file(name, [&](Sink& sink) { sink.append(text); });
          };
          file("config.json", to_hf_config(config, DType::BF16));
          file("adapter_config.json", fixture.config.dump());
          file("adapter_model.safetensors", fixture.weights());
          file("train_config.yaml", train_config);
          if (!identity.empty()) file("base.json", identity);
        },
        {"bf16", loss}, best);
  }
  void save_run(const std::string& train_config = "tokenizer: bytes\n", const std::string& identity = "") {
    CheckpointStore store(env, path("run/checkpoints"));
    save(store, 10, 2.0, true, train_config, identity);
    fixture.matrix("model.layers.0.self_attn.q_proj", 'A').values[0] += 0.25f;
    save(store, 20, 3.0, false, train_config, identity);
  }
  std::string base_identity() const {
    return to_json(identity_of_folder(path("base"), path("base"), parameter_table(config)));
  }

  // All weights as load_weights has them in fp32, against the formula.
  void expect_merged(const ModelFolder& model,
                     const std::function<std::vector<float>(const Parameter&)>& of_base) {
    RandomModel loaded(config, DType::F32, 77);
    load_weights(*loaded.device, loaded.parameters, model);
    for (const Parameter& p : loaded.parameters.all()) {
      const std::vector<float> values = loaded.exact(p.spec.name);
      const std::vector<double> expected = fixture.merged(p.spec, of_base(p));
      double worst = 0;
      for (size_t i = 0; i < values.size(); ++i) worst = std::max(worst, std::abs(values[i] - expected[i]));
      EXPECT_LE(worst, 1e-6) << p.spec.name;
    }
  }
  // The base as it is stored: without the remainders.
  std::vector<float> stored_base(const Parameter& p) {
    const Parameter& of_base = base.parameters[p.spec.name];
    std::vector<float> values;
    for (const uint16_t bits : of_base.weight.span<uint16_t>()) values.push_back(to_float(Bf16{bits}));
    return values;
  }

  Env& env = posix_env();
  TemporaryFolder folder;
  const ModelConfig config = two_layers("llama-tiny");
  RandomModel base;
  PeftFixture fixture;
};

TEST_F(AdapterFolders, APeftFolderIsFoundWithItsBase) {
  const ModelFolder model = find_model(path("adapter"));
  EXPECT_EQ(model.folder, path("base"));
  EXPECT_EQ(model.adapter->folder, path("adapter"));
  EXPECT_EQ(model.config, find_model(path("base")).config);
  EXPECT_EQ(model.tokenizer, "");
  EXPECT_THAT(model.source, AllOf(HasSubstr("adapter " + path("adapter")), HasSubstr(path("base"))));
  expect_merged(model, [&](const Parameter& p) { return stored_base(p); });
}

TEST_F(AdapterFolders, TheBaseMayBeNamed) {
  fs::rename(path("base"), path("moved"));
  EXPECT_EQ(
      error_of([&] { find_model(path("adapter")); }),
      fmt::format(
          "[{0}/adapter_config.json] base_model_name_or_path is {1}, which does not exist; pass the base "
          "as MODEL and the adapter as --adapter_name_or_path {0}",
          path("adapter"), path("base")));
  const ModelFolder model = find_model(path("moved"), false, path("adapter"));
  EXPECT_EQ(model.folder, path("moved"));
  expect_merged(model, [&](const Parameter& p) { return stored_base(p); });
}

TEST_F(AdapterFolders, OfARunTheLatestOrTheBestIsTaken) {
  save_run();
  const ModelFolder latest = find_model(path("run"));
  EXPECT_EQ(latest.adapter->checkpoint->step, 20);
  EXPECT_EQ(latest.folder, path("base"));
  EXPECT_EQ(latest.tokenizer, "bytes");
  EXPECT_TRUE(latest.run.has_value());
  expect_merged(latest, [&](const Parameter& p) { return stored_base(p); });
  EXPECT_EQ(find_model(path("run"), true).adapter->checkpoint->step, 10);
  EXPECT_EQ(find_model(path("run/checkpoints/step_10")).adapter->checkpoint->step, 10);
  // With a base, `best` is about the adapter.
  EXPECT_EQ(find_model(path("base"), true, path("run")).adapter->checkpoint->step, 10);
  EXPECT_EQ(find_adapter(path("run")).folder, path("run/checkpoints/step_20"));
  EXPECT_EQ(find_adapter(path("run"), true).folder, path("run/checkpoints/step_10"));
  EXPECT_EQ(find_adapter(path("adapter")).folder, path("adapter"));
}

TEST_F(AdapterFolders, AFlippedBitInACheckpointIsFound) {
  save_run();
  const std::string file = path("run/checkpoints/step_20/adapter_model.safetensors");
  std::string bytes = read_text(file);
  bytes.back() ^= 1;
  folder.write("run/checkpoints/step_20/adapter_model.safetensors", bytes);
  EXPECT_THAT(error_of([&] { find_model(path("run/checkpoints/step_20")); }), HasSubstr("checksum"));
  EXPECT_EQ(find_adapter(path("run")).checkpoint->step, 10);  // the newest whole one
}

// The base of a run without model_name_or_path is drawn again, in the type in which the run computed.
TEST_F(AdapterFolders, ARandomBaseIsDrawnAgain) {
  fixture.config["base_model_name_or_path"] = nullptr;
  save_run("tokenizer: bytes\nseed: 9\nmixed_precision: bf16\n", to_json(identity_of_random(config, 9)));
  const ModelFolder model = find_model(path("run"));
  EXPECT_EQ(model.random_seed, 9u);
  EXPECT_THAT(model.source, HasSubstr("random weights of seed 9"));
  expect_merged(model, [&](const Parameter& p) { return stored_base(p); });  // of seed 9 as well
  const Exported exported = export_model(env, model, path("merged"), {});
  EXPECT_EQ(exported.dtype, SafeDType::BF16);
  const HfFiles files(path("merged"));
  RandomModel loaded(config, DType::BF16, 77);
  load_weights(*loaded.device, loaded.parameters, model);
  for (const Parameter& p : loaded.parameters.all()) {
    if (p.spec.shape.rank() == 1) continue;
    const std::vector<float> written = files.weights().values(p.spec), exact = loaded.exact(p.spec.name);
    for (size_t i = 0; i < written.size(); ++i) ASSERT_EQ(written[i], round_to_bf16(exact[i])) << p.spec.name;
  }
}

TEST_F(AdapterFolders, WithoutABaseItIsRefused) {
  fixture.config["base_model_name_or_path"] = nullptr;
  fixture.write(path("adapter"));
  EXPECT_THAT(error_of([&] { find_model(path("adapter")); }),
              HasSubstr("base_model_name_or_path is null, so the base is unknown; pass the base as MODEL"));
  EXPECT_NO_THROW(find_model(path("base"), false, path("adapter")));
}

TEST_F(AdapterFolders, WrongNamesAreExplained) {
  EXPECT_THAT(error_of([&] { find_adapter(path("base")); }),
              HasSubstr("is a whole model, expected an adapter: a PEFT folder"));
  EXPECT_THAT(error_of([&] { find_adapter(path("nowhere")); }),
              HasSubstr("is not a folder, expected an adapter"));
  EXPECT_THAT(error_of([&] { find_model(path("adapter"), false, path("adapter")); }),
              HasSubstr("is an adapter itself; with --adapter_name_or_path, MODEL must be the base model"));
  EXPECT_THROW(find_start(path("adapter")), ConfigError);
  EXPECT_EQ(error_of([&] { find_start(path("adapter")); }),
            fmt::format("[model_name_or_path] {} is an adapter; set model_name_or_path to its base model and "
                        "adapter_name_or_path to the adapter",
                        path("adapter")));
  fixture.config["base_model_name_or_path"] = path("adapter");
  fixture.write(path("second"));
  EXPECT_THAT(error_of([&] { find_model(path("second")); }),
              HasSubstr("which is an adapter itself; merge it first"));
  EXPECT_THAT(error_of([&] { find_model(path("adapter"), true); }),
              HasSubstr("--best needs the folder of a run"));
}

TEST_F(AdapterFolders, ACheckpointKnowsItsBase) {
  save_run("tokenizer: bytes\n", base_identity());
  expect_merged(find_model(path("run")), [&](const Parameter& p) { return stored_base(p); });
  fs::rename(path("base"), path("moved"));
  RandomModel other(config, DType::BF16, 10);
  other.write_folder(path("base"));
  RandomModel loaded(config, DType::F32, 77);
  EXPECT_THAT(error_of([&] { load_weights(*loaded.device, loaded.parameters, find_model(path("run"))); }),
              HasSubstr("the run was trained on the base"));
  // Whoever names a base has the last word.
  CapturedLog log;
  load_weights(*loaded.device, loaded.parameters, find_model(path("base"), false, path("run")));
  EXPECT_THAT(log.messages, testing::ElementsAre(HasSubstr("the run was trained on the base")));
  CapturedLog quiet;
  load_weights(*loaded.device, loaded.parameters, find_model(path("moved"), false, path("run")));
  EXPECT_THAT(quiet.messages, testing::IsEmpty());
}

// In fp32 the sum itself, in bf16 the sum rounded once.
TEST_F(AdapterFolders, MergingRoundsOnce) {
  const ModelFolder model = find_model(path("adapter"));
  EXPECT_EQ(export_model(env, model, path("narrow"), {}).dtype, SafeDType::BF16);
  export_model(env, model, path("wide"), {.dtype = SafeDType::F32});
  const HfFiles narrow(path("narrow")), wide(path("wide"));
  for (const ParameterSpec& spec : parameter_table(config)) {
    const std::vector<float> rounded = narrow.weights().values(spec), sums = wide.weights().values(spec);
    const std::vector<double> expected = fixture.merged(spec, stored_base(base.parameters[spec.name]));
    for (size_t i = 0; i < sums.size(); ++i) {
      ASSERT_NEAR(sums[i], expected[i], 1e-6) << spec.name;
      ASSERT_EQ(rounded[i], round_to_bf16(sums[i])) << spec.name;
    }
  }
  EXPECT_FALSE(find_model(path("narrow")).adapter);
}

TEST_F(AdapterFolders, AnExportedAdapterIsTheSameAdapter) {
  fixture.set_dtype(SafeDType::BF16);
  save_run();
  const ModelFolder model = find_model(path("run"));
  const ExportedAdapter exported = export_adapter(env, model, path("out/"), {});
  EXPECT_EQ(exported.tensors, 28);
  EXPECT_EQ(exported.base, path("base"));
  EXPECT_EQ(exported.plan.adapters.size(), 14u);
  const SafetensorsFile file = SafetensorsFile::open(env, path("out/adapter_model.safetensors"));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  ASSERT_EQ(file.tensors().size(), fixture.tensors.size());
  for (const SafeTensor& tensor : file.tensors()) {
    const PeftFixture::Matrix& matrix = fixture.tensors.at(std::string(tensor.name));
    EXPECT_EQ(tensor.dtype, SafeDType::F32);
    EXPECT_TRUE(std::ranges::equal(tensor.shape, matrix.shape)) << tensor.name;
    EXPECT_TRUE(std::ranges::equal(tensor.bytes, std::as_bytes(std::span(matrix.values)))) << tensor.name;
  }
  EXPECT_TRUE(fs::exists(path("out/tokenizer.json")));
  expect_merged(find_model(path("out")), [&](const Parameter& p) { return stored_base(p); });
  // Another base by name, and no half-written folder.
  EXPECT_EQ(export_adapter(env, model, path("again"), {.base = "org/name"}).base, "org/name");
  EXPECT_EQ(nlohmann::json::parse(read_text(path("again/adapter_config.json")))["base_model_name_or_path"],
            "org/name");
  EXPECT_THAT(error_of([&] { export_adapter(env, model, path("again"), {}); }),
              HasSubstr("not an empty folder"));
  EXPECT_THAT(error_of([&] { export_adapter(env, find_model(path("base")), path("none"), {}); }),
              HasSubstr("has no adapter to export"));
  EXPECT_THAT(env.list(folder.path()), testing::ElementsAre("adapter", "again", "base", "out", "run"));
}

TEST_F(AdapterFolders, AFailedMergeLeavesNothingBehind) {
  fixture.tensors.erase(fixture.tensors.begin());
  fixture.write(path("adapter"));
  EXPECT_THAT(error_of([&] { export_model(env, find_model(path("adapter")), path("out"), {}); }),
              HasSubstr("is missing"));
  EXPECT_THAT(env.list(folder.path()), testing::ElementsAre("adapter", "base"));
}

TEST(AdapterLoaders, SayWhoCanLoadAnAdapter) {
  const auto loaders = [](const char* preset, const LoraConfig& lora) {
    const ModelConfig config = two_layers(preset);
    return adapter_loaders(config, plan_adapters(config, lora));
  };
  using testing::ElementsAre;
  EXPECT_THAT(loaders("llama-tiny", {.rank = 16}),
              ElementsAre("PEFT: yes", "vLLM: yes", "llama.cpp: yes, after convert_lora_to_gguf.py"));
  EXPECT_EQ(loaders("llama-tiny", {.rank = 17})[1], "vLLM: yes, with --max-lora-rank 32 (its default is 16)");
  EXPECT_EQ(loaders("llama-tiny", {.rank = 300})[1],
            "vLLM: yes, with --max-lora-rank 320 (its default is 16)");
  EXPECT_EQ(loaders("llama-tiny", {.rank = 513})[1], "vLLM: no, rank 513 is above its limit of 512");
  const std::vector<std::string> ranks = loaders("llama-tiny", {.rank_pattern = {{"q_proj", 2}}});
  EXPECT_EQ(ranks[1], "vLLM: no, it ignores rank_pattern and alpha_pattern and would use a wrong scale");
  EXPECT_EQ(ranks[2], "llama.cpp: yes, after convert_lora_to_gguf.py");
  EXPECT_EQ(loaders("llama-tiny", {.alpha_pattern = {{"q_proj", 2}}})[2],
            "llama.cpp: no, it ignores alpha_pattern and would use a wrong scale");
  EXPECT_THAT(loaders("qwen3-tiny", {.rslora = true}),
              ElementsAre("PEFT: yes", "vLLM: yes",
                          "llama.cpp: no, it ignores use_rslora and would use a wrong scale"));
  EXPECT_THAT(loaders("gpt2-tiny", {}),
              ElementsAre("PEFT: yes", "vLLM: no, it has no LoRA for GPT2LMHeadModel",
                          "llama.cpp: no, its converter does not take the Conv1D layers of this family"));
}

}  // namespace
}  // namespace octet::test
