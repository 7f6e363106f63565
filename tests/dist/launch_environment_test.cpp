// What octet reads from the environment of each launcher.

#include "dist/launch_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <map>

#include "support/process.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Environment = std::map<std::string, std::string>;

LaunchEnvironment read(const Environment& variables) {
  return read_launch_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

std::string config_error(const Environment& variables) {
  try {
    read(variables);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

Environment with(Environment variables, const Environment& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

const Environment kOwn = {{"OCTET_RANK", "3"},        {"OCTET_RANKS", "4"}, {"OCTET_LOCAL_RANK", "1"},
                          {"OCTET_LOCAL_RANKS", "2"}, {"OCTET_JOB", "j1"},  {"OCTET_MASTER", "node0:29500"}};
const Environment kTorchrun = {{"RANK", "5"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "4"},
                               {"TORCHELASTIC_RUN_ID", "run7"},
                               {"TORCHELASTIC_RESTART_COUNT", "2"},
                               {"MASTER_ADDR", "node0"},
                               {"MASTER_PORT", "29400"}};
const Environment kMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                          {"OMPI_COMM_WORLD_SIZE", "4"},
                          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                          {"PMIX_NAMESPACE", "1234"}};
const Environment kSrun = {{"SLURM_PROCID", "2"},
                           {"SLURM_STEP_NUM_TASKS", "4"},
                           {"SLURM_LOCALID", "0"},
                           {"SLURM_STEP_ID", "0"},
                           {"SLURM_JOB_ID", "77"},
                           {"SLURM_RESTART_COUNT", "1"},
                           {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                           {"SLURM_STEP_NODELIST", "n[1-2]"}};

TEST(LaunchEnvironment, NothingSetIsAlone) {
  EXPECT_TRUE(read({}).is_alone());
  EXPECT_EQ(read({}).launcher, "");
  EXPECT_TRUE(read({{"OCTET_RANK", ""}, {"RANK", ""}}).is_alone());  // empty is not set
}

TEST(LaunchEnvironment, OwnVariables) {
  const LaunchEnvironment launch = read(kOwn);
  EXPECT_EQ(launch.launcher, "octet launch");
  EXPECT_EQ(launch.place, (RankPlace{3, 4, 1, 2}));
  EXPECT_EQ(launch.place.node(), 1);
  EXPECT_EQ(launch.job, "j1");
  EXPECT_EQ(launch.master_host, "node0");
  EXPECT_EQ(launch.base_port, 29500);
  EXPECT_FALSE(launch.secret);
}

TEST(LaunchEnvironment, TorchrunKeepsItsPort) {
  const LaunchEnvironment launch = read(kTorchrun);
  EXPECT_EQ(launch.launcher, "torchrun");
  EXPECT_EQ(launch.place, (RankPlace{5, 8, 1, 4}));
  EXPECT_EQ(launch.master_host, "node0");
  EXPECT_EQ(launch.base_port, 29401);
  EXPECT_THAT(launch.job, AllOf(HasSubstr("run7"), HasSubstr("restart 2")));
  EXPECT_NE(launch.job, read(with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "3"}})).job);
}

TEST(LaunchEnvironment, OneNodeMeetsOnLoopback) {
  EXPECT_EQ(read(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "8"}, {"LOCAL_RANK", "5"}})).master_host, "127.0.0.1");
  const LaunchEnvironment launch = read(kMpi);
  EXPECT_EQ(launch.launcher, "mpirun");
  EXPECT_EQ(launch.place, (RankPlace{1, 4, 1, 4}));
  EXPECT_EQ(launch.master_host, "127.0.0.1");
  EXPECT_EQ(launch.base_port, 0);
  EXPECT_EQ(launch.job, "mpirun 1234");
}

