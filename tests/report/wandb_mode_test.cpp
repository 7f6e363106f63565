// Whether a run is sent to W&B at once, recorded, or neither.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "report/wandb_follower.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::HasSubstr;

EnvironmentValue environment_of(std::map<std::string, std::string> values) {
  return [values](const char* name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

std::string mode_of(const std::string& wanted, const std::map<std::string, std::string>& values) {
  return choose_wandb_mode(wanted, environment_of(values)).mode;
}

TEST(WandbMode, FollowsTheKeyThenTheEnvironmentThenTheLogin) {
  EXPECT_EQ(mode_of("offline", {{"WANDB_API_KEY", "k"}, {"WANDB_MODE", "online"}}), "offline");
  EXPECT_EQ(mode_of("disabled", {{"WANDB_API_KEY", "k"}}), "disabled");
  EXPECT_EQ(mode_of("online", {{"WANDB_API_KEY", "k"}, {"WANDB_MODE", "offline"}}), "online");
  EXPECT_EQ(mode_of("", {{"WANDB_API_KEY", "k"}, {"WANDB_MODE", "offline"}}), "offline");
  EXPECT_EQ(mode_of("", {{"WANDB_API_KEY", "k"}, {"WANDB_MODE", "dryrun"}}), "offline");
  EXPECT_EQ(mode_of("", {{"WANDB_API_KEY", "k"}, {"WANDB_MODE", "disabled"}}), "disabled");
  EXPECT_EQ(mode_of("", {{"WANDB_API_KEY", "k"}, {"WANDB_DISABLED", "true"}}), "disabled");
  EXPECT_EQ(mode_of("", {{"WANDB_API_KEY", "k"}, {"WANDB_DISABLED", "false"}}), "online");
  EXPECT_EQ(mode_of("", {{"WANDB_API_KEY", "k"}}), "online");
}

TEST(WandbMode, WithoutAKeyItIsOfflineAndSaysSo) {
  for (const char* wanted : {"", "online"}) {
    const WandbMode mode = choose_wandb_mode(wanted, environment_of({}));
    EXPECT_EQ(mode.mode, "offline");
    EXPECT_THAT(mode.note, HasSubstr("no W&B key was found"));
  }
}

TEST(WandbMode, ALoginIsFoundInNetrc) {
  const TemporaryFolder home;
  EXPECT_EQ(mode_of("", {{"HOME", home.path()}}), "offline");
  home.write(".netrc",
             "machine github.com login a password b\nmachine api.wandb.ai\n  login user\n  password k\n");
  EXPECT_EQ(mode_of("", {{"HOME", home.path()}}), "online");
  EXPECT_EQ(mode_of("", {{"HOME", home.path()}, {"WANDB_BASE_URL", "https://wandb.example.org/"}}),
            "offline");
  const std::string other = home.write("other", "machine wandb.example.org login user password k\n");
  EXPECT_EQ(mode_of("", {{"NETRC", other}, {"WANDB_BASE_URL", "https://wandb.example.org/"}}), "online");
}

}  // namespace
}  // namespace octet::test
