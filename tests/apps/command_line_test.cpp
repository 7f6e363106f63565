// The rules that all commands share, checked on every one of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "command.h"
#include "support/error_of.h"
#include "support/places.h"
#include "support/process.h"

namespace octet {
namespace {

using test::ProcessResult;
using testing::HasSubstr;
using testing::StartsWith;

// A command in this process, with errors as main() prints them.
ProcessResult octet(const std::vector<std::string>& arguments) {
  ProcessResult result;
  testing::internal::CaptureStdout();
  try {
    result.exit_code = find_command(arguments.front()).run(std::span(arguments).subspan(1));
  } catch (const ConfigError& error) {
    result.exit_code = kExitUsage;
    std::istringstream lines(error.what());
    for (std::string line; std::getline(lines, line);)
      if (!line.empty()) result.err += "error: " + line + "\n";
  } catch (const std::exception& error) {
    result.exit_code = kExitFailure;
    result.err = error.what();
  }
  result.out = testing::internal::GetCapturedStdout();
  return result;
}

// A process of its own: flags before the command are main()'s.
ProcessResult program(const std::vector<std::string>& arguments) {
  return test::run_process(test::octet_program(), arguments);
}

void expect_usage_error(const ProcessResult& result, const std::string& errors) {
  EXPECT_EQ(result.exit_code, kExitUsage);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, errors);
}

TEST(CommandLine, EveryCommandHasHelpAndEveryWayToItGivesTheSame) {
  const std::string list = octet({"help"}).out;
  for (const Command& command : commands()) {
    const std::string& name = command.line.name;
    EXPECT_THAT(list, HasSubstr("\n  " + name + " ")) << name;
    EXPECT_THAT(list, HasSubstr(command.line.summary.substr(0, 40))) << name;
    const ProcessResult help = octet({"help", name});
    EXPECT_EQ(help.exit_code, kExitDone) << name;
    EXPECT_EQ(help.err, "") << name;
    EXPECT_THAT(help.out, StartsWith("Usage: octet " + name)) << name;
    EXPECT_THAT(help.out, HasSubstr("\n  -h, --help                      Print this help.\n")) << name;
    for (const Positional& word : command.line.words)
      EXPECT_THAT(help.out, HasSubstr("\n  " + word.name)) << name;
    for (const Key& key : command.line.keys) EXPECT_THAT(help.out, HasSubstr("--" + key.name)) << name;
    for (const char* flag : {"--help", "-h"}) EXPECT_EQ(octet({name, flag}).out, help.out) << name;
    // Whatever else is wrong.
    EXPECT_EQ(octet({name, "--frobnicate", "x", "--help"}).out, help.out) << name;
  }
}

TEST(CommandLine, LinesOfHelpFitATerminal) {
  std::string all = program_help();
  for (const Command& command : commands()) all += help_text(command.line);
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = all.find('\n', begin);
    EXPECT_LE(end - begin, 100u) << all.substr(begin, end - begin);
    begin = end + 1;
  }
}

TEST(CommandLine, EveryCommandSuggestsTheNearestFlag) {
  for (const Command& command : commands()) {
    const std::string& name = command.line.name;
    expect_usage_error(octet({name, "--zebra_crossing_count", "1"}),
                       "error: unknown flag '--zebra_crossing_count'\n");
    const bool takes_run_keys = command.line.run_keys != RunKeys::No;
    std::vector<std::string> known =
        takes_run_keys ? std::vector<std::string>{"learning_rate"} : std::vector<std::string>{};
    for (const Key& key : command.line.keys) known.push_back(key.name);
    for (const std::string& key : known) {
      expect_usage_error(octet({name, "--" + key + "_"}),
                         "error: unknown flag '--" + key + "_'; did you mean '--" + key + "'?\n");
    }
  }
}

TEST(CommandLine, HelpOfWhatIsNoCommand) {
  expect_usage_error(octet({"help", "trian"}), "error: unknown command 'trian'; did you mean 'train'?\n");
  expect_usage_error(octet({"help", "zzzzzzz"}),
                     "error: unknown command 'zzzzzzz'; 'octet --help' lists the commands\n");
  expect_usage_error(octet({"help", "train", "plan"}),
                     "error: octet help takes one command, got 'train' and 'plan'\n");
  const std::string list = program({}).out;
  EXPECT_THAT(list, HasSubstr("\nCommands\n"));
  for (const char* way : {"help", "--help", "-h"}) EXPECT_EQ(program({way}).out, list);
}

