// report_to, and how it goes together with use_wandb and use_tensorboard.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "config/config.h"
#include "support/error_of.h"

namespace octet::test {
namespace {

using testing::HasSubstr;

TrainConfig load(const std::string& yaml,
                 const std::vector<std::pair<std::string, std::string>>& flags = {}) {
  FileSettings file{.path = "run.yaml"};
  file.settings = parse_settings(yaml, "run.yaml", file.errors);
  std::vector<KeySetting> settings;
  for (const auto& [name, value] : flags) settings.push_back({.name = name, .values = {value}});
  return load_train_config(std::move(file), settings);
}

std::string where(const TrainConfig& config) {
  return std::string(config.use_wandb ? "wandb " : "") + (config.use_tensorboard ? "tensorboard" : "");
}

TEST(ReportTo, SaysWhereFiguresGo) {
  EXPECT_EQ(where(load("")), "tensorboard");
  EXPECT_EQ(where(load("report_to: wandb\n")), "wandb ");
  EXPECT_EQ(where(load("report_to: [wandb, tensorboard]\n")), "wandb tensorboard");
  EXPECT_EQ(where(load("report_to: all\n")), "wandb tensorboard");
  EXPECT_EQ(where(load("report_to: none\n")), "");
  EXPECT_EQ(where(load("report_to: []\n")), "");
  EXPECT_EQ(where(load("report_to: null\n")), "tensorboard");
  EXPECT_EQ(where(load("report_to: mlflow\n")), "");  // with a warning
}

TEST(ReportTo, AFlagOverridesTheFile) {
  EXPECT_EQ(where(load("report_to: none\n", {{"use_wandb", "true"}})), "wandb ");
  EXPECT_EQ(where(load("use_wandb: true\n", {{"report_to", "tensorboard"}})), "tensorboard");
  EXPECT_EQ(where(load("report_to: wandb\nuse_wandb: true\n")), "wandb ");
}

TEST(ReportTo, ContradictionsAndUnknownNamesAreErrors) {
  EXPECT_THAT(error_of([] { load("report_to: none\nuse_wandb: true\n"); }),
              HasSubstr("report_to in run.yaml:1 and use_wandb in run.yaml:2 contradict each other"));
  EXPECT_THAT(error_of([] { load("report_to: [none, wandb]\n"); }),
              HasSubstr("names none and something else"));
  EXPECT_THAT(error_of([] { load("report_to: wandbb\n"); }),
              HasSubstr("expected wandb, tensorboard, all or none"));
}

TEST(ReportTo, TheWrittenConfigurationReadsBack) {
  const TrainConfig config = load("report_to: wandb\n");
  const std::string text = to_yaml(config);
  EXPECT_EQ(where(load(text)), "wandb ");
  EXPECT_THAT(text, HasSubstr("wandb_mode: null\n"));
  EXPECT_EQ(load(to_yaml(load("wandb_mode: dryrun\n"))).wandb_mode, "offline");
}

}  // namespace
}  // namespace octet::test
