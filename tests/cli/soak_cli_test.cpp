// A short version of scripts/soak.py: kills at random moments, a disk that is full now and then, the same bits at the end.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::HasSubstr;

// Without root, a limit on file sizes takes the place of a full disk. It applies to checkpoints, not to the log.
class SoakCli : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Disk, SoakCli, testing::Values("auto", "limit"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(SoakCli, KillsAndAFullDiskChangeNothing) {
  if (run_process("python3", {"--version"}).exit_code != 0) GTEST_SKIP() << "python3 was not found";
  const ProcessResult soak =
      run_process("python3", {test::source_path("/scripts/soak.py"), "--octet", test::octet_program(), "--steps", "120",
                              "--kills", "4", "--kill_every", "0", "--batch", "1", "--length", "32", "--seed",
                              "5", "--full_disk", GetParam()});
  EXPECT_EQ(soak.exit_code, 0) << soak.out << soak.err;
  EXPECT_THAT(soak.out, HasSubstr("the same bits after 120 steps"));
}

}  // namespace
}  // namespace octet::test
