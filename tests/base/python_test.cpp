#include "base/python.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>

#include "support/environment.h"
#include "support/process.h"

namespace octet::test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

TEST(Python, RelativePlacesAreTakenOutOfItsEnvironment) {
  const auto cleaned = [](std::vector<std::string> given) { return python_environment(given); };
  EXPECT_THAT(cleaned({"PATH=.:/bin", "PYTHONPATH=:/a:b::/c/d:.", "PYTHONHOME=here", "PYTHONSAFEPATH="}),
              ElementsAre("PATH=.:/bin", "PYTHONPATH=/a:/c/d", "PYTHONSAFEPATH=1"));
}

// The files that Python would import at once in a folder of somebody else.
TEST(Python, FilesOfTheCurrentFolderAreNotExecuted) {
  if (run_process("python3", {"-c", ""}).exit_code != 0) GTEST_SKIP() << "there is no python3";
  const TemporaryFolder folder;
  for (const char* name : {"sitecustomize.py", "usercustomize.py", "csv.py", "sys.py"})
    folder.write(name, "open('executed', 'w')\n");
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  const Variable python_path("PYTHONPATH", ":."), python("OCTET_PYTHON", std::nullopt);
  const std::string answer = python_answer("import csv\nprint(csv.reader.__name__, end='')");
  fs::current_path(before);
  EXPECT_EQ(answer, "reader");
  EXPECT_FALSE(fs::exists(folder.path() + "/executed"));
}

TEST(Python, AProgramThatFailsHasNoAnswer) {
  for (const char* program : {"/no/python", "false"}) {
    const Variable python("OCTET_PYTHON", program);
    EXPECT_EQ(python_answer("print(1)"), "") << program;
  }
}

}  // namespace
}  // namespace octet::test
