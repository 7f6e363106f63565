// Which frozen base a LoRA run was trained on.

#include "checkpoint/base_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/crc32c.h"
#include "base/sha.h"
#include "hf/hf_folder.h"
#include "support/error_of.h"
#include "support/model_fixture.h"
#include "support/process.h"

namespace octet::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string sha256(const std::string& text) {
  Sha256 hash;
  hash.update(text);
  return hash.hex();
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

BaseIdentity identity(const std::string& folder) {
  return identity_of_folder(folder, folder, parameter_table(read_hf_config(folder)));
}

struct BaseFolder : testing::Test {
  BaseFolder() : first(folder.path() + "/first"), second(folder.path() + "/second") {}

  std::string write(const std::string& to, const std::string& preset = "llama-tiny",
                    DType dtype = DType::BF16, uint64_t seed = 9) {
    fs::create_directories(to);
    RandomModel(model_preset(preset), dtype, seed).write_folder(to);
    return to;
  }

  // config.json of `to` with some fields replaced.
  void change_config(const std::string& to, const nlohmann::json& changes) {
    nlohmann::json json = nlohmann::json::parse(text_of(to + "/config.json"));
    json.update(changes);
    std::ofstream(to + "/config.json") << json.dump();
  }

  TemporaryFolder folder;
  std::string first, second;
};

TEST_F(BaseFolder, AMovedFolderIsTheSameBase) {
  const BaseIdentity saved = identity(write(first));
  fs::rename(first, second);
  const BaseIdentity now = identity(second);
  EXPECT_NE(now, saved);
  EXPECT_EQ(differences(saved, now), "");
}

TEST_F(BaseFolder, APathIsStoredAsGivenUnlessItIsAFolder) {
  write(first);
  const std::vector<ParameterSpec> table = parameter_table(model_preset("llama-tiny"));
  EXPECT_EQ(identity_of_folder(first, "some-org/tiny", table).path, "some-org/tiny");
  EXPECT_EQ(identity_of_folder(first, fs::relative(first).string(), table).path, fs::canonical(first));
}

TEST_F(BaseFolder, ARewrittenConfigIsTheSameBase) {
  const BaseIdentity saved = identity(write(first));
  change_config(first, {{"transformers_version", "4.44.0"},
                        {"torch_dtype", "float32"},
                        {"eos_token_id", {1, 2}},
                        {"bos_token_id", 3},
                        {"initializer_range", 0.5}});
  EXPECT_EQ(identity(first), saved);
}

TEST_F(BaseFolder, FieldsThatChangeTheComputationChangeTheHash) {
  const std::vector<ParameterSpec> table = parameter_table(model_preset("llama-tiny"));
  const BaseIdentity saved = identity(write(first));
  for (const nlohmann::json& change : std::vector<nlohmann::json>{
           {{"rms_norm_eps", 1e-3}}, {{"rope_theta", 12345.0}}, {{"max_position_embeddings", 77}}}) {
    write(first);
    change_config(first, change);
    const BaseIdentity now = identity_of_folder(first, first, table);
    EXPECT_NE(now.config_sha256, saved.config_sha256) << change.dump();
    EXPECT_EQ(now.weights_sha256, saved.weights_sha256) << change.dump();
  }
}

TEST_F(BaseFolder, EveryBitOfTheWeightsCounts) {
  const BaseIdentity saved = identity(write(first));
  const auto size = static_cast<int64_t>(fs::file_size(first + "/model.safetensors"));
  for (const int64_t from_end : {int64_t{1}, size / 2}) {  // in the last tensor and in the middle
    write(first);
    std::fstream file(first + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-from_end, std::ios::end);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(-from_end, std::ios::end);
    file.put(byte);
    file.close();
    const BaseIdentity now = identity(first);
    EXPECT_EQ(now.config_sha256, saved.config_sha256);
    EXPECT_NE(now.weights_sha256, saved.weights_sha256);
    EXPECT_EQ(differences(saved, now),
              fmt::format("the run was trained on the base {} (weights {}), but that folder has changed "
                          "(weights {})",
                          first, saved.weights_sha256.substr(0, 12), now.weights_sha256.substr(0, 12)));
  }
}

TEST_F(BaseFolder, AnotherDtypeIsAnotherBase) {
  const BaseIdentity bf16 = identity(write(first)), fp32 = identity(write(second, "llama-tiny", DType::F32));
  EXPECT_EQ(bf16.config_sha256, fp32.config_sha256);
  EXPECT_NE(bf16.weights_sha256, fp32.weights_sha256);
}

// Rewrites model.safetensors. `name_of` gives each tensor its new name; shards hold every second tensor.
void rewrite(const std::string& folder, const std::function<std::string(const std::string&)>& name_of,
             bool sharded) {
  const std::string path = folder + "/model.safetensors";
  {
    const SafetensorsFile file = SafetensorsFile::open(posix_env(), path);
    nlohmann::json index = {{"metadata", nlohmann::json::object()}, {"weight_map", nlohmann::json::object()}};
    for (size_t shard = 0; shard < (sharded ? 2 : 1); ++shard) {
      std::vector<SafeTensorSpec> specs;
      std::map<std::string, const SafeTensor*> tensors;
      const std::string name = sharded ? fmt::format("model-{}.safetensors", shard) : "new.safetensors";
      for (size_t i = shard; i < file.tensors().size(); i += sharded ? 2 : 1) {
        const SafeTensor& tensor = file.tensors()[i];
        specs.push_back(
            {name_of(std::string(tensor.name)), tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}});
        tensors[specs.back().name] = &tensor;
        index["weight_map"][specs.back().name] = name;
      }
      WritableFile out = posix_env().create(folder + "/" + name);
      SafetensorsWriter writer(out, specs);
      for (const SafeTensorSpec& spec : writer.specs())
        writer.append(spec.name, tensors.at(spec.name)->bytes);
      writer.finish();
      out.close();
    }
    if (sharded) std::ofstream(path + ".index.json") << index.dump();
  }
  fs::remove(path);
  if (!sharded) fs::rename(folder + "/new.safetensors", path);
}

