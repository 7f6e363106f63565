// Prepared shards and token files that are read whole only once.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/crc32c.h"
#include "data/loading/packing_plan.h"
#include "data/shards/manifest.h"
#include "data/shards/token_source.h"
#include "document_support.h"
#include "io/checked_files.h"
#include "support/captured_log.h"
#include "support/error_of.h"
#include "temporary_folder.h"

namespace octet {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

constexpr const char* kNothing = "nothing was thrown";

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct CheckedData : testing::Test {
  CheckedData() { setenv("OCTET_CACHE", folder.file("cache").c_str(), 1); }
  ~CheckedData() override { unsetenv("OCTET_CACHE"); }

  // As if it had been written an hour ago.
  void make_old(const std::string& name) const {
    fs::last_write_time(folder.file(name), fs::file_time_type::clock::now() - std::chrono::hours(1));
  }
  // Changes the content, and neither size nor time.
  void change(const std::string& name, const std::string& bytes) const {
    const auto time = fs::last_write_time(folder.file(name));
    folder.write(name, bytes);
    fs::last_write_time(folder.file(name), time);
  }
  void flip(const std::string& name, size_t place) const {
    std::string bytes = bytes_of(folder.file(name));
    bytes[place] = static_cast<char>(bytes[place] ^ 1);
    change(name, bytes);
  }
  TemporaryFolder folder;
};

struct CheckedShards : CheckedData {
  CheckedShards() {
    manifest.tokenizer_hash = 7;
    manifest.vocab_size = 1000;
    for (int i = 0; i < 3; ++i) {
      const std::string name = shard(i), bytes = content(i);
      folder.write(name, bytes);
      make_old(name);
      const Shard parsed = parse_shard(bytes);
      manifest.train.shards.push_back({.name = name,
                                       .size = static_cast<int64_t>(bytes.size()),
                                       .crc32c = crc32c(bytes),
                                       .counts = parsed.counts()});
      manifest.train.counts += parsed.counts();
    }
  }
  static std::string shard(int i) { return "train_0000" + std::to_string(i) + ".octet"; }
  static std::string content(int i, int more = 0) {
    return shard_bytes({counting_document(10 * i + more, 40), counting_document(50 + more, 9, 4)}, {1000, 7});
  }
  std::vector<Shard> open(bool verify = false) const {
    FileChecks checks(posix_env(), verify);
    return open_split(posix_env(), folder.path(), manifest, manifest.train, checks);
  }
  std::string error(bool verify = false) const {
    return error_of([&] { open(verify); });
  }

  DatasetManifest manifest;
};

constexpr size_t kInTokens = 64 + 20;

TEST_F(CheckedShards, AreReadOnce) {
  EXPECT_EQ(error(), kNothing);
  flip(shard(1), kInTokens);
  EXPECT_EQ(error(), kNothing) << "size and time are those of the last check";
  EXPECT_THAT(error(true), AllOf(HasSubstr(shard(1)), HasSubstr("the tokens")));
  EXPECT_THAT(error(), HasSubstr(shard(1))) << "what is known to be damaged is read until it is right";
  flip(shard(1), kInTokens);
  EXPECT_EQ(error(), kNothing);
}

// It must not become a document of billions of tokens.
TEST_F(CheckedShards, DocumentsOutsideAShardAreFoundWhenTheyAreUsed) {
  const Shard first = open().at(1);
  const auto* starts = reinterpret_cast<const std::byte*>(first.document_starts().data());
  const auto place = static_cast<size_t>(starts - first.token_bytes() + first.token_bytes_offset());
  flip(shard(1), place + 8 + 4);  // bit 32 of where the second document starts
  const DocumentSource source(open(), 1000);
  EXPECT_THAT(error_of([&] { PackingPlan(source, 16, Packing::BestFit); }),
              AllOf(HasSubstr(shard(1)), HasSubstr("document 0 has"), HasSubstr("it is damaged")));
}

TEST_F(CheckedShards, GiveTheSameDocumentsWithoutBeingRead) {
  const std::vector<Shard> first = open(), second = open();
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].counts(), second[i].counts());
    EXPECT_EQ(first[i].checksum(), second[i].checksum());
    EXPECT_EQ(first[i].file_checksum(), manifest.train.shards[i].crc32c);
    std::vector<int32_t> a(49), b(49);
    first[i].read(0, a);
    second[i].read(0, b);
    EXPECT_EQ(a, b);
    EXPECT_EQ(second[i].document_start(1), 40);
    EXPECT_FALSE(second[i].any_target(40, 4));
  }
}

TEST_F(CheckedShards, OneWithAnotherTimeIsReadAgain) {
  ASSERT_EQ(error(), kNothing);
  flip(shard(2), kInTokens);
  fs::last_write_time(folder.file(shard(2)), fs::file_time_type::clock::now() - std::chrono::minutes(1));
  EXPECT_THAT(error(), HasSubstr(shard(2)));
  flip(shard(2), kInTokens);
  EXPECT_EQ(error(), kNothing);
}

