// octet generate, eval, export, checkpoints and plot from the command line.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/golden_model.h"
#include "support/model_fixture.h"
#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::StartsWith;
namespace fs = std::filesystem;

struct ToolsCli : testing::Test {
  ProcessResult run(std::vector<std::string> arguments) {
    return run_process(test::octet_program(), arguments, folder.path());
  }
  // On the CPU, whatever the machine has.
  ProcessResult run_cpu(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--device", "cpu", "--num_threads", "1"});
    return run(arguments);
  }
  std::string path(const std::string& name) const { return join_path(folder.path(), name); }
  // A run folder with the checkpoints 10 (best) and 20 of a model that knows bytes.
  void make_run(const std::string& name) {
    RandomModel model(two_layers("llama-tiny"), DType::BF16);
    CheckpointStore store(posix_env(), path(name + "/checkpoints"));
    model.save(store, 10, 3.25, true);
    model.save(store, 20, 3.5);
  }
  TemporaryFolder folder;
};

std::string text_of(std::span<const int32_t> ids) {
  return fmt::format("{}", fmt::join(ids, " "));
}

// The printed logits are those that Transformers computed: prompt in one pass, here in fp32.
TEST_F(ToolsCli, GenerateGivesTheLogitsOfTransformers) {
  for (const char* name : {"gpt2", "llama_rope_scaled", "qwen2_untied", "qwen3_tied", "mistral_window"}) {
    const GoldenModel golden(name);
    write_golden_folder(name, path(name));
    const std::vector<int32_t> ids(golden.tokens.begin(), golden.tokens.begin() + golden.length);
    const ProcessResult result = run_cpu({"generate", name, "--print_logits", "--prompt_ids", text_of(ids)});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto json = nlohmann::json::parse(result.out);
    EXPECT_EQ(json["ids"], nlohmann::json(ids));
    std::vector<float> logits;
    for (const auto& row : json["logits"]) {
      for (const auto& value : row) logits.push_back(value.get<float>());
    }
    const std::vector<float> expected = golden.floats("logits");
    EXPECT_LE(relative_error(logits, std::span(expected).first(logits.size())), 1e-5) << name;
  }
}