TEST_F(BaseFolder, ShardsAreTheSameBase) {
  const BaseIdentity saved = identity(write(first));
  rewrite(
      first, [](const std::string& name) { return name; }, true);
  EXPECT_EQ(identity(first), saved);
}

TEST_F(BaseFolder, NamesWithoutPrefixAreTheSameBase) {
  const BaseIdentity saved = identity(write(first, "gpt2-tiny"));
  rewrite(
      first, [](const std::string& name) { return name.substr(std::string("transformer.").size()); }, false);
  EXPECT_EQ(identity(first), saved);
}

TEST_F(BaseFolder, EveryFamilyHasAnIdentity) {
  std::set<std::string> hashes;
  for (const char* preset : {"gpt2-tiny", "llama-tiny", "qwen2.5-tiny", "qwen3-tiny", "mistral-tiny"}) {
    const BaseIdentity base = identity(write(first, preset));
    EXPECT_TRUE(hashes.insert(base.config_sha256).second) << preset;
    EXPECT_EQ(base.weights_sha256.size(), 64u) << preset;
  }
}

TEST_F(BaseFolder, AMissingTensorIsNamed) {
  write(first);
  std::vector<ParameterSpec> table = parameter_table(model_preset("llama-tiny"));
  table.front().hf.front().name = "model.nothing.weight";
  EXPECT_THAT(error_of([&] { identity_of_folder(first, first, table); }),
              HasSubstr("model.nothing.weight is missing"));
}

// The text of docs/formats.md, written down here a second time. The tensors are longer than a piece of 16 MiB, and end
// with one that is not full.
TEST_F(BaseFolder, TheHashesAreThoseOfTheDocument) {
  write(first);
  fs::remove(first + "/model.safetensors");
  std::ofstream(first + "/config.json") << R"({"model_type": "llama", "vocab_size": 100, "hidden_size": 64,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
      "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "hidden_act": "silu",
      "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192}, "tie_word_embeddings": true})";
  const int64_t rows = (int64_t{33} << 20) / 32;  // BF16 rows of 16
  std::vector<ParameterSpec> table = {{.name = "z", .shape = {rows, 16}, .hf = {{"model.b", 0, rows}}},
                                      {.name = "a", .shape = {3}, .hf = {{"model.a", 0, 3}}}};
  std::string b(static_cast<size_t>(rows) * 32, '\0'), a = "abcdefghijkl";
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<char>((i * 2654435761u) >> 13);
  {
    WritableFile out = posix_env().create(first + "/model.safetensors");
    SafetensorsWriter writer(out,
                             {{"model.b", SafeDType::BF16, {rows, 16}}, {"model.a", SafeDType::F32, {3}}});
    writer.append("model.a", std::as_bytes(std::span(a)));
    writer.append("model.b", std::as_bytes(std::span(b)));
    writer.finish();
    out.close();
  }
  const BaseIdentity base = identity_of_folder(first, first, table);
  const auto crc = [](std::string_view bytes) { return crc32c_by_tables(bytes.data(), bytes.size()); };
  const std::string_view view = b;
  const size_t piece = size_t{16} << 20;
  EXPECT_EQ(
      base.weights_sha256,
      sha256(fmt::format("octet weights 1\nmodel.a F32 3 {:08x}\nmodel.b BF16 {}x16 {:08x},{:08x},{:08x}\n",
                         crc(a), rows, crc(view.substr(0, piece)), crc(view.substr(piece, piece)),
                         crc(view.substr(2 * piece)))));
  EXPECT_EQ(base.config_sha256,
            sha256("octet architecture 1\nfamily llama\nvocab 100\nlayers 2\nwidth 64\nheads 4\nkv_heads 2\n"
                   "head_dim 16\nffn 96\nmax_positions 131072\nnorm rms_norm\nnorm_epsilon 1e-05\n"
                   "activation swiglu\nlearned_positions false\nrope_theta 500000\n"
                   "rope_scaling 32 1 4 8192\nwindow 0\nqk_norm false\nqkv_bias false\nout_bias false\n"
                   "tied_head true\n"));
}

