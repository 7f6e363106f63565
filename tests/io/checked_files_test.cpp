#include "io/checked_files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "support/captured_log.h"
#include "temp_dir.h"

namespace octet {
namespace {

namespace fs = std::filesystem;
using test::CapturedLog;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Place = CheckedFiles::Place;

// Nothing can be created or changed below some folders, as on a read-only mount. Root may write everywhere else.
struct ReadOnlyEnv : Env {
  int sys_open(const std::string& path, int flags, mode_t mode) override {
    for (const std::string& folder : folders)
      if (path.starts_with(folder) && (flags & (O_WRONLY | O_RDWR)) != 0) return -EROFS;
    return Env::sys_open(path, flags, mode);
  }
  int sys_mkdir(const std::string& path, mode_t mode) override {
    for (const std::string& folder : folders)
      if (path.starts_with(folder)) return -EROFS;
    return Env::sys_mkdir(path, mode);
  }
  std::vector<std::string> folders;
};

struct CheckedFilesTest : testing::Test {
  CheckedFilesTest() {
    setenv("OCTET_CACHE", (dir / "cache").c_str(), 1);
    fs::create_directory(dir / "data");
  }
  ~CheckedFilesTest() override { unsetenv("OCTET_CACHE"); }

  // A file that was last changed an hour ago.
  std::string write(const std::string& name, const std::string& bytes, int minutes = 60) const {
    const std::string path = dir / ("data/" + name);
    write_file(path, bytes);
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::minutes(minutes));
    return path;
  }
  void remember(const std::string& name, uint64_t found, Place place = Place::Folder,
                Env& env = posix_env()) const {
    CheckedFiles files(env, dir / "data", place);
    files.begin_checks();
    files.remember(name, file_stamp(dir / ("data/" + name)), found);
    files.save();
  }
  std::optional<uint64_t> find(const std::string& name, Place place = Place::Folder,
                               Env& env = posix_env()) const {
    return CheckedFiles(env, dir / "data", place).find(name, file_stamp(dir / ("data/" + name)));
  }
  std::vector<std::string> names(const std::string& folder) const { return posix_env().list(dir / folder); }

  TempDir dir;
};

TEST_F(CheckedFilesTest, FindsWhatAnEarlierProcessRemembered) {
  write("a", "aaa");
  write("b", "bb");
  EXPECT_EQ(find("a"), std::nullopt);
  remember("a", 7);
  remember("b", ~uint64_t{0});
  EXPECT_EQ(find("a"), 7u);
  EXPECT_EQ(find("b"), ~uint64_t{0});
  EXPECT_THAT(names("data"), ElementsAre("a", "b", "checked.json"))
      << "no lock and no temporary file is left";
}

TEST_F(CheckedFilesTest, AFileThatChangedIsNotFound) {
  write("a", "aaa");
  remember("a", 7);
  write("a", "aaa", 59);
  EXPECT_EQ(find("a"), std::nullopt) << "another time";
  remember("a", 8);
  const auto time = fs::last_write_time(dir / "data/a");
  write("a", "aaaa");
  fs::last_write_time(dir / "data/a", time);
  EXPECT_EQ(find("a"), std::nullopt) << "another size";
}

TEST_F(CheckedFilesTest, AFileThatChangedJustNowIsNotRemembered) {
  write("a", "aaa", 0);
  remember("a", 7);
  EXPECT_EQ(find("a"), std::nullopt);
  EXPECT_THAT(names("data"), ElementsAre("a"));
  write("a", "aaa", -60);  // a time in the future: it may still change at that time
  remember("a", 7);
  EXPECT_EQ(find("a"), std::nullopt);
}

// Programs that copy files keep their times.
TEST_F(CheckedFilesTest, ACopyIsAnotherFile) {
  write("a", "aaa");
  remember("a", 7);
  const auto time = fs::last_write_time(dir / "data/a");
  fs::copy_file(dir / "data/a", dir / "data/b");
  fs::rename(dir / "data/b", dir / "data/a");
  fs::last_write_time(dir / "data/a", time);
  EXPECT_EQ(find("a"), std::nullopt);
}

TEST_F(CheckedFilesTest, OnlyItsOwnNamesAreItsOwn) {
  for (const char* name :
       {"checked.json", ".checked.json.lock", "checked.json.tmp-12", "checked.json.tmp-01234567890abcde"})
    EXPECT_TRUE(is_checked_files_name(name)) << name;
  for (const char* name :
       {"checked.jsonl", "checked.json.bak", ".checked.json", "checked.json.tmp-", "checked.json.tmp-1x"})
    EXPECT_FALSE(is_checked_files_name(name)) << name;
}

TEST_F(CheckedFilesTest, AFolderKeepsItsMemoryWhereverItIsMounted) {
  write("a", "aaa");
  remember("a", 7);
  fs::rename(dir / "data", dir / "moved");
  const CheckedFiles files(posix_env(), dir / "moved", Place::Folder);
  EXPECT_EQ(files.find("a", file_stamp(dir / "moved/a")), 7u);
}

TEST_F(CheckedFilesTest, ADamagedMemoryIsIgnoredWithALine) {
  write("a", "aaa");
  remember("a", 7);
  const std::string path = dir / "data/checked.json";
  const std::string text = posix_env().read_text(path);
  for (size_t i = 0; i < text.size(); i += 3) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    write_file(path, changed);
    const CapturedLog log;
    EXPECT_EQ(find("a"), std::nullopt) << i;
    EXPECT_THAT(log.messages, ElementsAre(HasSubstr("checked.json"))) << i;
  }
  for (const std::string& other :
       {std::string(), text.substr(0, text.size() / 2), std::string("{}"), std::string(1000, '\0')}) {
    write_file(path, other);
    const CapturedLog log;
    EXPECT_EQ(find("a"), std::nullopt);
    EXPECT_THAT(log.messages, ElementsAre(HasSubstr("it is ignored, and the files are checked again")));
  }
  remember("a", 9);
  EXPECT_EQ(find("a"), 9u);
}

