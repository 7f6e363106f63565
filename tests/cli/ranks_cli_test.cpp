// Runs of several ranks from the command line: modes, files, resuming on other numbers of ranks, ranks that do not fit.

#include "cli/rank_runs.h"
#include "support/places.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

TEST_F(RankRuns, EveryModeGivesTheSameLosses) {
  for (const char* mode : {"none", "zero1", "zero2", "fsdp_full"}) {
    const ProcessResult result = launch(4, mode, {{"sharding_mode", mode}});
    ASSERT_EQ(result.exit_code, 0) << mode << result.err;
    EXPECT_EQ(values(mode, "loss").size(), 6u);
    EXPECT_EQ(values(mode, "loss"), values("none", "loss")) << mode;
    EXPECT_EQ(values(mode, "grad_norm"), values("none", "grad_norm")) << mode;
  }
  EXPECT_LT(values("none", "loss").back(), values("none", "loss").front() - 0.5);
}

// Two nodes of two ranks on one machine. Sums are made in two levels, so the last bits differ from other modes.
TEST_F(RankRuns, TwoNodes) {
  for (const char* mode : {"hsdp", "fsdp_full"}) {
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < 4; ++rank)
      ranks.push_back(start_rank(rank, 4, train(mode, {{"sharding_mode", mode}}), {}, 2));
    for (const pid_t pid : ranks) ASSERT_EQ(end_of(pid), 0) << mode << read_text(file("out_job_0.txt"));
    EXPECT_THAT(read_text(file("out_job_0.txt")), HasSubstr("4 ranks on 2 nodes"));
  }
  const std::vector<double> two_levels = values("hsdp", "loss"), one_level = values("fsdp_full", "loss");
  ASSERT_EQ(two_levels.size(), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(two_levels[i], one_level[i], 2e-3) << i;
}

TEST_F(RankRuns, OnlyTheFirstRankWritesTheRun) {
  const ProcessResult result = launch(3, "run", {{"save_steps", "3"}});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto count = [](const std::string& text, const std::string& word) {
    int found = 0;
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count(result.out, "step 6/6 | "), 1);
  EXPECT_EQ(count(result.out, "\nsummary\n"), 1);
  EXPECT_THAT(result.out, HasSubstr("1 x 32 tokens x 1 micro-batch x 3 ranks = 96 tokens per step"));
  const std::vector<nlohmann::json> records = metrics("run");
  ASSERT_EQ(records.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(records[i]["step"], i + 1);
    EXPECT_EQ(records[i]["tokens"], 96 * (i + 1));
  }
  int event_files = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(run_file("run", "")))
    event_files += entry.path().filename().string().starts_with("events.out.tfevents.");
  EXPECT_EQ(event_files, 1);
  for (const char* log : {"rank_1.log", "rank_2.log"})
    EXPECT_THAT(read_text(run_file("run", log)), HasSubstr("step 6/6 | ")) << log;
  EXPECT_FALSE(fs::exists(run_file("run", "rank_0.log")));
  EXPECT_FALSE(fs::exists(run_file("run", "crashes")));
  const ProcessResult list =
      run_process(test::octet_program(), {"checkpoints", "runs/run", "--verify"}, folder.path());
  EXPECT_EQ(list.exit_code, 0) << list.out << list.err;
}

// FAULTS 10: 12 sequences a step, however they are spread. Every start continues from what the one before has saved. In
// fp32 only the order of sums differs; without the moments the second step already would differ by much more.
TEST_F(RankRuns, ResumesOnAnyNumberOfRanks) {
  Flags flags = {{"mixed_precision", "fp32"},
                 {"gradient_reduce_dtype", "fp32"},
                 {"gradient_accumulation_steps", "3"},
                 {"max_steps", "8"}};
  ASSERT_EQ(launch(4, "whole", flags).exit_code, 0);
  int steps = 0;
  for (const auto& [ranks, mode] :
       std::vector<std::pair<int, const char*>>{{4, "fsdp_full"}, {2, "zero1"}, {1, "auto"}, {3, "zero2"}}) {
    steps += 2;
    flags["max_steps"] = std::to_string(steps);
    flags["gradient_accumulation_steps"] = std::to_string(12 / ranks);
    flags["sharding_mode"] = mode;
    const ProcessResult result = launch(ranks, "moved", flags);
    ASSERT_EQ(result.exit_code, 0) << ranks << " ranks" << result.out << result.err;
    EXPECT_EQ(metrics("moved").size(), static_cast<size_t>(steps));
    flags["resume"] = "latest";
  }
  for (const char* key : {"loss", "grad_norm"}) {
    const std::vector<double> whole = values("whole", key), moved = values("moved", key);
    ASSERT_EQ(moved.size(), whole.size());
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(moved[i], whole[i], 2e-5) << key << " " << i;
  }
  EXPECT_EQ(values("moved", "tokens"), values("whole", "tokens"));
}

// The state itself: what each number of ranks has loaded it saves again, so the weights of step 2 are compared as
// exported from runs that continued with a learning rate of zero.
TEST_F(RankRuns, ResumingKeepsEveryWeight) {
  ASSERT_EQ(launch(4, "first", {{"max_steps", "2"}}).exit_code, 0);
  const auto exported = [&](const std::string& name) {
    const ProcessResult result =
        run_process(test::octet_program(), {"export", "runs/" + name, "--output", "out_" + name}, folder.path());
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return read_text(file("out_" + name + "/model.safetensors"));
  };
  const std::string weights = exported("first");
  for (const int ranks : {1, 2, 3}) {
    const std::string name = "on_" + std::to_string(ranks);
    const ProcessResult result =
        launch(ranks, name,
               {{"resume", "runs/first"}, {"max_steps", "3"}, {"learning_rate", "0"}, {"weight_decay", "0"}});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(exported(name) == weights) << name;
  }
}

TEST_F(RankRuns, AnotherConfigurationIsRefusedOnBothSides) {
  const pid_t first = start_rank(0, 2, train("run", {{"learning_rate", "0.001"}}));
  const pid_t second = start_rank(1, 2, train("run", {{"learning_rate", "0.002"}}));
  EXPECT_EQ(end_of(first), 1);
  EXPECT_EQ(end_of(second), 1);
  for (const char* output : {"out_job_0.txt", "out_job_1.txt"}) {
    EXPECT_THAT(read_text(file(output)),
                AllOf(HasSubstr("configuration"), HasSubstr("rank 0"), HasSubstr("rank 1")));
  }
  EXPECT_FALSE(fs::exists(file("runs/run")));
}

// Two jobs on the same port: each finds its own ranks, and one whose rank is missing says so.
TEST_F(RankRuns, JobsDoNotMix) {
  std::vector<pid_t> whole;
  whole.push_back(start_rank(0, 2, train("whole"), {}, 1, "whole"));
  const pid_t lost = start_rank(1, 2, train("lost", {{"rendezvous_timeout", "5"}}), {}, 1, "lost");
  EXPECT_EQ(end_of(lost), 1);
  EXPECT_THAT(read_text(file("out_lost_1.txt")), HasSubstr("rank 0"));
  whole.push_back(start_rank(1, 2, train("whole"), {}, 1, "whole"));
  for (const pid_t pid : whole) EXPECT_EQ(end_of(pid), 0) << read_text(file("out_whole_0.txt"));
  EXPECT_THAT(read_text(file("out_whole_0.txt")), Not(HasSubstr("error")));
}

}  // namespace
}  // namespace octet::test