TEST(RandomBase, DependsOnSeedAndModel) {
  const ModelConfig config = model_preset("llama-tiny");
  const BaseIdentity base = identity_of_random(config, 42);
  EXPECT_EQ(base.path, "");
  EXPECT_EQ(identity_of_random(config, 42), base);
  ModelConfig renamed = config;
  renamed.name = "other";
  renamed.eos_ids = {7};
  renamed.bos_id = 8;
  EXPECT_EQ(identity_of_random(renamed, 42), base);

  const BaseIdentity reseeded = identity_of_random(config, 43);
  EXPECT_EQ(reseeded.config_sha256, base.config_sha256);
  EXPECT_EQ(
      differences(base, reseeded),
      fmt::format("the run was trained on the base random weights (weights {}), but the base is now random "
                  "weights (weights {}); expected the seed and the sizes of the run",
                  base.weights_sha256.substr(0, 12), reseeded.weights_sha256.substr(0, 12)));

  for (float ModelConfig::*field : {&ModelConfig::init_std, &ModelConfig::norm_epsilon}) {
    ModelConfig other = config;
    other.*field *= 2;
    EXPECT_NE(identity_of_random(other, 42).weights_sha256, base.weights_sha256);
  }
  ModelConfig scaled = config;
  scaled.scaled_residual_init = !scaled.scaled_residual_init;
  EXPECT_NE(identity_of_random(scaled, 42).weights_sha256, base.weights_sha256);
}

TEST(RandomBase, EveryFieldOfTheArchitectureCounts) {
  const ModelConfig config = model_preset("llama-tiny");
  const std::string before = identity_of_random(config, 1).config_sha256;
  std::set<std::string> hashes{before};
  const auto expect_new = [&](const std::function<void(ModelConfig&)>& change, const char* what) {
    ModelConfig other = config;
    change(other);
    EXPECT_TRUE(hashes.insert(identity_of_random(other, 1).config_sha256).second) << what;
  };
  using C = ModelConfig;
  for (int64_t C::*field : {&C::vocab, &C::layers, &C::width, &C::heads, &C::kv_heads, &C::head_dim, &C::ffn,
                            &C::max_positions, &C::window}) {
    expect_new([&](C& c) { c.*field += 1; }, "a size");
  }
  for (bool C::*field : {&C::qk_norm, &C::qkv_bias, &C::out_bias, &C::tied_head, &C::learned_positions})
    expect_new([&](C& c) { c.*field = !(c.*field); }, "a switch");
  expect_new([](C& c) { c.family = model_preset("mistral-tiny").family; }, "family");
  expect_new([](C& c) { c.norm = NormKind::LayerNorm; }, "norm");
  expect_new([](C& c) { c.norm_epsilon *= 2; }, "norm_epsilon");
  expect_new([](C& c) { c.activation = Activation::Gelu; }, "activation");
  expect_new([](C& c) { c.rope_theta += 1; }, "rope_theta");
  for (double RopeScaling::*field :
       {&RopeScaling::factor, &RopeScaling::low_freq_factor, &RopeScaling::high_freq_factor}) {
    expect_new([&](C& c) { (c.rope_scaling = RopeScaling{}).value().*field += 7; }, "rope_scaling");
  }
  expect_new([](C& c) { (c.rope_scaling = RopeScaling{}).value().original_max_positions += 7; }, "positions");
}

const std::string kOne(64, '1'), kTwo(64, '2'), kThree(64, '3');