TEST_F(CheckedFilesTest, ForgetsFilesThatAreGone) {
  write("a", "aaa");
  write("b", "bbb");
  remember("a", 1);
  remember("b", 2);
  fs::remove(dir / "data/a");
  write("c", "ccc");
  remember("c", 3);
  EXPECT_THAT(posix_env().read_text(dir / "data/checked.json"), Not(HasSubstr("\"a\"")));
  EXPECT_EQ(find("b"), 2u);
}

TEST_F(CheckedFilesTest, ForgetsADamagedFileEverywhere) {
  write("a", "aaa");
  write("b", "bbb");
  ReadOnlyEnv env;
  env.folders = {dir / "data"};
  remember("a", 1, Place::Folder, env);
  remember("a", 1);
  remember("b", 2);
  CheckedFiles files(posix_env(), dir / "data", Place::Folder);
  files.forget("a");
  files.forget("unknown");
  files.save();
  EXPECT_EQ(find("a"), std::nullopt);
  EXPECT_EQ(find("b"), 2u);
}

TEST_F(CheckedFilesTest, TheCacheServesAFolderThatCannotBeWritten) {
  ReadOnlyEnv env;
  env.folders = {dir / "data"};
  write("a", "aaa");
  const CapturedLog log;
  remember("a", 7, Place::Folder, env);
  EXPECT_EQ(find("a", Place::Folder, env), 7u);
  EXPECT_THAT(names("data"), ElementsAre("a"));
  EXPECT_EQ(names("cache/checked").size(), 1u);
  EXPECT_THAT(log.messages, IsEmpty());
}

TEST_F(CheckedFilesTest, AnOldMemoryInTheFolderDoesNotHideANewerOneInTheCache) {
  write("a", "aaa");
  remember("a", 7);
  write("a", "bbb", 30);
  ReadOnlyEnv env;
  env.folders = {dir / "data"};
  remember("a", 8, Place::Folder, env);
  EXPECT_EQ(find("a"), 8u);
}

TEST_F(CheckedFilesTest, NowhereToWriteIsNoError) {
  ReadOnlyEnv env;
  env.folders = {dir / "data", dir / "cache"};
  write("a", "aaa");
  const CapturedLog log;
  remember("a", 7, Place::Folder, env);
  EXPECT_EQ(find("a", Place::Folder, env), std::nullopt);
  EXPECT_THAT(log.messages, ElementsAre(HasSubstr("the next start checks the files of")));
}