TEST(LaunchEnvironment, MpirunOnSeveralNodesNeedsAnAddress) {
  const Environment two = with(kMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_THAT(config_error(two), AllOf(HasSubstr("MASTER_ADDR"), HasSubstr("mpirun -x MASTER_ADDR")));
  EXPECT_EQ(read(with(two, {{"MASTER_ADDR", "head"}})).master_host, "head");
}

TEST(LaunchEnvironment, Srun) {
  const LaunchEnvironment launch = read(kSrun);
  EXPECT_EQ(launch.launcher, "srun");
  EXPECT_EQ(launch.place, (RankPlace{2, 4, 0, 2}));
  EXPECT_EQ(launch.master_host, "n1");
  EXPECT_EQ(launch.job, "slurm 77.0.1");
}

TEST(LaunchEnvironment, ABatchScriptWithoutSrunIsAlone) {
  EXPECT_TRUE(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "7"}}).is_alone());
}

TEST(LaunchEnvironment, TheFirstLauncherThatAppliesWins) {
  EXPECT_EQ(read(with(kSrun, kMpi)).launcher, "mpirun");
  EXPECT_EQ(read(with(kSrun, kTorchrun)).launcher, "torchrun");
  EXPECT_EQ(read(with(with(kTorchrun, kMpi), kOwn)).launcher, "octet launch");
}

