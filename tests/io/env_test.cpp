#include "io/env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "support/fault_env.h"
#include "io/mapping_faults.h"
#include "io/temporary_file.h"
#include "support/error_of.h"
#include "temp_dir.h"

namespace octet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string text_at(Env& env, const std::string& path, int64_t offset, size_t size) {
  std::string text(size, '\0');
  text.resize(env.open_read(path).read_at(offset, std::as_writable_bytes(std::span(text))));
  return text;
}

TEST(Env, FilesAndDirectories) {
  const TempDir dir;
  Env& env = posix_env();
  env.make_directories(dir / "a/b/c");
  env.make_directories(dir / "a/b/c/");
  WritableFile file = env.create(dir / "a/x");
  file.append("hello ");
  file.append("world");
  file.sync();
  file.close();
  EXPECT_EQ(env.file_size(dir / "a/x"), 11);
  EXPECT_EQ(env.read_text(dir / "a/x"), "hello world");
  EXPECT_EQ(text_at(env, dir / "a/x", 6, 100), "world");
  EXPECT_EQ(text_at(env, dir / "a/x", 100, 5), "");
  EXPECT_THROW(env.read_text(dir / "a/x", 10), Error);

  WritableFile more = env.open_append(dir / "a/x");
  more.append("!");
  more.close();
  const MappedFile mapped = env.map(dir / "a/x");
  EXPECT_EQ(mapped.bytes().size(), 12u);
  EXPECT_EQ(env.create(dir / "a/x").path(), dir / "a/x");
  EXPECT_EQ(env.file_size(dir / "a/x"), 0);
  EXPECT_TRUE(env.map(dir / "a/x").bytes().empty());

  env.rename(dir / "a/x", dir / "a/y");
  EXPECT_FALSE(env.exists(dir / "a/x"));
  EXPECT_FALSE(env.exists(dir / "a/y/z"));
  EXPECT_THAT(env.list(dir / "a"), ElementsAre("b", "y"));
  env.sync_directory(dir / "a");
  EXPECT_TRUE(env.is_directory(dir / "a"));
  EXPECT_FALSE(env.is_directory(dir / "a/y"));
  ASSERT_EQ(symlink(dir.path().c_str(), (dir / "a/link").c_str()), 0);
  env.remove_tree(dir / "a");
  EXPECT_FALSE(env.exists(dir / "a"));
  EXPECT_TRUE(env.exists(dir.path())) << "links are not followed";
}

TEST(Env, ErrorsNamePathOperationAndReason) {
  const TempDir dir;
  try {
    posix_env().open_read(dir / "absent");
    FAIL();
  } catch (const IoError& error) {
    EXPECT_EQ(error.code(), ENOENT);
    EXPECT_EQ(std::string(error.what()), "[" + (dir / "absent") + "] open failed: No such file or directory");
  }
  posix_env().make_directory(dir / "d");
  EXPECT_THROW(posix_env().make_directory(dir / "d"), IoError);
  EXPECT_THROW(posix_env().list(dir / "absent"), IoError);
  EXPECT_THROW(posix_env().create(dir / "absent/x"), IoError);
  EXPECT_THROW(posix_env().make_directories("/dev/null/x"), IoError);
}

// In a folder that others can write, a link at a name that octet opens would lead its writes elsewhere.
TEST(Env, TemporaryFilesAndLocksFollowNoLink) {
  const TempDir dir;
  write_file(dir / "victim", "precious");
  EXPECT_TRUE(is_temporary_of(dir / "a", create_temporary(posix_env(), dir / "a").path()));
  EXPECT_NE(temporary_name("a"), temporary_name("a"));

  std::filesystem::create_symlink("victim", dir / "link");
  WritableFile anew = create_anew(posix_env(), dir / "link");
  anew.append("new");
  EXPECT_EQ(read_file(dir / "link"), "new");

  std::filesystem::create_symlink("victim", dir / "lock");
  EXPECT_THROW(posix_env().lock(dir / "lock", "me"), IoError);
  EXPECT_EQ(read_file(dir / "victim"), "precious");
}

