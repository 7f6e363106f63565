// How a model is named: a folder, a hub id, a checkpoint, a run.

#include "checkpoint/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "model/parameters.h"
#include "support/process.h"

namespace octet::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string error_of(const std::string& name) {
  try {
    find_model(name);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

struct ModelNames : testing::Test {
  ModelNames() {
    setenv("HF_HUB_CACHE", (folder.path() + "/hub").c_str(), 1);
    setenv("HF_HUB_OFFLINE", "1", 1);
  }
  ~ModelNames() override {
    unsetenv("HF_HUB_CACHE");
    unsetenv("HF_HUB_OFFLINE");
  }
  TemporaryFolder folder;
};

TEST_F(ModelNames, AHubIdIsFoundInTheCache) {
  const std::string repository = folder.path() + "/hub/models--some-org--tiny";
  const std::string commit(40, 'a');
  fs::create_directories(repository + "/refs");
  fs::create_directories(repository + "/snapshots/" + commit);
  std::ofstream(repository + "/refs/main") << commit;
  std::ofstream(repository + "/snapshots/" + commit + "/config.json")
      << to_hf_config(model_preset("llama-tiny"), DType::BF16);
  std::ofstream(repository + "/snapshots/" + commit + "/model.safetensors") << "not looked at here";
  const ModelFolder model = find_model("some-org/tiny");
  EXPECT_EQ(fs::path(model.folder), fs::path(repository + "/snapshots/" + commit));
  EXPECT_EQ(model.config.layers, model_preset("llama-tiny").layers);
}

TEST_F(ModelNames, OfflineItSaysWhereTheFilesBelong) {
  EXPECT_THAT(error_of("some-org/absent"), HasSubstr(folder.path() + "/hub"));
}

TEST_F(ModelNames, AMistypedFolderIsNotLookedForElsewhere) {
  EXPECT_THAT(error_of("no_such_model"), HasSubstr("[no_such_model] is not a folder"));
}

}  // namespace
}  // namespace octet::test