TEST_F(CheckedShards, ATruncatedOneIsNamed) {
  ASSERT_EQ(error(), kNothing);
  change(shard(1), bytes_of(folder.file(shard(1))).substr(0, 128));
  EXPECT_THAT(error(), AllOf(HasSubstr(shard(1)), HasSubstr("has 128 bytes, manifest.json says")));
}

TEST_F(CheckedShards, AReplacedOneIsNamedEvenWithTheSameSizeAndTime) {
  ASSERT_EQ(error(), kNothing);
  // A sound shard with the same counts.
  change(shard(1), content(1, 5));
  EXPECT_THAT(error(),
              AllOf(HasSubstr(shard(1)), HasSubstr("it is sound, but not the file that was prepared")));
  EXPECT_THAT(error(true), HasSubstr("it is sound, but not the file that was prepared"));
}

TEST_F(CheckedShards, DamagedEndsAreFoundWithoutReadingTheRest) {
  ASSERT_EQ(error(), kNothing);
  for (const size_t place : {size_t{3}, size_t{20}, content(0).size() - 60, content(0).size() - 4}) {
    flip(shard(0), place);
    EXPECT_THAT(error(), HasSubstr(shard(0))) << place;
    flip(shard(0), place);
    EXPECT_EQ(error(), kNothing);
  }
}

TEST_F(CheckedShards, TheGoodOnesAreRememberedWhenOneIsDamaged) {
  flip(shard(0), kInTokens);
  EXPECT_THAT(error(), HasSubstr(shard(0)));
  const CheckedFiles memory(posix_env(), folder.path(), CheckedFiles::Place::Folder);
  EXPECT_EQ(memory.find(shard(0), file_stamp(folder.file(shard(0)))), std::nullopt);
  EXPECT_EQ(memory.find(shard(1), file_stamp(folder.file(shard(1)))), manifest.train.shards[1].crc32c);
}

TEST_F(CheckedShards, EveryDamagedOneIsNamed) {
  flip(shard(0), kInTokens);
  flip(shard(2), kInTokens);
  for (const bool verify : {false, true}) {
    EXPECT_THAT(error(verify), AllOf(HasSubstr(shard(0)), HasSubstr("\n"), HasSubstr(shard(2)),
                                     testing::Not(HasSubstr(shard(1)))));
  }
  flip(shard(0), kInTokens);
  EXPECT_THAT(error(true), AllOf(testing::Not(HasSubstr(shard(0))), HasSubstr(shard(2))));
}

TEST_F(CheckedShards, ALongListOfDamageEndsWithANumber) {
  for (int i = 3; i < 28; ++i) {
    manifest.train.shards.push_back(manifest.train.shards[0]);
    manifest.train.shards.back().name = fmt::format("train_{:05}.octet", i);  // there is no such file
  }
  EXPECT_THAT(error(true), AllOf(HasSubstr("train_00022.octet"), testing::Not(HasSubstr("train_00023.octet")),
                                 HasSubstr("\nand 5 more damaged files")));
}

TEST_F(CheckedShards, ADamagedMemoryIsNotTrusted) {
  ASSERT_EQ(error(), kNothing);
  std::string memory = bytes_of(folder.file("checked.json"));
  flip(shard(1), kInTokens);
  memory[memory.size() / 2] = static_cast<char>(memory[memory.size() / 2] ^ 1);
  folder.write("checked.json", memory);
  const test::CapturedLog log;
  EXPECT_THAT(error(), HasSubstr(shard(1)));
  EXPECT_THAT(log.messages, Contains(HasSubstr("it is ignored")));
}

TEST_F(CheckedShards, AnotherDatasetInTheFolderIsCheckedAnew) {
  ASSERT_EQ(error(), kNothing);
  // The same names, sizes and times; the manifest is that of the new shards.
  for (int i = 0; i < 3; ++i) {
    change(shard(i), content(i, 5));
    manifest.train.shards[static_cast<size_t>(i)].crc32c = crc32c(content(i, 5));
  }
  flip(shard(2), kInTokens);
  EXPECT_THAT(error(), AllOf(HasSubstr(shard(2)), HasSubstr("the tokens")));
}

