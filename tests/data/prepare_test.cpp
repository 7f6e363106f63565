#include "data/datasets/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "base/crc32c.h"
#include "base/philox.h"
#include "data/tokenizer/bytes_tokenizer.h"
#include "support/fault_env.h"
#include "io/sealed_json.h"
#include "support/error_of.h"
#include "temporary_folder.h"

namespace octet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

// Texts of 1 to 60 bytes, drawn from their number; the second piece is the target. Throws at `fails_at`.
class TestReader final : public DatasetReader {
 public:
  explicit TestReader(int64_t count, int64_t fails_at = -1) : count_(count), fails_at_(fails_at) {}
  bool next(Example& example) override {
    if (examples_ == fails_at_) fail("[bad.jsonl] line {}: broken", examples_ + 1);
    if (examples_ == count_) return false;
    const Philox random(9);
    const auto draw = static_cast<uint64_t>(examples_++);
    const std::string text(1 + random.below(draw, 60), static_cast<char>('a' + draw % 26));
    example.pieces = {{text, false, false}, {text, false, true}, {"<|endoftext|>", true, true}};
    return true;
  }
  double progress() const override { return static_cast<double>(examples_) / static_cast<double>(count_); }
  const std::vector<std::string>& files() const override { return files_; }
  const SkipCounts& skipped() const override { return skipped_; }
  int64_t examples() const override { return examples_; }
  ExampleFormat format() const override { return ExampleFormat::PromptCompletion; }
  ChatTemplate chat_template() const override { return ChatTemplate::Plain; }

 private:
  int64_t count_, fails_at_, examples_ = 0;
  std::vector<std::string> files_ = {"test"};
  SkipCounts skipped_{{0, 0, 2, 0, 0, 0}, ""};
};

constexpr int64_t kExamples = 4000;

PrepareOptions options(const std::string& output) {
  return {.output = output,
          .tokenizer_name = "bytes",
          .shard_tokens = 20000,
          .eval_split = 0.1,
          .seed = 5,
          .threads = 2,
          .identity = {{"dataset", "test"}}};
}

PrepareResult prepare(const PrepareOptions& given, const PrepareHooks& hooks = {}, Env& env = posix_env(),
                      int64_t count = kExamples) {
  return prepare_dataset(
      env, given, BytesTokenizer(), [&] { return std::make_unique<TestReader>(count); }, hooks);
}

// Stops before the first shard is complete.
void begin(const std::string& output) {
  PrepareOptions large = options(output);
  large.shard_tokens = 1 << 20;
  ASSERT_FALSE(prepare(large, {.stop = [] { return true; }}).whole);
  ASSERT_TRUE(fs::exists(output + "/progress.json"));
  ASSERT_FALSE(fs::exists(output + "/train_00000.octet"));
}

// The files of a dataset with sizes and checksums.
std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename() == ".lock") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    files[entry.path().filename().string()] = fmt::format("{} {:08x}", text.str().size(), crc32c(text.str()));
  }
  return files;
}

