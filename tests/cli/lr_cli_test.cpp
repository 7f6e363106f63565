// octet lr from the command line.

#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using testing::StartsWith;
namespace fs = std::filesystem;

struct LrCli : testing::Test {
  ProcessResult lr(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "lr");
    return run_process(test::octet_program(), arguments, folder.path());
  }
  nlohmann::json schedules(std::vector<std::string> arguments) {
    arguments.emplace_back("--json");
    const ProcessResult result = lr(std::move(arguments));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out).at("schedules");
  }
  TemporaryFolder folder;
};

TEST_F(LrCli, KeysAloneAreEnough) {
  const ProcessResult result = lr(
      {"--warmup_steps", "10", "--total_steps", "100", "--max_lr", "1e-3", "--min_lr", "0", "-o", "a.svg"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("learning rate"), HasSubstr("  10      10.0 %  warm-up      1.000e-03"),
                    HasSubstr(" 100     100.0 %  decay        0.000e+00"), HasSubstr("a.svg written")));
  EXPECT_THAT(read_text(folder.path() + "/a.svg"), AllOf(StartsWith("<svg "), HasSubstr("learning rate")));
}

TEST_F(LrCli, JsonHasEveryStepOfAShortRun) {
  const nlohmann::json one = schedules({"--warmup_ratio", "0.2", "--total_steps", "10", "--max_lr", "1",
                                        "--lr_scheduler_type", "linear", "--min_lr_ratio", "0.5"})
                                 .at(0);
  EXPECT_EQ(one["warmup_steps"], 2);
  EXPECT_EQ(one["decay_steps"], 8);
  EXPECT_EQ(one["final_lr"], 0.5);
  ASSERT_EQ(one["points"].size(), 10u);
  EXPECT_EQ(one["points"][0], (nlohmann::json{{"step", 1}, {"lr", 0.5}}));
  EXPECT_EQ(one["points"][1]["lr"], 1.0);
  EXPECT_EQ(one["warnings"], nlohmann::json::array());
}

TEST_F(LrCli, FlagsOverrideAConfigurationAndSeveralStandSideBySide) {
  folder.write("a.yaml", "max_steps: 300\nlearning_rate: 1e-3\nwarmup_steps: 20\n");
  fs::create_directory(folder.path() + "/other");
  folder.write("other/a.yaml", "max_steps: 50\nlearning_rate: 2e-3\nlr_scheduler_type: constant\n");
  const nlohmann::json both = schedules({"a.yaml", "other/a.yaml", "--warmup_steps", "5"});
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0]["name"], "a.yaml");
  EXPECT_EQ(both[1]["name"], "other/a.yaml");
  EXPECT_EQ(both[0]["total_steps"], 300);
  EXPECT_EQ(both[1]["warmup_steps"], 5);
  const ProcessResult result = lr({"a.yaml", "other/a.yaml"});
  EXPECT_THAT(result.out, AllOf(HasSubstr("learning rate: a.yaml"), HasSubstr("mean / peak")));
}

TEST_F(LrCli, WarnsOfPhasesThatDoNotFit) {
  ProcessResult result = lr({"--warmup_steps", "500", "--total_steps", "200", "--lr", "1e-3"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, AllOf(HasSubstr("warning: the warm-up never ends"),
                                HasSubstr("warning: the decay never starts")));
  result = lr({"--lr_scheduler_type", "wsd", "--decay_ratio", "0.001", "--steps", "100", "--lr", "1e-3",
               "--warmup_steps", "1"});
  EXPECT_THAT(result.err, HasSubstr("warning: the decay never starts: decay_ratio of 100 steps"));
}

// 4096 bytes in sequences of 32 tokens, 4 per step.
TEST_F(LrCli, EpochsAreCountedWithTheData) {
  folder.write("text.txt", std::string(4096, 'x'));
  const std::vector<std::string> run = {"--dataset",    "text.txt", "--max_seq_length", "32",
                                        "--batch_size", "4",        "--epochs",         "3",
                                        "--eval_split", "0",        "--model_preset",   "llama-tiny"};
  const int64_t steps = schedules(run).at(0)["total_steps"];
  EXPECT_NEAR(static_cast<double>(steps), 3 * 4096 / 32 / 4, 2);
  std::vector<std::string> on_two = run;
  on_two.insert(on_two.end(), {"--ranks", "2"});
  EXPECT_NEAR(schedules(on_two).at(0)["total_steps"].get<double>(), static_cast<double>(steps) / 2, 1);
}

TEST_F(LrCli, BadInput) {
  ProcessResult result = lr({"--model_preset", "llama-tiny", "--dataset", "nowhere.jsonl", "--epochs", "1"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("nowhere.jsonl"), HasSubstr("give it with --total_steps N")));
  EXPECT_EQ(lr({"--dataset", "nowhere.jsonl", "--total_steps", "10"}).exit_code, 0);
  result = lr({"-o", "a.png"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--output is 'a.png', expected a name that ends in .svg"));
  EXPECT_FALSE(fs::exists(folder.path() + "/a.png"));
  result = lr({"nowhere.yaml"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("nowhere.yaml"));
  result = lr({"--min_lr", "1", "--max_lr", "0.5"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("min_lr is 1; expected at most the learning rate"));
  result = lr({"--lr_scheduler_type", "cosine_with_restarts"});
  EXPECT_EQ(result.exit_code, 2);
}

}  // namespace
}  // namespace octet::test