TEST_F(CheckedShards, ManyStartsAtOnceAgree) {
  std::vector<std::thread> threads;
  std::vector<std::string> errors(6);
  for (size_t i = 0; i < errors.size(); ++i) threads.emplace_back([&, i] { errors[i] = error(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(errors, testing::Each(kNothing));
  flip(shard(1), kInTokens);
  EXPECT_EQ(error(), kNothing);
}

// A file that was damaged after its check is found when the token is used.
TEST_F(CheckedShards, ATokenOutsideOfTheVocabularyIsNamedWhenItIsRead) {
  EXPECT_EQ(error(), kNothing);
  std::string bytes = bytes_of(folder.file(shard(1)));
  bytes[kInTokens + 1] = 0x40;  // the high byte of token 10
  change(shard(1), bytes);
  const std::vector<Shard> shards = open();
  const auto place = AllOf(HasSubstr(folder.file(shard(1))), HasSubstr("at token 10 (byte offset 84)"),
                           HasSubstr("below the vocabulary of 1000"), HasSubstr("--verify"));
  std::vector<int32_t> ids(20);
  std::vector<uint8_t> is_target(20);
  const DocumentSource documents(shards, 1000);
  EXPECT_THAT(error_of([&] { documents.read(2, 0, ids, is_target); }), place);
  EXPECT_EQ(error_of([&] { documents.read(2, 11, ids, is_target); }), kNothing);
  TokenSource tokens;
  for (const Shard& each : shards) tokens.append(TokenSource::from_shard(each, 1000));
  const int64_t before = shards[0].counts().tokens;
  EXPECT_THAT(error_of([&] { tokens.read(before - 5, ids); }), place);
  EXPECT_EQ(error_of([&] { tokens.read(before + 11, ids); }), kNothing);
  const auto [front, tail] = tokens.split_tail(0.9);
  EXPECT_THAT(error_of([&] { tail.read(tail.size() - 20, ids); }), kNothing);
}

TEST_F(CheckedShards, AComplaintAboutTheMemoryComesOnce) {
  EXPECT_EQ(error(), kNothing);
  manifest.validation = manifest.train;
  manifest.train.shards.pop_back();
  folder.write("checked.json", "{}");
  const test::CapturedLog log;
  FileChecks checks(posix_env());
  open_split(posix_env(), folder.path(), manifest, manifest.train, checks);
  open_split(posix_env(), folder.path(), manifest, manifest.validation, checks);
  EXPECT_THAT(log.messages, testing::ElementsAre(HasSubstr("checked.json")));
}

TEST_F(CheckedShards, WhatIsReadIsCounted) {
  int64_t bytes = 0;
  for (const ShardEntry& entry : manifest.train.shards) bytes += entry.size;
  for (const bool verify : {true, false, true}) {
    FileChecks checks(posix_env(), verify);
    open_split(posix_env(), folder.path(), manifest, manifest.train, checks);
    EXPECT_EQ(checks.amount().files, verify ? 3 : 0);
    EXPECT_EQ(checks.amount().bytes, verify ? bytes : 0);
  }
}

// 64 MiB and more: smaller files are always read.
struct CheckedTokenFiles : CheckedData {
  CheckedTokenFiles() {
    fs::create_directory(folder.file("data"));
    path = folder.write_ids("data/a.bin", std::vector<uint16_t>(2000, 5));
    fs::resize_file(path, 66 << 20);
    put(1'000'000, 90);
    make_old("data/a.bin");
  }
  void put(int64_t place, uint16_t id) const {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(2 * place);
    file.write(reinterpret_cast<const char*>(&id), 2);
  }
  std::string error(int64_t vocab, bool verify = false) const {
    FileChecks checks(posix_env(), verify);
    return error_of([&] { TokenSource::from_token_files(std::vector{path}, vocab, checks); });
  }
  std::string path;
};

TEST_F(CheckedTokenFiles, AreReadOnceForAllVocabularies) {
  EXPECT_EQ(error(100), kNothing);
  const auto time = fs::last_write_time(path);
  put(2'000'000, 200);
  fs::last_write_time(path, time);
  EXPECT_EQ(error(100), kNothing) << "not read again";
  EXPECT_EQ(error(91), kNothing);
  EXPECT_THAT(error(90), HasSubstr("id 90 at token 1000000")) << "the largest id of the check is remembered";
  EXPECT_THAT(error(100, true), HasSubstr("id 200 at token 2000000"));
  EXPECT_THAT(error(100), HasSubstr("id 200 at token 2000000")) << "the check has refreshed the memory";
  EXPECT_EQ(error(201), kNothing);
  fs::last_write_time(path, time + std::chrono::seconds(1));
  EXPECT_THAT(error(100), HasSubstr("a.bin: id 200 at token 2000000"));
  EXPECT_THAT(posix_env().list(folder.file("data")), testing::ElementsAre("a.bin"));
}

TEST_F(CheckedTokenFiles, ReadTheSameAsOneByOne) {
  const std::string small = folder.write_ids("data/b.bin", std::vector<uint16_t>{1, 2, 3});
  const std::vector<std::string> paths = {path, small};
  for (int i = 0; i < 2; ++i) {
    FileChecks checks(posix_env());
    const TokenSource together = TokenSource::from_token_files(paths, 100, checks);
    TokenSource one_by_one = TokenSource::from_token_file(path, 100);
    one_by_one.append(TokenSource::from_token_file(small, 100));
    EXPECT_EQ(together.size(), one_by_one.size());
    EXPECT_EQ(together.hash(), one_by_one.hash());
    EXPECT_EQ(together.describe(), one_by_one.describe());
  }
}

}  // namespace
}  // namespace octet
