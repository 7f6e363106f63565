// Libraries inside the nvidia-* packages of pip.

#include "base/library_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/places.h"
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

// By its name where the loader knows it, else in the folder, else the reason of the first attempt.
TEST(LibrarySearch, OpensByNameThenInFolders) {
  std::string reason;
  EXPECT_NE(open_library("libm.so.6", {nullptr, "/nowhere"}, reason), nullptr);
  EXPECT_EQ(reason, "");
  const std::filesystem::path fake = fake_nvml_library();
  const std::string folder = fake.parent_path(), name = fake.filename();
  EXPECT_NE(open_library(name, {nullptr, "/nowhere", folder.c_str()}, reason), nullptr);
  reason.clear();
  EXPECT_EQ(open_library(name, {nullptr, "/nowhere"}, reason), nullptr);
  EXPECT_THAT(reason, testing::AllOf(testing::HasSubstr(name), testing::Not(testing::HasSubstr("/nowhere"))));
}

}  // namespace
}  // namespace octet::test
