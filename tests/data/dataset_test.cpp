#include "data/datasets/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/log.h"
#include "data/datasets/demo_stories.h"
#include "data/tokenizer/bytes_tokenizer.h"
#include "support/error_of.h"
#include "temporary_folder.h"

namespace octet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

FileChecks& checks() {
  static FileChecks all(posix_env());
  return all;
}

std::vector<int32_t> all(const TokenSource& source) {
  std::vector<int32_t> ids(static_cast<size_t>(source.size()));
  source.read(0, ids);
  return ids;
}

TEST(OpenTokens, TakesFilesFoldersAndGlobsSortedByName) {
  const TemporaryFolder folder;
  folder.write_ids<uint16_t>("b_1.bin", {3});
  folder.write_ids<uint16_t>("a_2.bin", {2});
  folder.write_ids<uint16_t>("a_1.bin", {1}, llmc_header(20240520, 1, 1));
  folder.write("notes.md", "not data");
  EXPECT_THAT(all(open_tokens(folder.path(), 10, nullptr, checks())), ElementsAre(1, 2, 3));
  EXPECT_THAT(all(open_tokens(folder.path() + "/", 10, nullptr, checks())), ElementsAre(1, 2, 3));
  EXPECT_THAT(all(open_tokens(folder.file("a_*.bin"), 10, nullptr, checks())), ElementsAre(1, 2));
  EXPECT_THAT(all(open_tokens(folder.file("b_1.bin"), 10, nullptr, checks())), ElementsAre(3));
  // A file whose own name looks like a glob is that file.
  folder.write_ids<uint16_t>("a_[1].bin", {7});
  EXPECT_THAT(all(open_tokens(folder.file("a_[1].bin"), 10, nullptr, checks())), ElementsAre(7));
}

TEST(OpenTokens, RefusesWhatIsNotData) {
  const TemporaryFolder folder;
  const BytesTokenizer tokenizer;
  const auto open = [&](const std::string& path) {
    return error_of([&] { open_tokens(path, 257, &tokenizer, checks()); });
  };
  EXPECT_THAT(open(""), HasSubstr("empty path"));
  EXPECT_THAT(open(folder.path()), AllOf(HasSubstr(folder.path()), HasSubstr("no *.bin or *.txt")));
  EXPECT_THAT(open(folder.file("none.bin")), AllOf(HasSubstr("none.bin"), HasSubstr("no such file")));
  EXPECT_THAT(open(folder.file("none*.bin")), HasSubstr("no file matches"));
  EXPECT_THAT(open(folder.write("table.csv", "1,2")),
              AllOf(HasSubstr("table.csv"), HasSubstr("expected *.bin")));
  EXPECT_THAT(open(folder.write("blank.txt", "")), AllOf(HasSubstr("blank.txt"), HasSubstr("no tokens")));
  const auto hollow = folder.write("hollow.bin", llmc_header(20240520, 1, 0));
  EXPECT_THAT(open(hollow), AllOf(HasSubstr("hollow.bin"), HasSubstr("no tokens")));
  EXPECT_THAT(open(folder.path()),
              AllOf(HasSubstr("hollow.bin"), HasSubstr("blank.txt"), HasSubstr("one kind")));
  EXPECT_THAT(open(folder.file("*o*.*")), HasSubstr("no tokens"));
  EXPECT_THAT(open(folder.file("[bh]*.*")), HasSubstr("one kind"));
  EXPECT_THAT(error_of([&] { open_tokens(folder.file("blank.txt"), 257, nullptr, checks()); }),
              HasSubstr("needs a tokenizer"));
}

TEST(OpenDataset, HoldsOutTheTailOfEachFile) {
  const TemporaryFolder folder;
  folder.write_ids<uint16_t>("a.bin", {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  folder.write_ids<uint16_t>("b.bin", {10, 11, 12, 13});
  const Dataset dataset = open_dataset({.dataset = folder.path(), .eval_split = 0.25}, 20, nullptr, checks());
  EXPECT_THAT(all(dataset.train), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12));
  EXPECT_THAT(all(dataset.eval), ElementsAre(8, 9, 13));
  EXPECT_TRUE(open_dataset({.dataset = folder.path(), .eval_split = 0}, 20, nullptr, checks()).eval.empty());
  EXPECT_THAT(
      error_of([&] { open_dataset({.dataset = folder.path(), .eval_split = 1}, 20, nullptr, checks()); }),
      HasSubstr("eval_split 1"));
}

TEST(OpenDataset, NamedEvalDataLeavesTheTrainingDataWhole) {
  const TemporaryFolder folder;
  const auto train = folder.write_ids<uint16_t>("a.bin", {0, 1, 2, 3});
  const auto eval = folder.write_ids<uint16_t>("b.bin", {4, 5});
  const Dataset dataset =
      open_dataset({.dataset = train, .eval_dataset = eval, .eval_split = 0.5}, 20, nullptr, checks());
  EXPECT_THAT(all(dataset.train), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(all(dataset.eval), ElementsAre(4, 5));
}

TEST(OpenDataset, FilesNamedAsValidationAreNotTrainedOn) {
  const TemporaryFolder folder;
  folder.write_ids<uint16_t>("web_train_000001.bin", {1});
  folder.write_ids<uint16_t>("web_val_000000.bin", {2});
  folder.write_ids<uint16_t>("valley.bin", {3});
  std::string said;
  set_log_sink([&](LogLevel, std::string_view line) { said += line; });
  const Dataset dataset = open_dataset({.dataset = folder.path()}, 20, nullptr, checks());
  const Dataset other = open_dataset({.dataset = folder.path(), .eval_dataset = folder.file("valley.bin")},
                                     20, nullptr, checks());
  set_log_sink(nullptr);
  EXPECT_THAT(all(dataset.train), ElementsAre(3, 1));
  EXPECT_THAT(all(dataset.eval), ElementsAre(2));
  EXPECT_THAT(said, HasSubstr("web_val_000000.bin"));
  EXPECT_THAT(all(other.train), ElementsAre(3, 1));
  EXPECT_THAT(all(other.eval), ElementsAre(3));
}

TEST(OpenDataset, DemoIsItsStoriesWithEosBetween) {
  const BytesTokenizer tokenizer;
  const Dataset dataset = open_dataset({.seed = 4, .demo_stories = 50}, 257, &tokenizer, checks());
  const auto expected = [](int64_t count, DemoSplit split) {
    std::vector<int32_t> ids;
    for (char c : demo_text(4, count, split)) ids.push_back(c == '\n' ? BytesTokenizer::kEndOfText : c);
    return ids;
  };
  EXPECT_EQ(all(dataset.train), expected(50, DemoSplit::Train));
  EXPECT_EQ(all(dataset.eval), expected(5, DemoSplit::HeldOut));
}

}  // namespace
}  // namespace octet