TEST(Prepare, WritesEveryDocumentInOrderWithItsTargets) {
  const TemporaryFolder folder;
  const PrepareResult result = prepare(options(folder.file("d")));
  ASSERT_TRUE(result.whole);
  EXPECT_FALSE(result.was_there);
  const DatasetManifest manifest = read_dataset_manifest(posix_env(), folder.file("d/manifest.json"));
  EXPECT_EQ(manifest, result.manifest);
  EXPECT_EQ(manifest.examples, kExamples);
  EXPECT_EQ(manifest.train.counts.documents + manifest.validation.counts.documents, kExamples);
  EXPECT_NEAR(static_cast<double>(manifest.validation.counts.tokens) /
                  static_cast<double>(manifest.train.counts.tokens + manifest.validation.counts.tokens),
              0.1, 0.001);
  EXPECT_GT(manifest.train.shards.size(), 5u);
  EXPECT_EQ(manifest.skipped, (std::map<std::string, int64_t>{{name_of(SkipReason::InvalidUtf8), 2}}));

  TestReader reader(kExamples);
  std::map<bool, std::vector<Shard>> shards;
  FileChecks checks(posix_env());
  shards[false] = open_split(posix_env(), folder.file("d"), manifest, manifest.train, checks);
  shards[true] = open_split(posix_env(), folder.file("d"), manifest, manifest.validation, checks);
  std::map<bool, size_t> shard = {{false, 0}, {true, 0}};
  std::map<bool, int64_t> document = {{false, 0}, {true, 0}};
  LengthStatistics lengths;
  Example example;
  for (int64_t i = 0; reader.next(example); ++i) {
    const Document expected = encode_example(example, BytesTokenizer());
    // The document is the next one of either split.
    const auto is_next = [&](bool validation) {
      size_t& at = shard[validation];
      if (at < shards[validation].size() &&
          document[validation] == shards[validation][at].counts().documents) {
        const auto tokens = static_cast<double>(shards[validation][at].counts().tokens);
        EXPECT_NEAR(tokens, validation ? 2000 : 18000, validation ? 2000 : 4000);  // 10 % are held out
        ++at;
        document[validation] = 0;
      }
      if (at == shards[validation].size()) return false;
      const Shard& from = shards[validation][at];
      std::vector<int32_t> tokens(static_cast<size_t>(from.document_length(document[validation])));
      from.read(from.document_start(document[validation]), tokens);
      return tokens == expected.tokens;
    };
    const bool validation = !is_next(false);
    ASSERT_TRUE(!validation || is_next(true)) << i;
    const Shard& from = shards[validation][shard[validation]];
    std::vector<int32_t> tokens(static_cast<size_t>(from.document_length(document[validation])));
    std::vector<uint8_t> is_target(tokens.size());
    from.read(from.document_start(document[validation]), tokens);
    from.read_targets(from.document_start(document[validation]), is_target);
    ASSERT_EQ(tokens, expected.tokens);
    ASSERT_EQ(is_target, expected.is_target);
    ++document[validation];
    lengths.add(static_cast<int64_t>(tokens.size()));
  }
  LengthStatistics sum = manifest.train.lengths;
  EXPECT_EQ(sum += manifest.validation.lengths, lengths);
}

TEST(Prepare, TheNumberOfThreadsChangesNothing) {
  const TemporaryFolder folder;
  std::map<std::string, std::string> expected;
  for (const int threads : {1, 2, 7}) {
    PrepareOptions given = options(folder.file(std::to_string(threads)));
    given.threads = threads;
    ASSERT_TRUE(prepare(given).whole);
    if (threads == 1) expected = files_of(given.output);
    EXPECT_EQ(files_of(given.output), expected);
  }
  EXPECT_TRUE(expected.contains("train_00000.octet"));
  EXPECT_TRUE(expected.contains("validation_00000.octet"));
  EXPECT_FALSE(expected.contains("progress.json"));
}

TEST(Prepare, StoppedAndStartedAgainItWritesTheSameBytes) {
  const TemporaryFolder folder;
  ASSERT_TRUE(prepare(options(folder.file("whole"))).whole);
  int calls = 0;
  PrepareResult result;
  // Each call gets one batch further than the last whole shard allows, at the least.
  for (int allowed = 1; !result.whole && calls < 100; ++allowed, ++calls) {
    int left = allowed;
    result = prepare(options(folder.file("stopped")), {.stop = [&] { return --left <= 0; }});
    for (const auto& [name, bytes] : files_of(folder.file("stopped"))) {
      EXPECT_FALSE(name.starts_with(".tmp-")) << name;
    }
  }
  EXPECT_GT(calls, 2);
  EXPECT_EQ(files_of(folder.file("stopped")), files_of(folder.file("whole")));
  EXPECT_GT(result.examples_skipped, 0);
}