// Greedy ids token by token are the argmax of whole passes over the growing text.
TEST_F(ToolsCli, GreedyIdsAgreeWithWholePasses) {
  write_golden_folder("qwen2_tied", path("model"));
  const ProcessResult result = run_cpu(
      {"generate", "model", "--prompt_ids", "5 9", "--print_ids", "--max_new_tokens", "6", "--ignore_eos"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::istringstream words(result.out);
  const std::vector<int32_t> ids{std::istream_iterator<int32_t>(words), {}};
  ASSERT_EQ(ids.size(), 8u);
  const ProcessResult logits = run_cpu({"generate", "model", "--print_logits", "--prompt_ids", text_of(ids)});
  const auto rows = nlohmann::json::parse(logits.out)["logits"].get<std::vector<std::vector<float>>>();
  for (size_t i = 2; i < ids.size(); ++i) {
    const auto best = std::max_element(rows[i - 1].begin(), rows[i - 1].end()) - rows[i - 1].begin();
    EXPECT_EQ(ids[i], best) << "token " << i;
  }
}

// A trained model from elsewhere and what another implementation makes of it, where the data is at hand.
TEST_F(ToolsCli, Stories260KGivesItsKnownIds) {
  const char* named = std::getenv("OCTET_SHARED_DATA");
  const std::string data = named ? named : test::source_path("/../shared/data");
  const std::string model = data + "/models/stories260K";
  if (!fs::exists(model)) GTEST_SKIP() << model << " is not there (OCTET_SHARED_DATA names the folder)";
  std::string expected = read_text(model + "/greedy_ids.txt");
  while (!expected.empty() && std::isspace(static_cast<unsigned char>(expected.back()))) expected.pop_back();
  const auto count = std::count(expected.begin(), expected.end(), ' ');
  const ProcessResult result = run_cpu({"generate", model, "--prompt_ids", "1", "--temperature", "0",
                                        "--print_ids", "--max_new_tokens", std::to_string(count)});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, expected + "\n");
}

TEST_F(ToolsCli, SeedsReproduceAndStreamingIsTheSameText) {
  make_run("run");
  const std::vector<std::string> base = {"generate",         "run", "--prompt",      "Once",
                                         "--max_new_tokens", "24",  "--temperature", "1",
                                         "--top_k",          "200", "--top_p",       "0.95"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = base;
    all.insert(all.end(), more.begin(), more.end());
    return run_cpu(all);
  };
  const ProcessResult first = with({"--seed", "3"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, StartsWith("Once"));
  EXPECT_THAT(first.err, HasSubstr("checkpoint of step 20"));
  EXPECT_EQ(with({"--seed", "3"}).out, first.out);
  EXPECT_EQ(with({"--seed", "3", "--stream"}).out, first.out);
  EXPECT_NE(with({"--seed", "4"}).out, first.out);
  EXPECT_THAT(with({"--best"}).err, HasSubstr("checkpoint of step 10"));
  // Random bytes are no text: what is printed is UTF-8 all the same.
  EXPECT_NO_THROW(nlohmann::json(first.out).dump());
}

TEST_F(ToolsCli, SeveralPromptsArePrintedInTheirOrder) {
  make_run("run");
  const ProcessResult both = run_cpu({"generate", "run", "--prompt", "A long one, to begin with", "--prompt",
                                      "B", "--max_new_tokens", "5", "--print_ids", "--ignore_eos"});
  ASSERT_EQ(both.exit_code, 0) << both.err;
  const ProcessResult second =
      run_cpu({"generate", "run", "--prompt", "B", "--max_new_tokens", "5", "--print_ids", "--ignore_eos"});
  EXPECT_EQ(both.out.substr(both.out.find('\n') + 1), second.out);
  // Commas and leading dashes belong to the text, and an empty prompt is one, too.
  const ProcessResult odd = run_cpu({"generate", "run", "--prompt", "a, b", "--prompt", "- c", "--prompt", "",
                                     "--prompt=--best", "--max_tokens", "1", "--print_ids", "--ignore_eos"});
  ASSERT_EQ(odd.exit_code, 0) << odd.err;
  EXPECT_THAT(odd.out, ContainsRegex("^97 44 32 98 [0-9]+\n45 32 99 [0-9]+\n[0-9]+ [0-9]+\n"
                                     "45 45 98 101 115 116 [0-9]+\n$"));
}

TEST_F(ToolsCli, GenerateSaysWhatIsMissing) {
  write_golden_folder("gpt2", path("model"));
  ProcessResult result = run_cpu({"generate", "model", "--prompt", "Hello"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("pass --tokenizer"));
  result = run_cpu({"generate", "model", "--prompt_ids", "1 2 1000", "--print_ids"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("expected token ids from 0 to 100"));
  result = run_cpu({"generate", "model"});
  EXPECT_EQ(result.exit_code, 2);
  result = run_cpu({"generate", "nowhere", "--prompt_ids", "1"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("[nowhere] is not a folder"));
  fs::remove(path("model/model.safetensors"));
  result = run_cpu({"generate", "model", "--prompt_ids", "1", "--print_ids"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("neither model.safetensors nor model.safetensors.index.json"));
}

TEST_F(ToolsCli, NumbersAreCheckedAndDashesAreUnderscores) {
  const ProcessResult number = run({"generate", "nowhere", "--max-new-tokens", "-1"});
  EXPECT_EQ(number.exit_code, 2);
  EXPECT_THAT(number.err, HasSubstr("--max_new_tokens is '-1'; expected an integer from 1 to"));
  EXPECT_THAT(run({"export", "nowhere", "--output", "o", "--max-shard-size-gb=0"}).err,
              HasSubstr("--max_shard_size_gb is '0'; expected a number above 0"));
  EXPECT_THAT(run({"eval", "nowhere", "--dataset", "t", "--batch-size", "4"}).err, HasSubstr("nowhere"));
}

TEST_F(ToolsCli, TheModelsPositionsEndTheText) {
  write_golden_folder("gpt2", path("model"));  // 24 positions
  const ProcessResult result = run_cpu({"generate", "model", "--prompt_ids", "1 2 3 4", "--print_ids",
                                        "--max_new_tokens", "99", "--ignore_eos"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::istringstream words(result.out);
  EXPECT_EQ(std::distance(std::istream_iterator<int>(words), {}), 25);
  EXPECT_THAT(result.err, HasSubstr("the model has 24 positions: at most 21 new tokens"));
}

TEST_F(ToolsCli, EvalCountsEveryWindowOnce) {
  make_run("run");
  std::string text;
  for (int i = 0; i < 40; ++i) text += fmt::format("line {} of a text. ", i * 37 % 101);
  folder.write("text.txt", text);
  const auto eval = [&](const std::string& rows) {
    const ProcessResult result = run_cpu(
        {"eval", "run", "--dataset", "text.txt", "--max_seq_length", "32", "--batch_size", rows, "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out);
  };
  const auto one = eval("1"), five = eval("5");
  EXPECT_EQ(one["tokens"], one["windows"].get<int64_t>() * 32);
  EXPECT_GE(one["tokens"], static_cast<int64_t>(text.size()) - 33);
  EXPECT_EQ(five["tokens"], one["tokens"]);
  EXPECT_NEAR(five["loss"], one["loss"].get<double>(), 1e-5);
  EXPECT_EQ(five["accuracy"], one["accuracy"]);
  // Random weights know nothing: the loss is that of 257 equally likely ids, nearly.
  EXPECT_NEAR(one["loss"], std::log(257), 0.2);
  EXPECT_NEAR(one["perplexity"], std::exp(one["loss"].get<double>()), 1e-6);
  const ProcessResult shown = run_cpu({"eval", "run", "--dataset", "text.txt", "--max_seq_length", "32"});
  EXPECT_THAT(shown.out, ContainsRegex("token accuracy +[0-9.]+ %"));
}

// Records are made into documents as in training; each is on its own.
TEST_F(ToolsCli, EvalReadsRecords) {
  make_run("run");
  std::string lines;
  for (int i = 0; i < 20; ++i) lines += fmt::format("{{\"text\": \"document number {}\"}}\n", i);
  folder.write("data.jsonl", lines);
  const ProcessResult result =
      run_cpu({"eval", "run", "--dataset", "data.jsonl", "--max_seq_length", "64", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  // Every byte and the end of each document is a target, but for the first byte of each.
  EXPECT_EQ(nlohmann::json::parse(result.out)["tokens"], 10 * 17 + 10 * 18);
}

TEST_F(ToolsCli, EvalOfTooLittleDataIsRefused) {
  make_run("run");
  folder.write("short.txt", "short");
  const ProcessResult result =
      run_cpu({"eval", "run", "--dataset", "short.txt", "--max_seq_length", "32", "--json"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("fewer tokens than one window of max_seq_length 32"));
}

TEST_F(ToolsCli, ExportWritesAFolderThatGeneratesTheSame) {
  make_run("run");
  const ProcessResult exported = run({"export", "run", "--output", "hf"});
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  EXPECT_THAT(exported.out, HasSubstr("bf16; tokenizer: bytes, as tokenizer.json"));
  for (const char* name : {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
                           "tokenizer_config.json"})
    EXPECT_TRUE(fs::exists(path(std::string("hf/") + name))) << name;
  const std::vector<std::string> flags = {"--prompt", "Once", "--max_new_tokens", "8", "--print_ids"};
  const auto generate = [&](const std::string& model) {
    std::vector<std::string> all = {"generate", model};
    all.insert(all.end(), flags.begin(), flags.end());
    return run_cpu(all);
  };
  EXPECT_EQ(generate("hf").out, generate("run").out);
  const ProcessResult again = run({"export", "run", "--output", "hf"});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, HasSubstr("not an empty folder"));
}

TEST_F(ToolsCli, CheckpointsTellWholeFromBroken) {
  make_run("run");
  ProcessResult result = run({"checkpoints", "run"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ContainsRegex("10 +[0-9.a-z ]+bf16 +3.2500 +[0-9.]+ [KM]iB +best +complete"));
  EXPECT_THAT(result.out, ContainsRegex("20 +[0-9.a-z ]+bf16 +3.5000 +[0-9.]+ [KM]iB +latest +complete"));
  // A flipped bit shows to --verify alone, a cut file to both.
  std::fstream file(path("run/checkpoints/step_20/model.safetensors"), std::ios::in | std::ios::out);
  file.seekp(5000);
  file.put('x');
  file.close();
  EXPECT_EQ(run({"checkpoints", "run"}).exit_code, 0);
  result = run({"checkpoints", "run/checkpoints", "--verify", "--json"});
  EXPECT_EQ(result.exit_code, 1);
  const auto json = nlohmann::json::parse(result.out);
  ASSERT_EQ(json.size(), 2u);
  EXPECT_TRUE(json[0]["whole"]);
  EXPECT_TRUE(json[0]["best"]);
  EXPECT_FALSE(json[1]["whole"]);
  EXPECT_THAT(json[1]["broken"].get<std::string>(), HasSubstr("model.safetensors"));
  fs::resize_file(path("run/checkpoints/step_10/config.json"), 3);
  EXPECT_THAT(run({"checkpoints", "run"}).out, HasSubstr("BROKEN: "));
  // A model is not taken from a broken checkpoint.
  result = run_cpu({"generate", "run/checkpoints/step_10", "--prompt", "x"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("config.json"));
  for (const char* step : {"run/checkpoints/step_10", "run/checkpoints/step_10/"}) {
    result = run({"checkpoints", step});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, AllOf(HasSubstr("is a single checkpoint; use 'octet checkpoints "),
                                  HasSubstr("/run/checkpoints'\n")));
  }
  fs::create_directory(path("run/checkpoints/step_notes"));
  EXPECT_THAT(run({"checkpoints", "run/checkpoints/step_notes"}).err, HasSubstr("holds no checkpoints"));
}

TEST_F(ToolsCli, PlotReadsRunsThatWereCutOff) {
  std::string lines;
  for (int step = 1; step <= 50; ++step) {
    lines += fmt::format(
        "{{\"step\": {}, \"loss\": {}, \"lr\": 0.001, \"tokens_per_second\": 900.0, \"precision\": "
        "\"FP8\"}}\n",
        step, 5.0 / step);
  }
  for (const char* name : {"a", "b", "c"}) fs::create_directory(path(name));
  folder.write("a/metrics.jsonl", lines);
  folder.write("b/metrics.jsonl", lines + "{\"step\": 51, \"los");
  ProcessResult result = run({"plot", "a", "b", "--output", "plot.svg"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("loss: a"));
  EXPECT_THAT(result.out, ContainsRegex("b +FP8 +50 +0.1000"));
  EXPECT_THAT(result.err, HasSubstr("the last line is incomplete"));
  EXPECT_THAT(read_text(path("plot.svg")), StartsWith("<svg "));
  result = run({"plot", "a/metrics.jsonl", "-o", "again.svg"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(read_text(path("again.svg")), StartsWith("<svg "));

  folder.write("c/metrics.jsonl", "{\"step\": 1, \"loss\": 2}\nnot json\n{\"step\": 2, \"loss\": 2}\n");
  result = run({"plot", "c"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("metrics.jsonl:2: not JSON"));
  // A pattern such as runs/* names runs that have just begun, and other folders, too.
  fs::create_directory(path("d"));
  fs::create_directory(path("e"));
  folder.write("d/metrics.jsonl", "");
  result = run({"plot", "a", "d", "e"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ContainsRegex("a +FP8 +50 +0.1000"));
  EXPECT_THAT(result.err, HasSubstr("warning: [d] is skipped: it holds no step yet"));
  EXPECT_THAT(result.err, HasSubstr("warning: [e] is skipped: it has no metrics.jsonl"));
  result = run({"plot", "d", "e"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("error: there is nothing to plot"));
  EXPECT_THAT(run({"plot", "nowhere"}).err, HasSubstr("expected the folder of a run or its metrics.jsonl"));
  result = run({"plot", "a", "-o", "plot.png"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--output is 'plot.png', expected a name that ends in .svg"));
  EXPECT_THAT(result.err, HasSubstr("rsvg-convert plot.svg -o plot.png"));
  EXPECT_FALSE(fs::exists(path("plot.png")));
}

}  // namespace
}  // namespace octet::test