TEST(CommandLine, NamesOfScriptsAreAnsweredWithTheCommand) {
  const std::pair<const char*, const char*> scripts[] = {
      {"scripts/verify_fp8.py", "octet doctor"},
      {"diagnose_fp8.py", "octet plan CONFIG.yaml"},
      {"benchmark_fp8_vs_bf16", "octet bench"},
      {"compare-performance", "octet compare RUN RUN"},
      {"visualize_lr_schedule.py", "octet lr CONFIG.yaml"},
      {"test_lr_schedule", "octet lr CONFIG.yaml"},
      {"submit_fp8.sh", "octet submit CONFIG.yaml"},
      {"Run-Sweep.sh", "octet sweep SWEEP.yaml"},
      {"load_in_fp8", "octet train CONFIG.yaml"},
      {"setup_fp8_mixed_precision_training(backend=te)", "octet train CONFIG.yaml"},
      {"./start_tensorboard.sh", "octet tensorboard runs"},
      {"src/train_fp8.py", "octet train CONFIG.yaml"},
      {"train_multi_gpu.py", "octet launch -n N train"},
      {"configs/x.yaml", "octet train configs/x.yaml"},
  };
  for (const auto& [script, command] : scripts) {
    const ProcessResult result = octet({script, "--flag", "x"});
    EXPECT_EQ(result.exit_code, kExitUsage) << script;
    EXPECT_THAT(result.err, HasSubstr(command)) << script;
  }
}