TEST(Prepare, KilledAtAnyCallItGoesOnToTheSameBytes) {
  const TemporaryFolder folder;
  PrepareOptions given = options(folder.file("whole"));
  given.shard_tokens = 4000;
  ASSERT_TRUE(prepare(given, {}, posix_env(), 250).whole);
  const auto expected = files_of(given.output);
  ASSERT_GT(expected.size(), 4u);
  for (const IoFault fault : {IoFault::Kill, IoFault::KillInside, IoFault::Enospc}) {
    for (int64_t call = 1;; ++call) {
      given.output = folder.file("killed");
      fs::remove_all(given.output);
      FaultEnv env(folder.path());  // whose fsync costs no time
      env.arm(call, fault);
      bool struck = false;
      try {
        prepare(given, {}, env, 250);
      } catch (const SimulatedKill&) {
        struck = true;
      } catch (const IoError&) {
        struck = true;
      }
      if (!struck && !env.struck()) break;
      env.disarm();
      if (fault != IoFault::Enospc) env.drop_unsynced();
      ASSERT_TRUE(prepare(given, {}, env, 250).whole) << "call " << call;
      ASSERT_EQ(files_of(given.output), expected) << "call " << call;
      ASSERT_LT(call, 2000);
    }
  }
}

TEST(Prepare, CalledAgainItFindsItsWorkDone) {
  const TemporaryFolder folder;
  prepare(options(folder.file("d")));
  const PrepareResult again = prepare_dataset(posix_env(), options(folder.file("d")), BytesTokenizer(),
                                              []() -> std::unique_ptr<DatasetReader> {
                                                ADD_FAILURE() << "the input need not be opened";
                                                return nullptr;
                                              });
  EXPECT_TRUE(again.whole);
  EXPECT_TRUE(again.was_there);
  EXPECT_EQ(again.manifest.examples, kExamples);
}

TEST(Prepare, OtherOptionsAndForeignFilesAreRefused) {
  const TemporaryFolder folder;
  const std::string output = folder.file("d");
  prepare(options(output));
  PrepareOptions other = options(output);
  other.eval_split = 0.2;
  EXPECT_THAT(error_of([&] { prepare(other); }),
              HasSubstr("prepared with eval_split 0.1, this call asks for 0.2"));
  other = options(output);
  other.identity["dataset"] = "else";
  EXPECT_THAT(error_of([&] { prepare(other); }), HasSubstr("dataset \"test\", this call asks for \"else\""));
  // The same for one that is not finished.
  int left = 3;
  PrepareOptions half = options(folder.file("half"));
  ASSERT_FALSE(prepare(half, {.stop = [&] { return --left <= 0; }}).whole);
  ASSERT_TRUE(fs::exists(folder.file("half/progress.json")));
  ASSERT_TRUE(fs::exists(folder.file("half/train_00000.octet")));
  half.shard_tokens = 21000;
  EXPECT_THAT(error_of([&] { prepare(half); }), HasSubstr("shard_tokens 20000, this call asks for 21000"));

  fs::create_directory(folder.file("mine"));
  folder.write("mine/letter.txt", "dear");
  EXPECT_THAT(error_of([&] { prepare(options(folder.file("mine"))); }), HasSubstr("holds 'letter.txt'"));
  folder.write("file", "x");
  EXPECT_THAT(error_of([&] { prepare(options(folder.file("file"))); }), HasSubstr("is a file"));
}

TEST(Prepare, ARefusedFolderStaysAsItIs) {
  const TemporaryFolder folder;
  begin(folder.file("mine"));
  for (const char* name : {"train_00000.octet", ".tmp-train_00001.octet", "zebra.txt"}) {
    folder.write(fmt::format("mine/{}", name), "x");
  }
  EXPECT_THAT(error_of([&] { prepare(options(folder.file("mine"))); }), HasSubstr("holds 'zebra.txt'"));
  EXPECT_TRUE(fs::exists(folder.file("mine/train_00000.octet")));
  fs::remove(folder.file("mine/zebra.txt"));
  for (const char* name : {"other.octet", "train_x.octet", ".tmp-letter", "validation_00000.octet.octet"}) {
    folder.write(fmt::format("mine/{}", name), "x");
    EXPECT_THAT(error_of([&] { prepare(options(folder.file("mine"))); }), HasSubstr(name));
    EXPECT_TRUE(fs::exists(folder.file(fmt::format("mine/{}", name)))) << name;
    fs::remove(folder.file(fmt::format("mine/{}", name)));
  }
  EXPECT_TRUE(prepare(options(folder.file("mine"))).whole);  // a crash's own leftovers are no hindrance
}