TEST_F(CheckedFilesTest, ThatNothingIsKeptIsSaidOnceAndNamesTheVariable) {
  write("a", "aaa");
  write_file(dir / "cache", "");  // no folder
  ReadOnlyEnv env;
  env.folders = {dir / "data"};
  const CapturedLog log;
  FileChecks checks(env);
  for (int i = 0; i < 2; ++i) {
    CheckedFiles& files = checks.memory(dir / "data", Place::Folder);
    files.begin_checks();
    files.remember("a", file_stamp(dir / "data/a"), 7);
    files.save();
  }
  EXPECT_THAT(log.messages, ElementsAre(AllOf(HasSubstr("the next start checks the files of"),
                                              HasSubstr("(OCTET_CACHE is " + (dir / "cache") + ")"))));
}

TEST_F(CheckedFilesTest, ADamagedMemoryIsComplainedAboutOnce) {
  write("a", "aaa");
  remember("a", 7);
  write_file(dir / "data/checked.json", "{}");
  const CapturedLog log;
  FileChecks checks(posix_env());
  for (int i = 0; i < 2; ++i) {
    CheckedFiles& files = checks.memory(dir / "data", Place::Folder);
    files.begin_checks();
    files.save();
  }
  EXPECT_THAT(log.messages, ElementsAre(HasSubstr("checked.json")));
}

TEST_F(CheckedFilesTest, AFolderOfOthersIsLeftAlone) {
  write("a.bin", "aaaa");
  remember("a.bin", 7, Place::Cache);
  EXPECT_EQ(find("a.bin", Place::Cache), 7u);
  EXPECT_THAT(names("data"), ElementsAre("a.bin"));
  EXPECT_EQ(names("cache/checked").size(), 1u);
}

TEST_F(CheckedFilesTest, TheSecondWaitsForTheFirstAndFindsItsWork) {
  write("a", "aaa");
  const FileStamp stamp = file_stamp(dir / "data/a");
  CheckedFiles first(posix_env(), dir / "data", Place::Folder);
  first.begin_checks();
  std::optional<uint64_t> before, after;
  std::thread other([&] {
    CheckedFiles second(posix_env(), dir / "data", Place::Folder);
    before = second.find("a", stamp);
    second.begin_checks();
    after = second.find("a", stamp);
    second.save();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  first.remember("a", stamp, 7);
  first.save();
  other.join();
  EXPECT_EQ(before, std::nullopt);
  EXPECT_EQ(after, 7u);
  EXPECT_THAT(names("data"), ElementsAre("a", "checked.json"));
}

TEST_F(CheckedFilesTest, ASecondSaveKeepsWhatTheFirstHasSaved) {
  write("a", "x");
  write("b", "y");
  CheckedFiles files(posix_env(), dir / "data", Place::Folder);
  for (const char* name : {"a", "b"}) {
    files.remember(name, file_stamp(dir / (std::string("data/") + name)), 5);
    files.save();
  }
  EXPECT_EQ(find("a"), 5u);
  EXPECT_EQ(find("b"), 5u);
}

TEST_F(CheckedFilesTest, ManyProcessesLoseNothing) {
  for (int i = 0; i < 8; ++i) write(std::to_string(i), "x");
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&, i] { remember(std::to_string(i), static_cast<uint64_t>(i)); });
  for (std::thread& thread : threads) thread.join();
  // In rare cases two check at once. What one of them has found is then missing, never wrong.
  int found = 0;
  for (int i = 0; i < 8; ++i) {
    const std::optional<uint64_t> value = find(std::to_string(i));
    EXPECT_EQ(value.value_or(static_cast<uint64_t>(i)), static_cast<uint64_t>(i));
    found += value.has_value();
  }
  EXPECT_GT(found, 0);
}

TEST(FileStampTest, AMissingFileIsNamed) {
  try {
    file_stamp("/nowhere/a.octet");
    FAIL();
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), HasSubstr("[/nowhere/a.octet]"));
  }
}

}  // namespace
}  // namespace octet
