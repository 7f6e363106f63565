// octet launch from the command line.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

ProcessResult launch(std::vector<std::string> arguments, std::vector<std::string> variables = {}) {
  std::vector<std::string> words = std::move(variables);
  words.insert(words.end(), {test::octet_program(), "launch"});
  words.insert(words.end(), arguments.begin(), arguments.end());
  return run_process("/usr/bin/env", words);
}

TEST(LaunchCli, StartsACommand) {
  const ProcessResult alone = run_process(test::octet_program(), {"keys"});
  for (const char* flag : {"-n", "--nproc_per_node"}) {
    const ProcessResult result = launch({flag, "3", "keys"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, alone.out);  // rank 0 alone speaks
    EXPECT_EQ(result.err, "");
  }
  // Habits from torchrun and mpirun.
  EXPECT_EQ(launch({"-np", "2", "keys"}).out, alone.out);
  EXPECT_EQ(launch({"-n", "2", "octet", "keys"}).out, alone.out);
  EXPECT_EQ(launch({"-n", "2", test::octet_program(), "keys"}).out, alone.out);
  EXPECT_EQ(launch({"--nproc_per_node", "auto", "keys"}, {"OMP_NUM_THREADS=2"}).out, alone.out);
  EXPECT_EQ(launch({"--nproc-per-node=cpu", "keys"}, {"OMP_NUM_THREADS=2"}).out, alone.out);
  EXPECT_THAT(launch({"-n", "2", "--", "--version"}).out, StartsWith("octet "));
  EXPECT_EQ(launch({"keys"}, {"NPROC_PER_NODE=2"}).out, alone.out);
  EXPECT_EQ(launch({"--standalone", "--nproc_per_node", "2", "keys"}, {"NNODES=2", "NODE_RANK=1"}).out,
            alone.out);
}

// Flags after the command are the command's.
TEST(LaunchCli, PassesTheRestOnUnchanged) {
  const ProcessResult result = launch({"-n", "2", "keys", "--markdown"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, StartsWith("# Configuration"));
  EXPECT_THAT(launch({"-n", "2", "help", "train"}).out, StartsWith("Usage: octet train"));
}

TEST(LaunchCli, ReturnsTheCommandsCode) {
  const ProcessResult result = launch({"-n", "2", "keys", "--no_such_flag"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("error: unknown flag '--no_such_flag'"),
                                HasSubstr("rank 1 ended with code 2")));
}

TEST(LaunchCli, WrongUseIsSaidOnce) {
  const auto error = [](std::vector<std::string> arguments, std::vector<std::string> variables = {}) {
    const ProcessResult result = launch(std::move(arguments), std::move(variables));
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(error({"keys"}, {"-u", "NPROC_PER_NODE", "-u", "GPU_NUM"}), HasSubstr("needs -n"));
  EXPECT_THAT(error({"-n", "2"}), HasSubstr("needs COMMAND"));
  EXPECT_THAT(error({"-n", "0", "keys"}),
              HasSubstr("octet launch -n is '0', expected a number from 1 to 1024"));
  EXPECT_THAT(error({"-n", "two", "keys"}), HasSubstr("octet launch -n is 'two', expected a number"));
  EXPECT_THAT(error({"-n", "gpu", "keys"}, {"CUDA_VISIBLE_DEVICES="}),
              HasSubstr("octet launch -n is gpu, but no GPU"));
  EXPECT_THAT(error({"-n", "2", "--nnodes", "2", "--master", "a:1", "--max_restarts", "1", "train"},
                    {"OCTET_SECRET=0123456789abcdef"}),
              HasSubstr("--max_restarts on 2 nodes needs run_name"));
  EXPECT_THAT(error({"-n", "2", "--standalone", "--nnodes", "2", "keys"}),
              HasSubstr("--standalone means one node"));
  EXPECT_THAT(error({"-n", "2", "keys"}, {"TMPDIR=/no/folder"}), HasSubstr("TMPDIR is /no/folder"));
  EXPECT_THAT(error({"-n", "2", "kees"}), HasSubstr("did you mean 'keys'?"));
  EXPECT_THAT(error({"-n", "2", "launch"}), HasSubstr("cannot start itself"));
  EXPECT_THAT(error({"-n", "2", "--nnodes", "2", "--node_rank", "2", "keys"}), HasSubstr("--node_rank is 2"));
  EXPECT_THAT(error({"-n", "2", "--nnodes", "2", "keys"}, {"-u", "MASTER_ADDR"}),
              HasSubstr("--master HOST:PORT"));
  EXPECT_THAT(error({"-n", "2", "--nnodes", "2", "--master", "a:b", "keys"}), HasSubstr("--master is 'a:b'"));
  EXPECT_THAT(error({"-n", "2", "--nnodes", "2", "--master", "a:1", "keys"},
                    {"-u", "OCTET_SECRET", "-u", "OCTET_SECRET_FILE"}),
              AllOf(HasSubstr("needs a secret"), HasSubstr("openssl rand")));
  EXPECT_THAT(error({"--number", "2", "keys"}), HasSubstr("--number"));
}

}  // namespace
}  // namespace octet::test
