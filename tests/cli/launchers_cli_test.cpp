// Runs that are started by other launchers: torchrun and mpirun.

#include "cli/rank_runs.h"
#include "support/places.h"

namespace octet::test {
namespace {

using testing::HasSubstr;

struct Launchers : RankRuns {
  static std::vector<std::string> with_program(std::vector<std::string> words,
                                               const std::vector<std::string>& command) {
    words.push_back(test::octet_program());
    words.insert(words.end(), command.begin(), command.end());
    return words;
  }
};

TEST_F(Launchers, Torchrun) {
  if (run_process("python3", {"-c", "import torch.distributed.run"}).exit_code != 0)
    GTEST_SKIP() << "python3 has no torch";
  const Flags flags = {{"sharding_mode", "fsdp_full"}, {"gradient_checkpointing", "true"}};
  // The module is what the command torchrun calls.
  const ProcessResult result = run_process(
      "python3",
      with_program({"-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--no-python"},
                   train("torchrun", flags)),
      folder.path());
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("2 ranks, Gloo, started by torchrun"));
  ASSERT_EQ(launch(2, "launched", flags).exit_code, 0);
  EXPECT_EQ(values("torchrun", "loss").size(), 6u);
  EXPECT_EQ(values("torchrun", "loss"), values("launched", "loss"));
}

TEST_F(Launchers, Mpirun) {
  if (run_process("/bin/sh", {"-c", "mpirun --version | grep 'Open MPI'"}).exit_code != 0)
    GTEST_SKIP() << "there is no mpirun of Open MPI (package openmpi-bin)";
  const ProcessResult result = run_process(
      "mpirun", with_program({"--allow-run-as-root", "--oversubscribe", "-n", "2"}, train("mpirun")),
      folder.path());
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("2 ranks, Gloo, started by mpirun"));
  ASSERT_EQ(launch(2, "launched").exit_code, 0);
  EXPECT_EQ(values("mpirun", "loss").size(), 6u);
  EXPECT_EQ(values("mpirun", "loss"), values("launched", "loss"));
}

}  // namespace
}  // namespace octet::test
