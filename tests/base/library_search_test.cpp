// Libraries inside the nvidia-* packages of pip.

#include "base/library_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/process.h"

namespace octet::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(LibrarySearch, FindsLibrariesOfWheelsInEnvironments) {
  const TemporaryFolder a, b;
  const std::string cudnn = "lib/python3.11/site-packages/nvidia/cudnn/lib";
  const std::string cublas = "lib/python3.12/dist-packages/nvidia/cu13/lib";
  std::filesystem::create_directories(a.path() + "/" + cudnn);
  std::filesystem::create_directories(a.path() + "/lib/perl/site-packages/nvidia/cudnn/lib");
  std::filesystem::create_directories(b.path() + "/" + cublas);
  const std::string first = a.write(cudnn + "/libcudnn.so.9", "x");
  a.write("lib/perl/site-packages/nvidia/cudnn/lib/libcudnn.so.9", "x");
  const std::string second = b.write(cublas + "/libcudnn.so.9", "x");
  const std::vector<std::string> both = {a.path(), b.path(), a.path()};
  EXPECT_THAT(wheel_libraries_in(both, "libcudnn.so.9"), ElementsAre(first, second));
  EXPECT_THAT(wheel_libraries_in(both, "libcudnn.so.8"), IsEmpty());
  EXPECT_THAT(wheel_libraries_in({"/no/such/folder", ""}, "libcudnn.so.9"), IsEmpty());
}

TEST(LibrarySearch, LooksIntoTheActiveEnvironment) {
  const TemporaryFolder environment;
  const std::string folder = "lib/python3.11/site-packages/nvidia/nccl/lib";
  std::filesystem::create_directories(environment.path() + "/" + folder);
  const std::string file = environment.write(folder + "/libnccl.so.2", "x");
  const char* before = getenv("VIRTUAL_ENV");
  const std::string kept = before ? before : "";
  setenv("VIRTUAL_ENV", environment.path().c_str(), 1);
  EXPECT_THAT(wheel_libraries("libnccl.so.2"), testing::Contains(file));
  before ? setenv("VIRTUAL_ENV", kept.c_str(), 1) : unsetenv("VIRTUAL_ENV");
}

}  // namespace
}  // namespace octet::test