TEST(BaseDifferences, NameBothBases) {
  EXPECT_EQ(differences({"/runs/x", kOne, kTwo}, {"some-org/y", kOne, kThree}),
            "the run was trained on the base /runs/x (weights 222222222222), but the base is now some-org/y "
            "(weights 333333333333)");
  EXPECT_EQ(
      differences({"/runs/x", kOne, kTwo}, {"/runs/y", kThree, kOne}),
      "the run was trained on the base /runs/x (architecture 111111111111), but the base is now /runs/y "
      "(architecture 333333333333)");
  EXPECT_EQ(
      differences({"/runs/x", kOne, kTwo}, {"", kOne, kThree}),
      "the run was trained on the base /runs/x (weights 222222222222), but the base is now random weights "
      "(weights 333333333333)");
  EXPECT_EQ(differences({"", kOne, kTwo}, {"/runs/y", kOne, kThree}),
            "the run was trained on the base random weights (weights 222222222222), but the base is now "
            "/runs/y (weights 333333333333)");
  EXPECT_EQ(
      differences({"/runs/x", kOne, kTwo}, {"/runs/x", kThree, kTwo}),
      "the run was trained on the base /runs/x (architecture 111111111111), but that folder has changed "
      "(architecture 333333333333)");
  EXPECT_EQ(differences({"/runs/x", kOne, kTwo}, {"/elsewhere", kOne, kTwo}), "");
}

TEST(BaseJson, RoundTrips) {
  for (const char* path : {"", "/runs/x", "some-org/tiny", "/a \"b\"\\\n\xc3\xa9"}) {
    const BaseIdentity base{path, kOne, kTwo};
    EXPECT_EQ(base_identity_from_json(to_json(base), "base.json"), base);
  }
  EXPECT_EQ(to_json({"/x", kOne, kTwo}),
            fmt::format("{{\n  \"format\": \"octet base\",\n  \"version\": 1,\n  \"path\": \"/x\",\n"
                        "  \"config_sha256\": \"{}\",\n  \"weights_sha256\": \"{}\"\n}}\n",
                        kOne, kTwo));
  // Folders may have any bytes in their names.
  EXPECT_EQ(base_identity_from_json(to_json({"/\xff", kOne, kTwo}), "base.json").path, "/\xef\xbf\xbd");
}

TEST(BaseJson, WhatIsWrongIsNamed) {
  const auto error = [](const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json json = nlohmann::json::parse(to_json({"/x", kOne, kTwo}));
    change(json);
    return error_of([&] { base_identity_from_json(json.dump(), "base.json"); });
  };
  using Json = nlohmann::json;
  EXPECT_EQ(error([](Json&) {}), "nothing was thrown");
  EXPECT_EQ(error([](Json& json) { json["format"] = "octet trainer state"; }),
            "[base.json] does not describe the base of a LoRA run");
  EXPECT_EQ(error([](Json& json) { json = Json::array(); }),
            "[base.json] does not describe the base of a LoRA run");
  EXPECT_EQ(error([](Json& json) { json["version"] = 2; }), "[base.json] \"version\" is 2, expected 1");
  EXPECT_EQ(error([](Json& json) { json.erase("version"); }),
            "[base.json] \"version\" is missing, expected 1");
  EXPECT_EQ(error([](Json& json) { json.erase("path"); }), "[base.json] \"path\" is missing, expected text");
  EXPECT_EQ(error([](Json& json) { json["path"] = 5; }), "[base.json] \"path\" is 5, expected text");
  for (const std::string& bad : {std::string("abc"), std::string(64, 'A'), std::string(65, '1')}) {
    EXPECT_EQ(error([&](Json& json) { json["weights_sha256"] = bad; }),
              fmt::format("[base.json] \"weights_sha256\" is '{}', expected 64 lower-case hexadecimal digits",
                          bad));
  }
  EXPECT_EQ(error([](Json& json) { json["config_sha256"] = ""; }),
            "[base.json] \"config_sha256\" is '', expected 64 lower-case hexadecimal digits");
  EXPECT_EQ(error([](Json& json) { json["weight_sha256"] = kOne; }),
            "[base.json] has the unknown key \"weight_sha256\"");
  EXPECT_THAT(error_of([] { base_identity_from_json("{\"format\": \"octet", "base.json"); }),
              HasSubstr("[base.json] line 1"));
  EXPECT_THAT(error_of([] {
                base_identity_from_json(R"({"format": "octet base", "version": 1, "version": 1})",
                                        "base.json");
              }),
              HasSubstr("version"));
}

}  // namespace
}  // namespace octet::test
