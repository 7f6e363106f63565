// octet generate, eval and export with adapters, from the command line.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/golden_model.h"
#include "support/model_fixture.h"
#include "support/peft_fixture.h"
#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

struct AdapterCli : testing::Test {
  AdapterCli() : fixture(config, {.rank = 4, .alpha = 2}) {
    RandomModel(config, DType::F32).write_folder(path("base"));
    fixture.config["base_model_name_or_path"] = path("base");
    fixture.write(path("adapter"));
  }
  ProcessResult run(std::vector<std::string> arguments) {
    return run_process(test::octet_program(), arguments, folder.path());
  }
  ProcessResult run_cpu(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--device", "cpu", "--num_threads", "1"});
    return run(arguments);
  }
  std::vector<float> logits(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "generate");
    arguments.insert(arguments.end(), {"--print_logits", "--prompt_ids", "5 9 200 31 7"});
    const ProcessResult result = run_cpu(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    if (result.exit_code != 0) return {};
    const auto json = nlohmann::json::parse(result.out);
    std::vector<float> values;
    for (const auto& row : json["logits"]) {
      for (const auto& value : row) values.push_back(value.get<float>());
    }
    return values;
  }
  std::string path(const std::string& name) const { return join_path(folder.path(), name); }

  TemporaryFolder folder;
  const ModelConfig config = two_layers("gpt2-tiny");
  PeftFixture fixture;
};

TEST_F(AdapterCli, GenerateTakesAnAdapterAloneOrWithItsBase) {
  const std::vector<float> adapted = logits({"base", "--adapter_name_or_path", "adapter"});
  EXPECT_EQ(logits({"adapter"}), adapted);
  EXPECT_GT(relative_error(logits({"base"}), adapted), 0.1);
  // The merged model is the same model.
  const ProcessResult merged = run({"export", "adapter", "--merge", "--output", "merged"});
  ASSERT_EQ(merged.exit_code, 0) << merged.err;
  EXPECT_EQ(logits({"merged"}), adapted);
}

TEST_F(AdapterCli, EvalTakesAnAdapter) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += fmt::format("line {} of a text. ", i * i);
  folder.write("text.txt", text);
  ASSERT_EQ(run({"export", "adapter", "--merge", "--output", "merged"}).exit_code, 0);
  const auto loss = [&](std::vector<std::string> model) {
    model.insert(model.begin(), "eval");
    model.insert(model.end(),
                 {"--dataset", "text.txt", "--tokenizer", "bytes", "--max_seq_length", "64", "--json"});
    const ProcessResult result = run_cpu(model);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.exit_code == 0 ? nlohmann::json::parse(result.out)["loss"].get<double>() : 0;
  };
  const double adapted = loss({"base", "--adapter_name_or_path", "adapter"});
  EXPECT_EQ(adapted, loss({"merged"}));
  EXPECT_EQ(adapted, loss({"adapter"}));
  EXPECT_NE(adapted, loss({"base"}));
}

TEST_F(AdapterCli, ExportOfAnAdapterSaysWhoCanLoadIt) {
  const ProcessResult result =
      run({"export", "adapter", "--adapter", "--output", "out", "--tokenizer", "bytes"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out,
            fmt::format("adapter adapter\n"
                        "out: 16 tensors, 64.0 KiB, fp32; tokenizer: bytes, as tokenizer.json\n"
                        "base: {}\n"
                        "PEFT: yes\n"
                        "vLLM: no, it has no LoRA for GPT2LMHeadModel\n"
                        "llama.cpp: no, its converter does not take the Conv1D layers of this family\n",
                        path("base")));
  EXPECT_EQ(logits({"out"}), logits({"adapter"}));
  // The base that the user names is the one that is written.
  const std::vector<std::string> named = {
      "export", "base", "--adapter_name_or_path", "adapter", "--adapter", "--output", "named"};
  fs::rename(path("base"), path("moved"));
  EXPECT_EQ(run(named).exit_code, 2);
  fs::rename(path("moved"), path("base"));
  ASSERT_EQ(run(named).exit_code, 0);
  EXPECT_EQ(nlohmann::json::parse(read_text(path("named/adapter_config.json")))["base_model_name_or_path"],
            path("base"));
}

TEST_F(AdapterCli, WrongUsesAreExplained) {
  const auto refusal = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "export");
    arguments.insert(arguments.end(), {"--output", "out"});
    const ProcessResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_FALSE(fs::exists(path("out")));
    return result.err;
  };
  EXPECT_THAT(refusal({"adapter"}),
              AllOf(HasSubstr("[adapter] is an adapter; choose --adapter to write it as a PEFT folder"),
                    HasSubstr("or --merge to write the whole model")));
  EXPECT_THAT(refusal({"base", "--adapter"}),
              HasSubstr("[base] has no adapter, so --adapter cannot be used"));
  EXPECT_THAT(refusal({"base", "--merge"}), HasSubstr("[base] has no adapter, so --merge cannot be used"));
  EXPECT_THAT(refusal({"adapter", "--merge", "--adapter"}),
              HasSubstr("--adapter and --merge exclude each other"));
  EXPECT_THAT(refusal({"adapter", "--adapter", "--dtype", "bf16"}),
              HasSubstr("an adapter is always written in fp32"));
  EXPECT_THAT(refusal({"base", "--adapter_name_or_path", "base", "--merge"}),
              HasSubstr("[base] is a whole model, expected an adapter"));
}

}  // namespace
}  // namespace octet::test
