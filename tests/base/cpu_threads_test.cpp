#include "base/cpu_threads.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <filesystem>

#include "support/process.h"

namespace octet {
namespace {

struct DefaultThreads : testing::Test {
  DefaultThreads() {
    unsetenv("OMP_NUM_THREADS");
    sched_getaffinity(0, sizeof before, &before);
  }
  ~DefaultThreads() override {
    unsetenv("OMP_NUM_THREADS");
    sched_setaffinity(0, sizeof before, &before);
  }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(folder.path() + "/" + name).parent_path());
    folder.write(name, text);
  }
  CpuThreads threads() const { return default_threads(folder.path()); }
  int cores() const { return CPU_COUNT(&before); }

  cpu_set_t before{};
  test::TemporaryFolder folder;
};

TEST_F(DefaultThreads, AllCoresUnlessSomethingLimitsThem) {
  EXPECT_EQ(threads().count, cores());
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(threads().count, cores());
  write("sys/fs/cgroup/cpu.max", "100000000 100000\n");
  EXPECT_EQ(threads().count, cores()) << "a limit above the number of cores";
}

TEST_F(DefaultThreads, AnAbsurdNumberIsLimited) {
  setenv("OMP_NUM_THREADS", "100000000000000000000", 1);
  EXPECT_EQ(threads().count, 8 * cores());
  EXPECT_EQ(threads().reason, fmt::format("OMP_NUM_THREADS, limited to {}", 8 * cores()));
  setenv("OMP_NUM_THREADS", "2", 1);
  EXPECT_EQ(threads().count, 2);
}

TEST_F(DefaultThreads, ACgroupLimitCounts) {
  if (cores() < 2) GTEST_SKIP() << "needs two cores";
  write("proc/self/cgroup", "0::/batch/job_7\n");
  write("sys/fs/cgroup/batch/job_7/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/batch/cpu.max", "50000 100000\n");
  EXPECT_EQ(threads().count, 1) << "of a parent";
  EXPECT_NE(threads().reason.find("the cgroup allows 0.5 of "), std::string::npos) << threads().reason;
  write("sys/fs/cgroup/batch/cpu.max", "150000 100000\n");
  EXPECT_EQ(threads().count, 2) << "rounded up: the time that is left over is of use";
}

TEST_F(DefaultThreads, VersionOneOfCgroupsCounts) {
  if (cores() < 2) GTEST_SKIP() << "needs two cores";
  write("proc/self/cgroup", "4:cpu,cpuacct:/docker/abc\n0::/\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(threads().count, cores());
  write("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "100000\n");
  write("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(threads().count, 1);
}

TEST_F(DefaultThreads, TheAffinityMaskCounts) {
  if (cores() < 2) GTEST_SKIP() << "needs two cores";
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &before)) {
      CPU_SET(i, &one);
      break;
    }
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(threads().count, 1);
  EXPECT_NE(threads().reason.find("the affinity mask allows 1 of "), std::string::npos) << threads().reason;
}

TEST_F(DefaultThreads, OmpNumThreadsWins) {
  setenv("OMP_NUM_THREADS", "7", 1);
  EXPECT_EQ(threads().count, 7);
  EXPECT_EQ(threads().reason, "OMP_NUM_THREADS");
  setenv("OMP_NUM_THREADS", "5,2", 1);
  EXPECT_EQ(threads().count, 5);
  for (const char* text : {"", "0", "-3", "many"}) {
    setenv("OMP_NUM_THREADS", text, 1);
    EXPECT_EQ(threads().count, cores()) << text;
  }
}

}  // namespace
}  // namespace octet
