// A log on a disk that is full for a while. A limit on the size of files stands for it, in a process of its own.

#include "report/append_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "report_test_support.h"

namespace octet {
namespace {

using testing::HasSubstr;

bool limit_files_to(rlim_t bytes) {
  const rlimit limit{bytes, RLIM_INFINITY};
  return setrlimit(RLIMIT_FSIZE, &limit) == 0;
}

// Runs `work` in a process of its own; what it logs is in the result, one message a line.
template <class Work>
std::string messages_of(const std::filesystem::path& folder, const Work& work) {
  const std::filesystem::path said = folder / "said";
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    std::string text;
    set_log_sink([&](LogLevel, std::string_view message) { text += std::string(message) + "\n"; });
    const bool right = work();
    limit_files_to(RLIM_INFINITY);
    write_contents(said, text);
    _exit(right ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return contents_of(said);
}

TEST(AppendFile, TheEndWritesWhatStillWaits) {
  TemporaryFolder folder;
  const std::string said = messages_of(folder.path(), [&] {
    AppendFile file(folder.path() / "log", "log");
    const bool right = file.append("one\n") && limit_files_to(4) && !file.append("two\n");
    return right && limit_files_to(RLIM_INFINITY);
  });
  EXPECT_EQ(contents_of(folder.path() / "log"), "one\ntwo\n");
  EXPECT_THAT(said, HasSubstr("cannot be written: File too large; the run continues"));
  EXPECT_THAT(said, HasSubstr("writing works again"));
}

TEST(AppendFile, WhatIsNotWrittenUpToTheEndIsCounted) {
  TemporaryFolder folder;
  const std::string said = messages_of(folder.path(), [&] {
    AppendFile file(folder.path() / "log", "log");
    return limit_files_to(2) && !file.append("one\n") && !file.append("two\n");
  });
  EXPECT_EQ(contents_of(folder.path() / "log"), "");
  EXPECT_THAT(said, HasSubstr("log: the last 2 records could not be written"));
}

// However its path was lost: the records that were written before are there again, and the next ones follow.
TEST(AppendFile, AFileThatIsGoneIsWrittenAnew) {
  namespace fs = std::filesystem;
  TemporaryFolder folder;
  const fs::path path = folder.path() / "run" / "log";
  fs::create_directories(path.parent_path());
  AppendFile file(path, "log");
  file.append("one\n");
  EXPECT_FALSE(file.is_gone());
  fs::rename(path.parent_path(), folder.path() / "elsewhere");
  ASSERT_TRUE(file.is_gone());
  fs::create_directories(path.parent_path());
  file.write_anew();
  file.append("two\n");
  EXPECT_FALSE(file.is_gone());
  EXPECT_EQ(contents_of(path), "one\ntwo\n");
  EXPECT_EQ(contents_of(folder.path() / "elsewhere" / "log"), "one\n");
  fs::remove(path);
  write_contents(path, "of somebody else\n");
  ASSERT_TRUE(file.is_gone());
  file.write_anew();
  EXPECT_EQ(contents_of(path), "one\ntwo\n");
}

// Whoever can write in the folder must not lead the log into another file.
TEST(AppendFile, ALinkInItsPlaceIsReplaced) {
  namespace fs = std::filesystem;
  TemporaryFolder folder;
  const fs::path path = folder.path() / "log", other = folder.path() / "other";
  AppendFile file(path, "log");
  file.append("one\n");
  write_contents(other, "of somebody else\n");
  fs::remove(path);
  fs::create_symlink(other, path);
  ASSERT_TRUE(file.is_gone());
  file.write_anew();
  EXPECT_EQ(contents_of(other), "of somebody else\n");
  EXPECT_FALSE(fs::is_symlink(path));
  EXPECT_EQ(contents_of(path), "one\n");
}

// As after a shared disk came back: the descriptor is of no use, but the records are there.
TEST(AppendFile, WhatCannotBeReadReplacesNothing) {
  namespace fs = std::filesystem;
  TemporaryFolder folder;
  const fs::path path = folder.path() / "log";
  AppendFile file(path, "log");
  file.append("one\n");
  const int unreadable = open((folder.path() / "unreadable").c_str(), O_CREAT | O_WRONLY, 0644);
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code closed;  // the iterator's own
    if (fs::read_symlink(entry.path(), closed) == fs::canonical(path))
      dup2(unreadable, std::stoi(entry.path().filename()));
  }
  close(unreadable);
  ASSERT_TRUE(file.is_gone());
  file.write_anew();
  EXPECT_EQ(contents_of(path), "one\n");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 2) << "no copy is left behind";
}

// A run of weeks on a full disk must not use up the memory.
TEST(AppendFile, OnlySoMuchWaits) {
  TemporaryFolder folder;
  const std::string said = messages_of(folder.path(), [&] {
    AppendFile file(folder.path() / "log", "log");
    bool right = limit_files_to(0);
    for (int i = 0; i < 70; ++i)
      right = right && !file.append(std::string(1 << 20, static_cast<char>('0' + i)));
    return right && limit_files_to(RLIM_INFINITY) && file.append("the last one");
  });
  const std::string text = contents_of(folder.path() / "log");
  EXPECT_EQ(text.size(), (size_t{64} << 20) + 12);
  EXPECT_EQ(text.front(), '0' + 6) << "the oldest are lost";
  EXPECT_TRUE(text.ends_with("the last one"));
  EXPECT_THAT(said, HasSubstr("64 earlier records were written late, 6 are missing"));
}

}  // namespace
}  // namespace octet
