#include "checkpoint/export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <variant>

#include "data/tokenizer/tokenizer.h"
#include "hf/hf_folder.h"
#include "support/error_of.h"
#include "support/model_fixture.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

// A key of a GGUF file as it is stored, its value a text or a number of 32 bits.
std::string gguf_key(std::string_view name, std::variant<std::string_view, uint32_t> value) {
  const auto number = [](uint64_t x, size_t bytes) {
    return std::string(reinterpret_cast<const char*>(&x), bytes);
  };
  const auto text = [&](std::string_view x) { return number(x.size(), 8).append(x); };
  if (const auto* id = std::get_if<uint32_t>(&value)) return text(name) + number(4, 4) + number(*id, 4);
  return text(name) + number(8, 4) + text(std::get<std::string_view>(value));
}

struct Export : testing::Test {
  std::string path(const std::string& name) const { return join_path(folder.path(), name); }
  TemporaryFolder folder;
  Env& env = posix_env();
};

TEST_F(Export, Fp32OfABf16CheckpointIsExact) {
  RandomModel model(two_layers("gpt2-tiny"), DType::BF16);
  CheckpointStore store(env, path("checkpoints"));
  model.save(store, 3, 1.5);
  const ModelFolder found = find_model(folder.path());
  EXPECT_EQ(found.tokenizer, "bytes");
  EXPECT_EQ(found.checkpoint->step, 3);
  const Exported exported = export_model(env, found, path("out"), {.dtype = SafeDType::F32});
  EXPECT_EQ(exported.files, 1);
  const HfFiles files(path("out"));
  for (const Parameter& p : model.parameters.all())
    EXPECT_EQ(files.weights().values(p.spec), model.exact(p.spec.name)) << p.spec.name;
  // The ids that end a text come from the tokenizer, which is there in Hugging Face's form.
  const ModelConfig config = read_hf_config(path("out"));
  EXPECT_EQ(config.eos_ids, std::vector<int32_t>{256});
  EXPECT_EQ(nlohmann::json::parse(read_text(path("out/generation_config.json")))["eos_token_id"], 256);
  const auto tokenizer = load_tokenizer(path("out"));
  const std::string text = "any bytes: \xc3\xa9 \x01\xff \n";
  std::vector<int32_t> bytes;
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  EXPECT_EQ(tokenizer->encode(text), bytes);
  EXPECT_EQ(tokenizer->decode(bytes), text);
  EXPECT_EQ(tokenizer->eos(), 256);
}

// The remainders stand in a file that only an export in fp32 reads, and so only it can tell.
TEST_F(Export, AFlippedBitInTheRemaindersIsNotExported) {
  RandomModel model(two_layers("gpt2-tiny"), DType::BF16);
  CheckpointStore store(env, path("checkpoints"));
  model.save(store, 3, 1.5);
  const std::string file = path("checkpoints/step_3/optimizer.safetensors");
  std::string bytes = read_text(file);
  bytes.back() ^= 1;
  folder.write("checkpoints/step_3/optimizer.safetensors", bytes);
  const ModelFolder found = find_model(folder.path());
  EXPECT_THAT(error_of([&] { export_model(env, found, path("exact"), {.dtype = SafeDType::F32}); }),
              HasSubstr("optimizer.safetensors has checksum"));
  EXPECT_FALSE(fs::exists(path("exact")));
  export_model(env, found, path("rounded"), {.dtype = SafeDType::BF16});
}

// octet pads with any id. Other programs take the one that the files name.
TEST_F(Export, TheIdThatPadsIsKept) {
  RandomModel model(two_layers("llama-tiny"), DType::F32);
  model.write_folder(path("models/my-model"));
  nlohmann::json config = nlohmann::json::parse(read_text(path("models/my-model/config.json")));
  config["pad_token_id"] = 7;
  folder.write("models/my-model/config.json", config.dump());
  const ModelFolder found = find_model(path("models/my-model"));
  export_model(env, found, path("out"), {});
  for (const char* file : {"out/config.json", "out/generation_config.json"})
    EXPECT_EQ(nlohmann::json::parse(read_text(path(file)))["pad_token_id"], 7) << file;
  export_gguf(env, found, path("out.gguf"), GgmlType::BF16, {.tokenizer = "bytes"});
  EXPECT_THAT(read_text(path("out.gguf")), HasSubstr(gguf_key("tokenizer.ggml.padding_token_id", 7u)));
  EXPECT_THAT(read_text(path("out.gguf")), HasSubstr(gguf_key("general.name", "my-model")));
}

// Training keeps it: the config.json of a checkpoint has the one of the model that it started from.
TEST_F(Export, TheIdThatPadsIsKeptByACheckpoint) {
  ModelConfig config = two_layers("llama-tiny");
  config.pad_id = 7;
  RandomModel model(config, DType::F32);
  CheckpointStore store(env, path("checkpoints"));
  model.save(store, 3, 1.5);
  export_model(env, find_model(folder.path()), path("out"), {});
  EXPECT_EQ(nlohmann::json::parse(read_text(path("out/config.json")))["pad_token_id"], 7);
}

// Some config.json have -1 for none.
TEST_F(Export, ANegativeIdIsLeftOutOfAGgufFile) {
  RandomModel(two_layers("llama-tiny"), DType::F32).write_folder(path("model"));
  nlohmann::json config = nlohmann::json::parse(read_text(path("model/config.json")));
  config["pad_token_id"] = -1;
  folder.write("model/config.json", config.dump());
  export_gguf(env, find_model(path("model")), path("out.gguf"), GgmlType::BF16, {.tokenizer = "bytes"});
  EXPECT_THAT(read_text(path("out.gguf")), testing::Not(HasSubstr("tokenizer.ggml.padding_token_id")));
}

