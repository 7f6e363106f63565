#include "io/cache_folder.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>

#include "io/hub.h"

namespace octet {
namespace {

// Sets or removes variables for a test, and puts the earlier values back.
struct CacheFolder : testing::Test {
  ~CacheFolder() override {
    for (const auto& [name, value] : before_) put(name, value);
  }
  void set(const std::string& name, const std::optional<std::string>& value) {
    const char* old = std::getenv(name.c_str());
    before_.emplace(name, old ? std::optional<std::string>(old) : std::nullopt);
    put(name, value);
  }

 private:
  static void put(const std::string& name, const std::optional<std::string>& value) {
    value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
  }
  std::map<std::string, std::optional<std::string>> before_;
};

TEST_F(CacheFolder, XdgComesBeforeHome) {
  set("OCTET_CACHE", std::nullopt);
  set("HOME", "/home/ada");
  set("XDG_CACHE_HOME", "/scratch/ada");
  EXPECT_EQ(user_cache_folder(), "/scratch/ada");
  EXPECT_EQ(octet_cache_folder(), "/scratch/ada/octet");
  set("XDG_CACHE_HOME", std::nullopt);
  EXPECT_EQ(user_cache_folder(), "/home/ada/.cache");
  EXPECT_EQ(octet_cache_folder(), "/home/ada/.cache/octet");
}

TEST_F(CacheFolder, OneVariableMovesEverything) {
  for (const char* name : {"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) set(name, std::nullopt);
  set("HOME", "/home/ada");
  set("XDG_CACHE_HOME", "/scratch/ada");
  set("OCTET_CACHE", "/cache");
  EXPECT_EQ(octet_cache_folder(), "/cache");
  EXPECT_EQ(user_cache_folder(), "/scratch/ada");
  EXPECT_EQ(hub_settings_from_env().cache, "/cache/huggingface/hub");
  EXPECT_EQ(hub_settings_from_env().read_cache, "/scratch/ada/huggingface/hub") << "earlier downloads";
  set("HF_HOME", "/models");
  EXPECT_EQ(hub_settings_from_env().cache, "/models/hub") << "the hub's own variables come first";
  EXPECT_EQ(hub_settings_from_env().read_cache, "");
  set("HF_HUB_CACHE", "/hub");
  EXPECT_EQ(hub_settings_from_env().cache, "/hub");
  EXPECT_EQ(octet_cache_folder(), "/cache");
  set("OCTET_CACHE", "");
  EXPECT_EQ(octet_cache_folder(), "/scratch/ada/octet");
  set("HF_HOME", std::nullopt);
  set("HF_HUB_CACHE", std::nullopt);
  EXPECT_EQ(hub_settings_from_env().cache, "/scratch/ada/huggingface/hub");
  EXPECT_EQ(hub_settings_from_env().read_cache, "");
}

TEST_F(CacheFolder, FilesInItSayWhereTheFolderComesFrom) {
  set("OCTET_CACHE", "/cache");
  EXPECT_EQ(cache_note("/cache"), " (OCTET_CACHE is /cache)");
  EXPECT_EQ(cache_note("/cache/datasets/a"), " (OCTET_CACHE is /cache)");
  EXPECT_EQ(cache_note("/cache2/a"), "");
  EXPECT_EQ(cache_note("/a"), "");
  set("OCTET_CACHE", "kept/");
  EXPECT_EQ(cache_note("kept/datasets"), " (OCTET_CACHE is kept/)");
  set("OCTET_CACHE", "");
  EXPECT_EQ(cache_note("/a"), "");
}

TEST_F(CacheFolder, AnEmptyVariableIsNotSet) {
  set("OCTET_CACHE", "");
  set("HOME", "/home/ada/");
  set("XDG_CACHE_HOME", "");
  EXPECT_EQ(octet_cache_folder(), "/home/ada/.cache/octet");
  set("HOME", "");
  EXPECT_EQ(user_cache_folder(), "");
  EXPECT_EQ(octet_cache_folder(), "");
  set("HOME", std::nullopt);
  set("XDG_CACHE_HOME", std::nullopt);
  EXPECT_EQ(octet_cache_folder(), "");
}

}  // namespace
}  // namespace octet