TEST(CommandLine, FlagsBeforeTheCommand) {
  EXPECT_THAT(program({"--version"}).out, testing::MatchesRegex("octet [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  const std::string place = "error: flags of a command go after its name: octet COMMAND --key value\n";
  expect_usage_error(program({"--verison"}),
                     "error: unknown flag '--verison'; did you mean '--version'?\n" + place);
  expect_usage_error(program({"--max_steps", "3", "train"}), "error: unknown flag '--max_steps'\n" + place);
}

TEST(CommandLine, PositionalErrors) {
  const std::string model =
      "MODEL: Hugging Face folder or hub id, adapter folder, checkpoint folder (step_N), or run folder.\n";
  expect_usage_error(octet({"generate", "--prompt", "x"}), "error: octet generate needs " + model);
  expect_usage_error(octet({"eval"}), "error: octet eval needs " + model);
  expect_usage_error(octet({"export"}),
                     "error: octet export needs " + model + "error: octet export needs -o, --output DIR\n");
  expect_usage_error(
      octet({"checkpoints"}),
      "error: octet checkpoints needs DIR: Folder of a run, or folder of checkpoints (step_N).\n");
  expect_usage_error(octet({"plot"}),
                     "error: octet plot needs RUN: Folder of a run, or its metrics.jsonl.\n");
  expect_usage_error(octet({"generate", "a", "--prompt", "Once", "upon", "a time"}),
                     "error: octet generate takes one model, got 'a', 'upon' and 'a time'\n");
  expect_usage_error(octet({"checkpoints", "--verify", "a", "b"}),
                     "error: octet checkpoints takes one folder, got 'a' and 'b'\n");
  expect_usage_error(octet({"keys", "zebra"}),
                     "error: no key has to do with 'zebra'; 'octet keys' lists all keys\n");
  expect_usage_error(
      octet({"keys", "fp8_haed"}),
      "error: no key has to do with 'fp8_haed'; did you mean 'fp8_head'? 'octet keys' lists all keys\n");
  expect_usage_error(
      octet({"keys", "fp8_head", "zebra"}),
      "error: no key has to do with all words of 'fp8_head zebra'; 'octet keys' lists all keys\n");
  expect_usage_error(octet({"keys", "--markdown", "x"}),
                     "error: --markdown prints all keys; give no words\n");
  expect_usage_error(octet({"checkpoints", ""}), "error: the name of the folder is empty\n");
  for (const char* name : {"train", "plan", "bench", "prepare"}) {
    expect_usage_error(octet({name, "a", "b"}),
                       fmt::format("error: octet {} takes one configuration file, got 'a' and 'b'\n", name));
  }
}

TEST(CommandLine, AllErrorsOfACallAreListed) {
  expect_usage_error(
      octet({"generate", "--temperature", "x", "--top_p=1.5", "--seed", "--max_new_tokens", "0"}),
      "error: --seed needs a value; expected an integer of at least 0\n"
      "error: --temperature is 'x'; expected a number of at least 0\n"
      "error: --top_p is '1.5'; expected a number from 0 to 1\n"
      "error: --max_new_tokens is '0'; expected an integer from 1 to 1000000000000\n"
      "error: octet generate needs MODEL: Hugging Face folder or hub id, adapter folder, checkpoint folder (step_N), "
      "or run folder.\n"
      "error: octet generate needs --prompt TEXT, --user TEXT or --chat\n");
  const test::TemporaryFolder folder;
  folder.write("run.yaml", "max_steps: x\n");
  std::filesystem::current_path(folder.path());
  expect_usage_error(octet({"bench", "run.yaml", "--bench_steps", "0", "--seed", "y"}),
                     "error: max_steps in run.yaml:1 is 'x'; expected an integer from -1 to 1000000000000\n"
                     "error: --bench_steps is '0'; expected an integer of at least 1\n"
                     "error: --seed is 'y'; expected an integer of at least 0\n");
  expect_usage_error(octet({"prepare"}),
                     "error: octet prepare needs --dataset: a file, a folder, a glob, a preset or a hub id\n"
                     "error: octet prepare needs --output DIR, the folder for shards and manifest\n");
}

TEST(CommandLine, ValuesOfAllCommandsAreReadByTheSameRules) {
  expect_usage_error(octet({"export", "m", "-o", "out", "--dtype", "fp16"}),
                     "error: --dtype is 'fp16'; expected one of bf16, fp32\n");
  expect_usage_error(
      octet({"export", "m", "--output"}),
      "error: --output needs a value. Folder to create. An existing folder must be empty. With --format "
      "gguf: file to create.\n");
  expect_usage_error(octet({"export", "m", "--output="}), "error: --output is empty; expected a value\n");
  expect_usage_error(octet({"eval", "m", "--dataset", "d", "--mixed-precision", "fp4"}),
                     "error: --mixed_precision is 'fp4'; expected one of fp32, bf16, fp8\n");
  expect_usage_error(octet({"eval", "m", "--dataset", "d", "--batch-size", "1", "--batch_size=2"}),
                     "error: --batch_size is given twice\n");
  expect_usage_error(octet({"generate", "m", "--prompt", "x", "--max_tokens", "1", "--max_new_tokens", "2"}),
                     "error: --max_tokens and --max_new_tokens are the same key; give one of them\n");
  expect_usage_error(octet({"tokenize", "--tokenizer", "bytes", "--decode", "--add_special", "--bench", "2"}),
                     "error: --add_special cannot be used with --decode\n"
                     "error: --bench cannot be used with --decode\n");
  expect_usage_error(
      octet({"plot", "r", "-o", "plot.pdf"}),
      "error: --output is 'plot.pdf', expected a name that ends in .svg: octet draws SVG only. Any browser "
      "shows an SVG file. To convert it: write plot.svg, then run 'rsvg-convert plot.svg -o plot.pdf'\n");
}

struct Values {
  std::string first, second;
  std::vector<std::string> rest;
};

// No command has several kinds of words yet.
TEST(CommandLine, WordsLandInTheirOrder) {
  static Values seen;
  CommandBuilder<Values> builder("copy", "Copy");
  builder.word(&Values::first, {.name = "FIRST", .what = "first", .help = "The first."});
  builder.word(&Values::second, {.name = "SECOND", .what = "second", .help = "The second."});
  builder.words(&Values::rest, {.name = "REST", .what = "rest", .help = "Others.", .required = false});
  const Command command = builder.command([](const Values& values) { return seen = values, 7; });
  EXPECT_EQ(command.run(std::vector<std::string>{"a", "b", "c", "d"}), 7);
  EXPECT_EQ(seen.first + seen.second, "ab");
  EXPECT_THAT(seen.rest, testing::ElementsAre("c", "d"));
  EXPECT_EQ(command.run(std::vector<std::string>{"a", "b"}), 7);
  EXPECT_THAT(seen.rest, testing::IsEmpty());
  EXPECT_EQ(error_of([&] { command.run(std::vector<std::string>{"a"}); }),
            "octet copy needs SECOND: The second.");
  EXPECT_THAT(help_text(command.line), StartsWith("Usage: octet copy FIRST SECOND [REST...]\n"));
}

}  // namespace
}  // namespace octet