TEST_F(Export, AGgufFileHasTheNameOfTheRun) {
  RandomModel model(two_layers("llama-tiny"), DType::F32);
  CheckpointStore store(env, path("my-run/checkpoints"));
  model.save(store, 3, 1.5);
  export_gguf(env, find_model(path("my-run")), path("out.gguf"), GgmlType::BF16, {});
  EXPECT_THAT(read_text(path("out.gguf")), HasSubstr(gguf_key("general.name", "my-run")));
}

TEST_F(Export, Bf16IsWhatTheRunComputedWith) {
  RandomModel model(two_layers("qwen3-tiny"), DType::BF16);
  CheckpointStore store(env, path("checkpoints_fp8"));
  model.save(store, 3, 1.5);
  const Exported exported = export_model(env, find_model(folder.path()), path("out"), {});
  EXPECT_EQ(exported.dtype, SafeDType::BF16);
  const SafetensorsFolder before = SafetensorsFolder::open(env, path("checkpoints_fp8/step_3"));
  const SafetensorsFolder after = SafetensorsFolder::open(env, path("out"));
  ASSERT_EQ(after.tensor_count(), before.tensor_count());
  for (const SafeTensor& tensor : before.files()[0].tensors())
    EXPECT_TRUE(std::ranges::equal(tensor.bytes, after.at(tensor.name).bytes)) << tensor.name;
}

TEST_F(Export, LargeWeightsAreCutIntoShardsWithAnIndex) {
  RandomModel model(two_layers("llama-tiny"), DType::F32);
  model.write_folder(path("model"));
  constexpr int64_t kShard = 300'000;
  const Exported exported =
      export_model(env, find_model(path("model")), path("out"), {.shard_bytes = kShard});
  EXPECT_GT(exported.files, 2);
  EXPECT_FALSE(fs::exists(path("out/model.safetensors")));
  const auto index = nlohmann::json::parse(read_text(path("out/model.safetensors.index.json")));
  EXPECT_EQ(index["metadata"]["total_size"], exported.bytes);
  int64_t shards = 0;
  for (const auto& entry : fs::directory_iterator(path("out"))) {
    if (entry.path().extension() != ".safetensors") continue;
    ++shards;
    EXPECT_LE(static_cast<int64_t>(entry.file_size()), kShard + 4096);
  }
  EXPECT_EQ(shards, exported.files);
  const HfFiles files(path("out"));
  for (const Parameter& p : model.parameters.all())
    EXPECT_EQ(files.weights().values(p.spec), model.exact(p.spec.name)) << p.spec.name;
}

TEST_F(Export, RefusesAFolderWithSomethingInIt) {
  RandomModel(two_layers("llama-tiny"), DType::F32).write_folder(path("model"));
  fs::create_directory(path("out"));
  export_model(env, find_model(path("model")), path("out"), {});  // an empty one is taken
  EXPECT_THAT(error_of([&] { export_model(env, find_model(path("model")), path("out/"), {}); }),
              HasSubstr("not an empty folder"));
}

TEST_F(Export, AFailureLeavesNothingBehind) {
  RandomModel model(two_layers("llama-tiny"), DType::F32);
  model.write_folder(path("model"));
  model.config.layers = 3;  // more than the weights have
  folder.write("model/config.json", to_hf_config(model.config, DType::F32));
  EXPECT_THAT(error_of([&] { export_model(env, find_model(path("model")), path("out"), {}); }),
              HasSubstr("model.layers.2.mlp.down_proj.weight is missing"));
  std::vector<std::string> left = env.list(folder.path());
  EXPECT_EQ(left, std::vector<std::string>{"model"});
}

TEST_F(Export, TheTokenizerMustFitTheModel) {
  ModelConfig config = two_layers("llama-tiny");
  config.vocab = 200;
  RandomModel(config, DType::F32).write_folder(path("model"));
  EXPECT_THAT(
      error_of([&] { export_model(env, find_model(path("model")), path("out"), {.tokenizer = "bytes"}); }),
      HasSubstr("257 ids"));
}

TEST_F(Export, FindModelSaysWhatItLookedFor) {
  EXPECT_THAT(error_of([&] { find_model(path("nowhere")); }), HasSubstr("is not a folder"));
  EXPECT_THAT(error_of([&] { find_model(folder.path()); }), HasSubstr("neither config.json"));
  folder.write("config.json", "{\"model_type\": \"mamba\"}");
  EXPECT_THAT(error_of([&] { find_model(folder.path()); }),
              HasSubstr("\"mamba\", expected one of gpt2, llama, qwen2, qwen3, mistral"));
}

TEST_F(Export, OfTwoFoldersOfCheckpointsTheBestIsTaken) {
  RandomModel model(two_layers("llama-tiny"), DType::F32);
  CheckpointStore dense(env, path("checkpoints")), fp8(env, path("checkpoints_fp8"));
  model.save(dense, 1, 2.5, true);
  model.save(dense, 2, 2.6);
  model.save(fp8, 3, 2.4, true);
  model.save(fp8, 4, 2.7);
  EXPECT_EQ(find_model(folder.path(), true).checkpoint->step, 3);
  EXPECT_EQ(find_model(path("checkpoints"), true).checkpoint->step, 1);
  EXPECT_EQ(find_model(path("checkpoints")).checkpoint->step, 2);
  EXPECT_EQ(find_model(path("checkpoints/step_1")).checkpoint->step, 1);
}

}  // namespace
}  // namespace octet::test
