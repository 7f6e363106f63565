#include "base/host_memory.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "support/process.h"

namespace octet {
namespace {

constexpr int64_t kMiB = 1 << 20;

// A root folder with 900 MiB available and whatever cgroup files a test adds. Few MiB, so that the memory of the
// machine that runs the test does not matter.
struct HostMemory : testing::Test {
  HostMemory() {
    write("proc/meminfo",
          "MemTotal:        2048000 kB\nMemFree:          100000 kB\nMemAvailable:     921600 kB\n");
  }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(folder.path() + "/" + name).parent_path());
    folder.write(name, text);
  }
  void write_mib(const std::string& name, int64_t mib) const {
    write(name, std::to_string(mib * kMiB) + "\n");
  }
  int64_t available_mib() const { return available_host_memory(folder.path()) / kMiB; }

  test::TemporaryFolder folder;
};

TEST_F(HostMemory, WithoutCgroupsItIsWhatTheKernelCallsAvailable) {
  EXPECT_EQ(available_mib(), 900);
}

TEST_F(HostMemory, ALimitCountsLessWhatTheCgroupHolds) {
  write("proc/self/cgroup", "0::/\n");
  write_mib("sys/fs/cgroup/memory.max", 700);
  EXPECT_EQ(available_mib(), 700);
  write_mib("sys/fs/cgroup/memory.current", 200);
  EXPECT_EQ(available_mib(), 500);
  // Page cache is given back when memory is needed.
  write("sys/fs/cgroup/memory.stat", "anon 1000\ninactive_file " + std::to_string(100 * kMiB) +
                                         "\nactive_file " + std::to_string(50 * kMiB) + "\nslab 77\n");
  EXPECT_EQ(available_mib(), 650);
  write_mib("sys/fs/cgroup/memory.current", 900);
  EXPECT_EQ(available_mib(), 0) << "a limit that was lowered below the usage";
  write("sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(available_mib(), 900);
}

TEST_F(HostMemory, EveryCgroupAboveCounts) {
  write("proc/self/cgroup", "0::/batch/job_7/step_0\n");
  write("sys/fs/cgroup/batch/job_7/step_0/memory.max", "max\n");
  write_mib("sys/fs/cgroup/batch/job_7/memory.max", 600);
  write_mib("sys/fs/cgroup/batch/job_7/memory.current", 150);
  write_mib("sys/fs/cgroup/batch/memory.max", 800);
  write_mib("sys/fs/cgroup/batch/job_8/memory.max", 10);
  EXPECT_EQ(available_mib(), 450);
  write_mib("sys/fs/cgroup/batch/memory.current", 700);
  EXPECT_EQ(available_mib(), 100);
}

TEST_F(HostMemory, APathOfTheHostInAContainerFallsBackToTheMount) {
  write_mib("sys/fs/cgroup/memory.max", 300);
  write("proc/self/cgroup", "0::/kubepods/pod12/ctr34\n");
  EXPECT_EQ(available_mib(), 300);
  write("proc/self/cgroup", "0::/../../elsewhere\n");
  EXPECT_EQ(available_mib(), 300);
  write("proc/self/cgroup", "not what is expected\n");
  EXPECT_EQ(available_mib(), 300);
}

TEST_F(HostMemory, Version1HasOtherNames) {
  write("proc/self/cgroup", "9:cpu,cpuacct:/x\n4:hugetlb,memory:/slurm/job_1\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // no limit
  write_mib("sys/fs/cgroup/memory/memory.usage_in_bytes", 5000);
  write("sys/fs/cgroup/memory/slurm/job_1/memory.limit_in_bytes", std::to_string(400 * kMiB));
  write_mib("sys/fs/cgroup/memory/slurm/job_1/memory.usage_in_bytes", 150);
  write("sys/fs/cgroup/memory/slurm/job_1/memory.stat",
        "inactive_file 1\ntotal_inactive_file " + std::to_string(50 * kMiB) + "\n");
  EXPECT_EQ(available_mib(), 300);
}

TEST(HostMemoryOfThisMachine, IsSome) {
  EXPECT_GT(available_host_memory(), 0);
}

}  // namespace
}  // namespace octet