// Only a folder in which a preparation has begun has leftovers of a crash.
TEST(Prepare, ShardsWhoseManifestIsGoneAreKept) {
  const TemporaryFolder folder;
  const std::string output = folder.file("d");
  prepare(options(output));
  fs::remove(folder.file("d/manifest.json"));
  const auto left = files_of(output);
  PrepareOptions other = options(output);
  other.seed = 9;
  for (const PrepareOptions& asked : {options(output), other}) {
    EXPECT_THAT(
        error_of([&] { prepare(asked); }),
        AllOf(HasSubstr("holds shards ('train_00000.octet'), but no manifest.json and no progress.json"),
              HasSubstr("choose another folder or remove this one")));
    EXPECT_EQ(files_of(output), left);
  }
  other.in_cache = true;  // there the name of the folder says it
  EXPECT_EQ(prepare(other).manifest.options["seed"], 9);
}

TEST(Prepare, OptionsMayChangeBeforeTheFirstShard) {
  const TemporaryFolder folder;
  begin(folder.file("d"));
  PrepareOptions other = options(folder.file("d"));
  other.seed = 9;
  const PrepareResult result = prepare(other);
  EXPECT_TRUE(result.whole);
  EXPECT_EQ(result.manifest.options["seed"], 9);
  EXPECT_FALSE(fs::exists(folder.file("d/progress.json")));
}

TEST(Prepare, FewDocumentsAreSplitToo) {
  const TemporaryFolder folder;
  const auto counts = [&](int64_t documents, double eval_split) {
    PrepareOptions given = options(folder.file(fmt::format("{}-{}", documents, eval_split)));
    given.eval_split = eval_split;
    const DatasetManifest manifest = prepare(given, {}, posix_env(), documents).manifest;
    return std::pair(manifest.train.counts, manifest.validation.counts);
  };
  const auto [whole, none] = counts(1, 0);
  EXPECT_EQ(whole.documents, 1);
  EXPECT_EQ(none.documents, 0);
  const auto [front, tail] = counts(1, 0.1);  // the end of the only one
  EXPECT_EQ(front.documents, 1);
  EXPECT_EQ(tail.documents, 1);
  EXPECT_EQ(front.tokens + tail.tokens, whole.tokens);
  EXPECT_NEAR(static_cast<double>(tail.tokens), 0.1 * static_cast<double>(whole.tokens), 1.5);
  const auto [two, last] = counts(3, 1e-9);  // the last of several
  EXPECT_EQ(two.documents, 2);
  EXPECT_EQ(last.documents, 1);
  const auto [most, drawn] = counts(3, 0.999999);  // never all of them
  EXPECT_EQ(most.documents, 1);
  EXPECT_EQ(drawn.documents, 2);
}

TEST(Prepare, AStopWhileItWaitsForTheLockIsHeard) {
  const TemporaryFolder folder;
  fs::create_directory(folder.file("d"));
  const FileLock lock = posix_env().lock(folder.file("d/.lock"), "1\n");
  PrepareOptions given = options(folder.file("d"));
  given.in_cache = true;
  int asked = 0;
  EXPECT_FALSE(prepare(given, {.stop = [&] { return ++asked == 2; }}).whole);
  EXPECT_EQ(asked, 2);
}

TEST(Prepare, OneProcessAtATime) {
  const TemporaryFolder folder;
  fs::create_directory(folder.file("d"));
  const FileLock lock = posix_env().lock(folder.file("d/.lock"), "1\n");
  EXPECT_THAT(error_of([&] { prepare(options(folder.file("d"))); }),
              HasSubstr("another process is preparing"));
}

TEST(Prepare, ABadRecordStopsItWithTheShardsBeforeIt) {
  const TemporaryFolder folder;
  const PrepareOptions given = options(folder.file("d"));
  const auto failing = [&](int64_t at) {
    return error_of([&] {
      prepare_dataset(posix_env(), given, BytesTokenizer(),
                      [&] { return std::make_unique<TestReader>(kExamples, at); });
    });
  };
  EXPECT_EQ(failing(3000), "[bad.jsonl] line 3001: broken");
  EXPECT_TRUE(fs::exists(folder.file("d/train_00000.octet")));
  EXPECT_FALSE(fs::exists(folder.file("d/manifest.json")));
  // Mended, it goes on.
  const PrepareResult result = prepare(given);
  EXPECT_TRUE(result.whole);
  EXPECT_GT(result.examples_skipped, 0);
}

