// octet export --format gguf, read back with the gguf package.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "io/env.h"
#include "support/model_fixture.h"
#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

const std::string kGolden = test::source_path("/tests/golden/");

struct GgufCli : testing::Test {
  ProcessResult run(const std::vector<std::string>& arguments) {
    return run_process(test::octet_program(), arguments, folder.path());
  }
  void export_to(const std::string& model, const std::string& output, const std::string& type,
                 const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"export",   model,  "--format",  "gguf",
                                      "--output", output, "--outtype", type};
    words.insert(words.end(), more.begin(), more.end());
    const ProcessResult result = run(words);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr(output + ": "));
  }
  // Pairs of a file and the folder that it was made from.
  void check(std::vector<std::string> pairs) {
    pairs.insert(pairs.begin(), test::source_path("/scripts/check_gguf.py"));
    const ProcessResult result = run_process("python3", pairs, folder.path());
    if (result.exit_code == 77) GTEST_SKIP() << result.out;
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  }
  std::string path(const std::string& name) const { return join_path(folder.path(), name); }
  // A folder with a golden model whose vocabulary has room for the tokenizer in `file`.
  void write_model(const char* preset, int64_t vocab, const std::string& file, const std::string& name,
                   const std::string& tokenizer_config = "") {
    ModelConfig config = two_layers(preset);
    config.vocab = vocab;
    RandomModel(config, DType::F32).write_folder(path(name));
    fs::copy_file(file, path(name + "/tokenizer.json"), fs::copy_options::overwrite_existing);
    if (!tokenizer_config.empty()) folder.write(name + "/tokenizer_config.json", tokenizer_config);
  }
  TemporaryFolder folder;
};

TEST_F(GgufCli, EveryFamilyIsReadBackByTheGgufPackage) {
  std::vector<std::string> pairs;
  for (const char* name : {"gpt2", "llama_rope_scaled", "llama_untied", "mistral_window", "qwen2_tied",
                           "qwen2_untied", "qwen3_tied"}) {
    write_golden_folder(name, path(name));
    for (const char* type : {"bf16", "f16", "q8_0", "f32"}) {
      const std::string file = std::string(name) + "-" + type + ".gguf";
      export_to(name, file, type);
      pairs.insert(pairs.end(), {file, name});
    }
  }
  check(std::move(pairs));
}

TEST_F(GgufCli, TokenizersAndChatTemplatesAreReadBackByTheGgufPackage) {
  write_model("gpt2-tiny", 512, kGolden + "eval_tasks/model/tokenizer.json", "bpe",
              R"({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>",
                  "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"})");
  write_model("llama-tiny", 512, kGolden + "sentencepiece/llama2.json", "llama2",
              R"({"bos_token": "<s>", "eos_token": "</s>"})");
  write_model("mistral-tiny", 512, kGolden + "sentencepiece/mistral_v03.json", "mistral");
  std::vector<std::string> pairs;
  for (const char* name : {"bpe", "llama2", "mistral"}) {
    export_to(name, std::string(name) + ".gguf", "bf16");
    pairs.insert(pairs.end(), {std::string(name) + ".gguf", name});
  }
  check(std::move(pairs));
}

TEST_F(GgufCli, AGivenTokenizerBringsItsChatTemplate) {
  write_model("gpt2-tiny", 512, kGolden + "eval_tasks/model/tokenizer.json", "bpe",
              R"({"chat_template": "template of the model"})");
  fs::create_directory(path("given"));
  fs::copy_file(kGolden + "eval_tasks/model/tokenizer.json", path("given/tokenizer.json"));
  export_to("bpe", "without.gguf", "bf16", {"--tokenizer", "given"});
  EXPECT_THAT(read_text(path("without.gguf")), HasSubstr("template of the model"));
  folder.write("given/chat_template.jinja", "template of the tokenizer");
  export_to("bpe", "with.gguf", "bf16", {"--tokenizer", "given"});
  EXPECT_THAT(read_text(path("with.gguf")), HasSubstr("template of the tokenizer"));
  EXPECT_THAT(read_text(path("with.gguf")), testing::Not(HasSubstr("template of the model")));
}

// The weights of a merged adapter are those of the merged Hugging Face folder.
TEST_F(GgufCli, AnAdapterIsMerged) {
  RandomModel(two_layers("llama-tiny"), DType::F32).write_folder(path("base"));
  folder.write("data.txt", "one two three four five six seven eight nine ten eleven twelve\n");
  const ProcessResult trained = run({"train",    "--model_name_or_path",
                                     "base",     "--finetuning_type",
                                     "lora",     "--dataset",
                                     "data.txt", "--tokenizer",
                                     "bytes",    "--max_steps",
                                     "2",        "--max_seq_length",
                                     "16",       "--per_device_train_batch_size",
                                     "1",        "--device",
                                     "cpu",      "--run_name",
                                     "lora",     "--eval_strategy",
                                     "no",       "--learning_rate",
                                     "0.01",     "--warmup_steps",
                                     "0",        "--num_threads",
                                     "1"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  ASSERT_EQ(run({"export", "runs/lora", "--merge", "--dtype", "fp32", "--output", "merged"}).exit_code, 0);
  export_to("runs/lora", "merged.gguf", "f32");
  check({"merged.gguf", "merged"});
}

TEST_F(GgufCli, BadInputIsNamed) {
  write_golden_folder("gpt2", path("gpt2"));
  const auto error = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"export", "gpt2"};
    words.insert(words.end(), more.begin(), more.end());
    const ProcessResult result = run(words);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  };
  EXPECT_THAT(error({"--format", "gguf", "--output", "out"}),
              HasSubstr("expected a name that ends in .gguf"));
  EXPECT_THAT(error({"--format", "gguf", "--output", "a.gguf", "--outtype", "q4_k"}), HasSubstr("q8_0"));
  EXPECT_THAT(error({"--format", "gguf", "--output", "a.gguf", "--dtype", "bf16"}),
              HasSubstr("use --outtype"));
  EXPECT_THAT(error({"--format", "gguf", "--output", "a.gguf", "--merge"}), HasSubstr("is always merged"));
  EXPECT_THAT(error({"--format", "gguf", "--output", "a.gguf", "--max_shard_size_gb", "1"}),
              HasSubstr("writes one file"));
  EXPECT_THAT(error({"--output", "a", "--outtype", "f16"}), HasSubstr("--outtype is for --format gguf"));
  folder.write("there.gguf", "x");
  EXPECT_THAT(error({"--format", "gguf", "--output", "there.gguf"}),
              HasSubstr("[there.gguf] already exists"));
  EXPECT_EQ(read_text(path("there.gguf")), "x");
  write_model("llama-tiny", 512, kGolden + "eval_tasks/model/tokenizer.json", "unigram");
  const ProcessResult result = run({"export", "unigram", "--format", "gguf", "--output", "u.gguf",
                                    "--tokenizer", kGolden + "sentencepiece/unigram.model"});
  EXPECT_EQ(result.exit_code, 2) << result.out;
  EXPECT_THAT(result.err, HasSubstr("is a Unigram model"));
  EXPECT_FALSE(fs::exists(path("u.gguf")));
}

}  // namespace
}  // namespace octet::test