TEST(Env, TemporaryNamesAreKnownAgain) {
  EXPECT_TRUE(is_temporary_of("plan.json", temporary_name("plan.json")));
  EXPECT_TRUE(is_temporary_of("plan.json", "plan.json.tmp-1234"));  // of earlier versions
  for (const char* name : {"plan.json", "plan.json.tmp-", "plan.json.tmp-xyz", "other.json.tmp-12", "plan"})
    EXPECT_FALSE(is_temporary_of("plan.json", name)) << name;
}

TEST(Env, WhatIsNotARegularFileIsNotRead) {
  const TempDir dir;
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0600), 0);
  ASSERT_EQ(symlink("/dev/zero", (dir / "zero").c_str()), 0);
  for (const std::string& path : {dir / "fifo", dir / "zero", dir.path()}) {
    EXPECT_THAT(error_of([&] { posix_env().open_read(path); }), HasSubstr("not a regular file"));
    EXPECT_THAT(error_of([&] { posix_env().map(path); }), HasSubstr("not a regular file"));
  }
}

#ifndef __SANITIZE_ADDRESS__  // reports the signal itself
TEST(MappedFiles, OneThatBecomesShorterIsNamedAndEndsTheProgram) {
  const TempDir dir;
  const std::string path = dir / "tokens.bin", other = dir / "other.bin";
  int code = 1;
  const auto read_cut = [&] {
    for (const std::string& each : {path, other}) std::ofstream(each) << std::string(100'000, 'x');
    set_mapping_fault_advice("; advice", code);
    const MappedFile before = posix_env().map(other);
    { const MappedFile gone = posix_env().map(other); }
    const MappedFile mapped = posix_env().map(path);
    if (truncate(path.c_str(), 0) != 0) _exit(9);
    const auto bytes = mapped.bytes();
    const volatile std::byte* last = &bytes.back();
    _exit(static_cast<int>(*last));
  };
  EXPECT_EXIT(read_cut(), testing::ExitedWithCode(1), "tokens.bin\\] cannot be read any more.*; advice");
  // As a rank whose standard error is a file of its own, and which is worth another start.
  const auto read_cut_as_rank = [&] {
    set_mapping_fault_console(dup(STDERR_FILENO));
    if (freopen((dir / "rank_1.log").c_str(), "w", stderr) == nullptr) _exit(8);
    code = 75;
    read_cut();
  };
  EXPECT_EXIT(read_cut_as_rank(), testing::ExitedWithCode(75), "cannot be read any more.*; advice");
  EXPECT_THAT(posix_env().read_text(dir / "rank_1.log"), HasSubstr("cannot be read any more"));
  EXPECT_EXIT(raise(SIGBUS), testing::KilledBySignal(SIGBUS), "");
}
#endif

TEST(Env, ParentPath) {
  EXPECT_EQ(parent_path("a/b"), "a");
  EXPECT_EQ(parent_path("a//b//"), "a");
  EXPECT_EQ(parent_path("a"), ".");
  EXPECT_EQ(parent_path("/a"), "/");
  EXPECT_EQ(parent_path("/"), "/");
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
}

TEST(Env, LockExcludesAndIsReleasedByTheDeathOfItsHolder) {
  const TempDir dir;
  const std::string path = dir / "lock";
  {
    const FileLock lock = posix_env().lock(path, "one");
    EXPECT_EQ(read_file(path), "one");
    EXPECT_THROW(posix_env().lock(path, "two"), IoError);
    EXPECT_EQ(read_file(path), "one");
  }
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const FileLock lock = posix_env().lock(path, "child");
    if (write(ready[1], "x", 1) != 1) _exit(1);
    while (true) pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_THROW(posix_env().lock(path, "two"), IoError);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_NO_THROW(posix_env().lock(path, "two"));
  close(ready[0]);
  close(ready[1]);
}

void write_two(Env& env, const TempDir& dir) {
  WritableFile file = env.create(dir / "f");
  file.append("0123456789");
  file.append("abcdef");
  file.sync();
  file.close();
}

TEST(FaultEnv, InterruptionsAndShortWritesAreMadeGood) {
  const TempDir dir;
  FaultEnv env(dir.path());
  write_two(env, dir);
  const int64_t calls = env.calls();
  EXPECT_EQ(calls, 5);  // open, write, write, fsync, close
  for (const IoFault fault : {IoFault::Eintr, IoFault::Short}) {
    for (int64_t k = 1; k <= calls; ++k) {
      env.arm(k, fault);
      write_two(env, dir);
      EXPECT_EQ(env.struck(), fault == IoFault::Eintr || k == 2 || k == 3) << k;
      EXPECT_EQ(read_file(dir / "f"), "0123456789abcdef") << k;
      env.arm(k, fault);
      EXPECT_EQ(env.read_text(dir / "f"), "0123456789abcdef") << k;
    }
  }
}

TEST(FaultEnv, FailuresAreReported) {
  const TempDir dir;
  FaultEnv env(dir.path());
  for (int64_t k = 1; k <= 5; ++k) {
    env.arm(k, IoFault::Eio);
    EXPECT_THROW(write_two(env, dir), IoError) << k;
    env.arm(k, IoFault::Enospc);
    if (k < 5) {
      EXPECT_THROW(write_two(env, dir), IoError) << k;
    } else {
      EXPECT_NO_THROW(write_two(env, dir)) << "close needs no space";
    }
  }
}

TEST(FaultEnv, NothingReachesTheDiskAfterAKill) {
  const TempDir dir;
  FaultEnv env(dir.path());
  const std::vector<std::string> left = {"", "", "0123456789", "0123456789abcdef", "0123456789abcdef"};
  const std::vector<std::string> left_inside = {"", "01234", "0123456789abc", "0123456789abcdef",
                                                "0123456789abcdef"};
  for (int64_t k = 1; k <= 5; ++k) {
    write_file(dir / "f", "");
    env.arm(k, IoFault::Kill);
    EXPECT_THROW(write_two(env, dir), SimulatedKill);
    EXPECT_THROW(env.create(dir / "g"), SimulatedKill);
    EXPECT_FALSE(env.exists(dir / "g"));
    EXPECT_EQ(read_file(dir / "f"), left[static_cast<size_t>(k - 1)]) << k;
    env.arm(k, IoFault::KillInside);
    EXPECT_THROW(write_two(env, dir), SimulatedKill);
    EXPECT_EQ(read_file(dir / "f"), left_inside[static_cast<size_t>(k - 1)]) << k;
  }
}

TEST(FaultEnv, PowerLossTakesWhatWasNotSynced) {
  const TempDir dir;
  write_file(dir / "old", "old");
  FaultEnv env(dir.path());
  const auto make = [&](const std::string& name, bool sync) {
    WritableFile file = env.create(dir / name);
    file.append(name);
    if (sync) file.sync();
    file.append("+");
    file.close();
  };
  make("a", true);
  env.sync_directory(dir.path());
  make("b", true);     // its name is not synced
  make("old", false);  // emptied and written again: the old bytes are the synced ones
  env.make_directory(dir / "d");
  make("d/x", true);
  env.rename(dir / "a", dir / "c");
  env.drop_unsynced();
  EXPECT_THAT(env.list(dir.path()), ElementsAre("a", "old"));
  EXPECT_EQ(read_file(dir / "a"), "a");
  EXPECT_EQ(read_file(dir / "old"), "old");

  // The rename survives, the bytes do not: the mistake of renaming before syncing.
  make("t", false);
  env.rename(dir / "t", dir / "old");
  env.lose_power(Unsynced::Keep, Unsynced::Drop);
  EXPECT_EQ(read_file(dir / "old"), "");

  env.make_directory(dir / "d");
  make("d/x", true);
  env.sync_directory(dir.path());
  env.drop_unsynced();
  EXPECT_TRUE(env.is_directory(dir / "d"));
  EXPECT_TRUE(env.list(dir / "d").empty()) << "the entry in d was never synced";
}

}  // namespace
}  // namespace octet
