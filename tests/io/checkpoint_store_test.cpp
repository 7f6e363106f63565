#include "io/checkpoint_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>

#include "base/log.h"
#include "checkpoint_support.h"
#include "temp_dir.h"

namespace octet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;

class CheckpointStoreTest : public ::testing::Test {
 protected:
  std::string error_of(const std::string& path) {
    try {
      open_checkpoint(env, path);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  std::vector<int64_t> steps() {
    std::vector<int64_t> found;
    for (const auto& listing : store.list(true)) {
      if (listing.is_whole()) found.push_back(listing.checkpoint.step);
    }
    return found;
  }

  TempDir temp;
  std::string dir = temp / "checkpoints";
  FaultEnv env{temp.path()};  // no faults: for its speed, as it does not really sync
  CheckpointStore store{env, dir};
  LogCapture log;
};

TEST_F(CheckpointStoreTest, SavesAndOpens) {
  EXPECT_EQ(store.open_latest(), std::nullopt);
  EXPECT_THAT(store.list(), IsEmpty());
  save_step(store, 10);
  save_step(store, 20);
  EXPECT_THAT(env.list(dir), ElementsAre("latest", "step_10", "step_20"));
  EXPECT_THAT(env.list(dir + "/step_20"), ElementsAre("manifest.json", "model.safetensors", "state.bin"));
  const auto latest = store.open_latest();
  ASSERT_TRUE(latest);
  EXPECT_EQ(latest->step, 20);
  EXPECT_EQ(latest->summary.precision, "fp8");
  EXPECT_EQ(latest->summary.loss, 0.1 + 20);
  EXPECT_EQ(read_file(latest->file_path("model.safetensors")), model_bytes(20));
  EXPECT_THROW(latest->file_path("other"), Error);
  EXPECT_EQ(open_checkpoint(env, dir + "/step_10").step, 10);
  EXPECT_EQ(store.open_best(), std::nullopt);
  store.mark_best(10);
  EXPECT_EQ(store.open_best()->step, 10);
  EXPECT_THROW(store.mark_best(11), Error);

  const auto listings = store.list(true);
  ASSERT_EQ(listings.size(), 2u);
  EXPECT_EQ(listings[0].checkpoint.step, 10);
  EXPECT_TRUE(listings[0].is_best && !listings[0].is_latest && listings[1].is_latest);
  EXPECT_LT(listings[0].age_seconds, 100);
  EXPECT_EQ(listings[0].checkpoint.total_bytes(), static_cast<int64_t>(model_bytes(10).size() + 5));
  EXPECT_THAT(log.lines, IsEmpty());
}

TEST_F(CheckpointStoreTest, LossThatIsNoNumberIsNone) {
  store.save(1, [](CheckpointWriter&) {}, {"bf16", std::nan("")});
  EXPECT_TRUE(std::isnan(store.open_latest()->summary.loss));
}

TEST_F(CheckpointStoreTest, ManifestIsTheDocumentedJson) {
  store.save(7, [](CheckpointWriter& writer) { writer.file("a", [](Sink& s) { s.append("123456789"); }); },
             {"fp8", 2.5});
  const std::string text = read_file(dir + "/step_7/manifest.json");
  EXPECT_THAT(text, HasSubstr("\"format\": \"octet checkpoint\",\n  \"version\": 1,\n  \"step\": 7,\n"));
  EXPECT_THAT(text, HasSubstr("\"precision\": \"fp8\",\n  \"loss\": 2.5,\n"));
  EXPECT_THAT(text, HasSubstr("\"crc32c\": \"e3069283\""));  // the check value of CRC-32C
  EXPECT_EQ(read_file(dir + "/latest").substr(0, 7), "step_7 ");
}

TEST_F(CheckpointStoreTest, AFailingWriterLeavesNothingBehind) {
  save_step(store, 1);
  EXPECT_THROW(store.save(2,
                          [](CheckpointWriter& writer) {
                            writer.file("a", [](Sink& sink) { sink.append("half"); });
                            throw Error("[model] is full of NaN");
                          },
                          {}),
               Error);
  EXPECT_THAT(env.list(dir), ElementsAre("latest", "step_1"));
  EXPECT_EQ(store.open_latest()->step, 1);
}

TEST_F(CheckpointStoreTest, RefusesNamesThatLeaveTheFolder) {
  for (const char* name : {"", ".", "..", "a/b", "../a", ".hidden", "manifest.json"}) {
    EXPECT_THROW(store.save(1, [&](CheckpointWriter& w) { w.file(name, [](Sink&) {}); }, {}), Error) << name;
  }
  const auto twice = [](CheckpointWriter& writer) {
    writer.file("a", [](Sink&) {});
    writer.file("a", [](Sink&) {});
  };
  EXPECT_THROW(store.save(1, twice, {}), Error);
  EXPECT_THROW(store.save(-1, [](CheckpointWriter&) {}, {}), Error);
}

// A run that goes on from an older step saves smaller steps later: the latest is the one saved last.
TEST_F(CheckpointStoreTest, LatestIsTheOneSavedLast) {
  save_step(store, 100);
  save_step(store, 500);
  save_step(store, 150);
  EXPECT_EQ(store.open_latest()->step, 150);
  EXPECT_THAT(store.prune(2), ElementsAre(100));
  EXPECT_THAT(steps(), ElementsAre(150, 500));
}

// FAULTS 3.
TEST_F(CheckpointStoreTest, ReplacesAPartialStepWithAWarning) {
  save_step(store, 1);
  posix_env().make_directories(dir + "/step_2");
  write_file(dir + "/step_2/model.safetensors", "partial");
  posix_env().make_directories(dir + "/.tmp-step_2-99999/");
  write_file(dir + "/.tmp-step_2-99999/model.safetensors", "partial");
  EXPECT_EQ(store.open_latest()->step, 1);
  EXPECT_THAT(log.text(), HasSubstr("step_2] is not complete and is skipped: manifest.json is missing"));
  log.lines.clear();
  save_step(store, 2);
  EXPECT_THAT(log.text(), HasSubstr("step_2] already exists (manifest.json is missing) and is replaced"));
  EXPECT_THAT(log.text(), HasSubstr(".tmp-step_2-99999] is left over"));
  EXPECT_THAT(env.list(dir), ElementsAre("latest", "step_1", "step_2"));
  expect_content(*store.open_latest(), 2);
}

// FAULTS 6.
TEST_F(CheckpointStoreTest, AFlippedBitInAnyFileIsRefusedAndNamed) {
  save_step(store, 1);
  save_step(store, 2);
  for (const char* name : {"model.safetensors", "state.bin", "manifest.json"}) {
    const std::string path = dir + "/step_2/" + name, good = read_file(path);
    for (size_t bit = 0; bit<good.size() * 8; bit += good.size()> 100 ? 37 : 1) {
      std::string bad = good;
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
      write_file(path, bad);
      EXPECT_THAT(error_of(dir + "/step_2"), HasSubstr(name)) << bit;
      ASSERT_EQ(store.open_latest()->step, 1) << name << " bit " << bit;
    }
    EXPECT_THAT(log.text(), HasSubstr(name));
    log.lines.clear();
    const auto listings = store.list(true);
    EXPECT_TRUE(listings[0].is_whole());
    EXPECT_THAT(listings[1].broken, HasSubstr(name));
    write_file(path, good);
  }
  const std::string good = read_file(dir + "/latest");
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    write_file(dir + "/latest", bad);
    log.lines.clear();
    expect_content(*store.open_latest(), 2);
    EXPECT_THAT(log.text(), HasSubstr("latest] does not match its checksum"));
  }
  EXPECT_THAT(store.prune(2), IsEmpty());
}

// FAULTS 7.
TEST_F(CheckpointStoreTest, TruncatedEmptyAndMissingFilesAreRefusedAndNamed) {
  save_step(store, 1);
  save_step(store, 2);
  for (const char* name : {"model.safetensors", "state.bin", "manifest.json"}) {
    const std::string path = dir + "/step_2/" + name, good = read_file(path);
    for (const size_t size : {size_t{0}, size_t{1}, good.size() / 2, good.size() - 1}) {
      write_file(path, good.substr(0, size));
      EXPECT_THAT(error_of(dir + "/step_2"), HasSubstr(name)) << size;
      EXPECT_EQ(store.open_latest()->step, 1);
      EXPECT_FALSE(store.list(false)[1].is_whole());
    }
    write_file(path, good + "x");
    EXPECT_THAT(error_of(dir + "/step_2"), HasSubstr(name));
    posix_env().remove_file(path);
    EXPECT_THAT(error_of(dir + "/step_2"), HasSubstr(std::string(name) + " is missing"));
    EXPECT_EQ(store.open_latest()->step, 1);
    write_file(path, good);
  }
  EXPECT_EQ(error_of(dir + "/step_2"), "");
  EXPECT_THAT(error_of(dir + "/step_9"), HasSubstr("there is no such folder"));
  EXPECT_THAT(error_of(dir + "/latest"), HasSubstr("it is a file"));

  posix_env().remove_tree(dir + "/step_2");
  log.lines.clear();
  EXPECT_EQ(store.open_latest()->step, 1);
  EXPECT_THAT(log.text(), HasSubstr("step_2] is the latest checkpoint but no longer exists"));
  write_file(dir + "/step_1/manifest.json", "{}");
  EXPECT_THROW(store.open_latest(), Error);
}

TEST_F(CheckpointStoreTest, PruneKeepsBestAndLatestAndTwo) {
  for (const int64_t step : {1, 2, 3, 4, 5}) save_step(store, step, step == 2);
  EXPECT_THROW(store.prune(1), ConfigError);
  EXPECT_THROW(store.prune(-1), ConfigError);
  EXPECT_THAT(store.prune(0), IsEmpty());
  EXPECT_THAT(store.prune(9), IsEmpty());
  EXPECT_THAT(store.prune(4), ElementsAre(1));
  EXPECT_THAT(store.prune(3), ElementsAre(3));
  EXPECT_THAT(store.prune(2), ElementsAre(4));
  EXPECT_THAT(steps(), ElementsAre(2, 5));
  EXPECT_THAT(env.list(dir), ElementsAre("best", "latest", "step_2", "step_5"));

  // Broken ones are not counted among the two, and not removed.
  save_step(store, 6);
  save_step(store, 7);
  write_file(dir + "/step_6/state.bin", "");
  EXPECT_THAT(store.prune(2), ElementsAre(5));
  EXPECT_THAT(env.list(dir), ElementsAre("best", "latest", "step_2", "step_6", "step_7"));
  write_file(dir + "/best", "step_3 00000000\n");
  save_step(store, 8);
  EXPECT_THAT(store.prune(2), IsEmpty()) << "the best is unknown";
}

TEST_F(CheckpointStoreTest, RunLockKeepsASecondProcessOut) {
  const std::string run = temp / "run";
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const RunLock lock(posix_env(), run);
    if (write(ready[1], "x", 1) != 1) _exit(1);
    while (true) pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  try {
    RunLock second(posix_env(), run);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(fmt::format("is in use by process {} on ", child)));
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  const RunLock lock(posix_env(), run);
  EXPECT_THROW(RunLock(posix_env(), run), Error);
  close(ready[0]);
  close(ready[1]);
}

}  // namespace
}  // namespace octet