TEST(Prepare, AnEmptyDatasetIsAnError) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { prepare(options(folder.file("d")), {}, posix_env(), 0); }),
              HasSubstr("no document with a token to predict in 0 examples"));
}

TEST(Prepare, AtMostSoManyExamples) {
  const TemporaryFolder folder;
  PrepareOptions given = options(folder.file("d"));
  given.max_examples = 123;
  EXPECT_EQ(prepare(given).manifest.examples, 123);
}

TEST(DatasetManifest, DamageIsNoticed) {
  const TemporaryFolder folder;
  const PrepareResult result = prepare(options(folder.file("d")), {}, posix_env(), 500);
  const std::string text = dataset_manifest_text(result.manifest);
  EXPECT_EQ(parse_dataset_manifest(text, "m"), result.manifest);
  for (size_t i = 0; i < text.size(); i += 7) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_NE(error_of([&] { parse_dataset_manifest(changed, "m"); }), "nothing was thrown") << i;
  }
  const ShardEntry& first = result.manifest.train.shards.front();
  const std::string path = folder.file("d/" + first.name);
  const auto error = [&] {
    return error_of([&] {
      FileChecks checks(posix_env());
      open_split(posix_env(), folder.file("d"), result.manifest, result.manifest.train, checks);
    });
  };
  EXPECT_EQ(error(), "nothing was thrown");
  fs::resize_file(path, static_cast<uintmax_t>(first.size) - 8);
  EXPECT_THAT(error(), HasSubstr(fmt::format("[{}] has {} bytes, manifest.json says {}", path, first.size - 8,
                                             first.size)));
  fs::remove(path);
  EXPECT_THAT(error(), HasSubstr("is missing, and manifest.json lists it; remove the folder and prepare"));
}

// A call with the same options must not call a folder whole that lacks a shard.
TEST(Prepare, AWholeDatasetThatLacksAShardIsNamed) {
  const TemporaryFolder folder;
  const PrepareResult first = prepare(options(folder.file("d")), {}, posix_env(), 500);
  const auto error = [&] {
    return error_of([&] { prepare(options(folder.file("d")), {}, posix_env(), 500); });
  };
  EXPECT_EQ(error(), "nothing was thrown");
  const std::string path = folder.file("d/" + first.manifest.train.shards.front().name);
  fs::resize_file(path, fs::file_size(path) - 8);
  EXPECT_THAT(error(), testing::AllOf(HasSubstr(path), HasSubstr("manifest.json says"),
                                      HasSubstr("; remove the folder")));
  fs::remove(path);
  EXPECT_THAT(error(), HasSubstr(path + "] is missing, and manifest.json lists it"));
}

TEST(DatasetManifest, CountsThatAreNoCountsAreRefused) {
  const auto error_with = [](const char* key, const nlohmann::ordered_json& value) {
    nlohmann::ordered_json manifest = nlohmann::ordered_json::parse(dataset_manifest_text({}));
    manifest.erase("manifest_crc32c");
    manifest[nlohmann::ordered_json::json_pointer(key)] = value;
    return error_of([&] { parse_dataset_manifest(seal_json(manifest), "m"); });
  };
  EXPECT_EQ(error_with("/examples", 5), "nothing was thrown");
  EXPECT_EQ(error_with("/examples", 1e300), "[m] \"examples\" is 1e+300, expected an integer");
  EXPECT_THAT(error_with("/train/dropped", INT64_MAX), HasSubstr("\"dropped\" is 9223372036854775807"));
  EXPECT_EQ(error_with("/train/lengths", {0, 1.5}),
            "[m] \"lengths\" holds 1.5, expected 0 to 9007199254740992");
  EXPECT_EQ(error_with("/skipped/too long", 0.5), "[m] \"skipped\" holds 0.5, expected integers");
}

}  // namespace
}  // namespace octet