TEST(LaunchEnvironment, NumbersThatDoNotFitAreNamed) {
  EXPECT_THAT(config_error(with(kOwn, {{"OCTET_RANK", "4"}})),
              AllOf(HasSubstr("OCTET_RANK is 4"), HasSubstr("OCTET_RANKS is 4"), HasSubstr("0 to 3")));
  EXPECT_THAT(config_error(with(kOwn, {{"OCTET_RANK", "two"}})), HasSubstr("OCTET_RANK is 'two'"));
  EXPECT_THAT(config_error(with(kOwn, {{"OCTET_RANK", "-1"}})), HasSubstr("OCTET_RANK is '-1'"));
  EXPECT_THAT(config_error(with(kOwn, {{"OCTET_JOB", ""}})), HasSubstr("OCTET_JOB is not set"));
  EXPECT_THAT(config_error(with(kOwn, {{"OCTET_MASTER", "node0:99999"}})), HasSubstr("node0:99999"));
  EXPECT_THAT(config_error(with(kTorchrun, {{"LOCAL_RANK", "4"}})),
              AllOf(HasSubstr("LOCAL_RANK is 4"), HasSubstr("LOCAL_WORLD_SIZE is 4")));
  EXPECT_THAT(config_error(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "3"}})),
              AllOf(HasSubstr("WORLD_SIZE is 8"), HasSubstr("equally many ranks")));
  // Ranks dealt to the nodes in turn.
  EXPECT_THAT(
      config_error(with(kSrun, {{"SLURM_LOCALID", "1"}})),
      AllOf(HasSubstr("SLURM_PROCID is 2"), HasSubstr("SLURM_LOCALID is 1"), HasSubstr("consecutive")));
  EXPECT_THAT(config_error(with(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", "3,1"}})),
              AllOf(HasSubstr("'3,1'"), HasSubstr("equally many ranks")));
  EXPECT_THAT(config_error(with(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", "2(x3)"}})),
              AllOf(HasSubstr("SLURM_STEP_NUM_TASKS is 4"), HasSubstr("'2(x3)'")));
}

TEST(LaunchEnvironment, NodesInsteadOfProcessesNeedOctetLaunch) {
  const Environment factory = {
      {"NNODES", "2"}, {"NODE_RANK", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}};
  EXPECT_THAT(config_error(factory), AllOf(HasSubstr("NNODES=2"), HasSubstr("NODE_RANK=1"),
                                           HasSubstr("octet launch -n GPUS_PER_NODE")));
  const Environment guide = {{"GPU_NUM", "8"}, {"WORLD_SIZE", "2"}, {"RANK", "0"}};
  EXPECT_THAT(config_error(guide),
              AllOf(HasSubstr("GPU_NUM=8"), HasSubstr("WORLD_SIZE=2"), HasSubstr("octet launch train")));
  EXPECT_THAT(config_error({{"GPU_NUM", "8"}, {"WORLD_SIZE", "1"}, {"RANK", "0"}}),
              HasSubstr("octet launch"));
  // One process, said in a long-winded way.
  EXPECT_TRUE(read({{"NNODES", "1"}, {"WORLD_SIZE", "1"}, {"RANK", "0"}}).is_alone());
}

TEST(LaunchEnvironment, NodeDefaults) {
  const auto defaults = [](const Environment& variables) {
    return read_node_defaults([&](const std::string& name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      if (found == variables.end()) return std::nullopt;
      return found->second;
    });
  };
  const NodeDefaults guide = defaults(
      {{"GPU_NUM", "8"}, {"WORLD_SIZE", "2"}, {"RANK", "1"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "5"}});
  EXPECT_EQ(guide.nodes, 2);
  EXPECT_EQ(guide.node_rank, 1);
  EXPECT_EQ(guide.processes, 8);
  EXPECT_EQ(guide.master_host, "h");
  EXPECT_EQ(guide.master_port, 5);
  const NodeDefaults factory = defaults({{"NNODES", "3"}, {"NODE_RANK", "2"}, {"NPROC_PER_NODE", "4"}});
  EXPECT_EQ(factory.nodes, 3);
  EXPECT_EQ(factory.node_rank, 2);
  EXPECT_EQ(factory.processes, 4);
  // With LOCAL_RANK they count processes.
  EXPECT_FALSE(defaults({{"WORLD_SIZE", "8"}, {"RANK", "3"}, {"LOCAL_RANK", "1"}}).nodes);
}

TEST(LaunchEnvironment, Secret) {
  const std::string secret(32, 's');
  EXPECT_EQ(read(with(kOwn, {{"OCTET_SECRET", secret}})).secret, secret);
  const TemporaryFolder folder;
  const std::string file = folder.write("secret", secret + "\n");
  chmod(file.c_str(), 0600);
  EXPECT_EQ(read(with(kOwn, {{"OCTET_SECRET_FILE", file}})).secret, secret);
  EXPECT_THAT(config_error(with(kOwn, {{"OCTET_SECRET", "short"}})),
              AllOf(HasSubstr("OCTET_SECRET has 5 characters"), HasSubstr("openssl rand -hex 32")));
  EXPECT_THAT(config_error(with(kOwn, {{"OCTET_SECRET_FILE", file + "x"}})), HasSubstr("secretx"));
}

TEST(LaunchEnvironment, HostAndPort) {
  EXPECT_EQ(parse_host_and_port("a.b-c:1", "x"), (HostAndPort{"a.b-c", 1}));
  EXPECT_EQ(parse_host_and_port("10.0.0.1", "x"), (HostAndPort{"10.0.0.1", 0}));
  EXPECT_EQ(parse_host_and_port("[fe80::1]:29500", "x"), (HostAndPort{"fe80::1", 29500}));
  EXPECT_EQ(parse_host_and_port("::1", "x"), (HostAndPort{"::1", 0}));
  for (const char* bad :
       {"", ":1", "a:", "a:0", "a:65536", "a:b", "a:1x", "[::1", "[::1]x", "a b:1", "a/b:1"})
    EXPECT_THROW(parse_host_and_port(bad, "x"), ConfigError) << bad;
}

TEST(LaunchEnvironment, NodeLists) {
  const auto first = [](const std::string& list) { return first_host_of(list, "x"); };
  EXPECT_EQ(first("n1"), "n1");
  EXPECT_EQ(first("n[1-2]"), "n1");
  EXPECT_EQ(first("n[001-128,130]"), "n001");
  EXPECT_EQ(first("n[7,9-10],m[1-2]"), "n7");
  EXPECT_EQ(first("login,n[1-2]"), "login");
  EXPECT_EQ(first("rack[2-3]-node[04-05].site"), "rack2-node04.site");
  for (const char* bad : {"", ",n1", "n[", "n[]", "n[-2]", "n[a-b]", "n;rm"})
    EXPECT_THROW(first(bad), ConfigError) << bad;
}

TEST(LaunchEnvironment, TasksPerNode) {
  const auto tasks = [](const std::string& text) { return tasks_per_node(text, "x"); };
  EXPECT_THAT(tasks("4"), ElementsAre(4));
  EXPECT_THAT(tasks("4(x2),3"), ElementsAre(4, 4, 3));
  for (const char* bad : {"", "4,", "0", "4(x", "4(x)", "4(x0)", "4(x99999)", "-1", "99999999999999"})
    EXPECT_THROW(tasks(bad), ConfigError) << bad;
}

}  // namespace
}  // namespace octet::test
