#include "io/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/error.h"
#include "temp_dir.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct OutputFile : testing::Test {
  TempDir folder;
  fs::path place = folder.path();
};

TEST_F(OutputFile, AFileIsReplaced) {
  const std::string path = (place / "a.json").string();
  write_output_file(path, "first");
  write_output_file(path, "second");
  EXPECT_EQ(contents(path), "second");
  EXPECT_EQ(std::distance(fs::directory_iterator(place), {}), 1) << "nothing else is left behind";
}

TEST_F(OutputFile, ALinkStaysAndItsTargetIsWritten) {
  fs::create_directory(place / "there");
  write_output_file((place / "there/real").string(), "old");
  fs::create_symlink("there/real", place / "one");
  fs::create_symlink(place / "one", place / "two");
  write_output_file((place / "two").string(), "new");
  EXPECT_TRUE(fs::is_symlink(place / "one"));
  EXPECT_TRUE(fs::is_symlink(place / "two"));
  EXPECT_EQ(contents(place / "there/real"), "new");
  // A link to a file that is not there yet.
  fs::create_symlink("there/later", place / "early");
  check_output_file("--json", (place / "early").string());
  EXPECT_FALSE(fs::exists(place / "there/later")) << "a check leaves nothing behind";
  EXPECT_TRUE(fs::is_symlink(place / "early"));
  write_output_file((place / "early").string(), "text");
  EXPECT_TRUE(fs::is_symlink(place / "early"));
  EXPECT_EQ(contents(place / "there/later"), "text");
}

TEST_F(OutputFile, APipeIsWrittenToAndStaysAPipe) {
  const std::string path = (place / "pipe").string();
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  check_output_file("--html", path);  // must not wait for a reader
  std::string read;
  std::thread reader([&] { read = contents(path); });
  const std::string text(200'000, 'x');  // more than a pipe holds
  write_output_file(path, text);
  reader.join();
  EXPECT_EQ(read, text);
  EXPECT_TRUE(fs::is_fifo(path));
}

TEST_F(OutputFile, WhatCannotBeWrittenIsNamed) {
  const std::string missing = (place / "no/such/x.html").string();
  try {
    check_output_file("--html", missing);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("--html: " + missing + " cannot be written: No such file"));
  }
  EXPECT_THROW(check_output_file("--html", place.string()), ConfigError);
  EXPECT_THROW(write_output_file(missing, ""), Error);
  EXPECT_THROW(write_output_file(place.string(), ""), Error);
}

}  // namespace
}  // namespace octet
