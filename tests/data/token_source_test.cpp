#include "data/shards/token_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "base/log.h"
#include "data/tokenizer/bytes_tokenizer.h"
#include "document_support.h"
#include "support/error_of.h"
#include "temporary_folder.h"

namespace octet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int32_t> all(const TokenSource& source) {
  std::vector<int32_t> ids(static_cast<size_t>(source.size()));
  source.read(0, ids);
  return ids;
}

TEST(TokenSource, ReadsLlmcShards) {
  const TemporaryFolder folder;
  const auto narrow = folder.write_ids<uint16_t>("a.bin", {50256, 7, 0, 9}, llmc_header(20240520, 1, 4));
  EXPECT_THAT(all(TokenSource::from_token_file(narrow, 50257)), ElementsAre(50256, 7, 0, 9));
  const auto wide = folder.write_ids<uint32_t>("b.bin", {128000, 7, 128255}, llmc_header(20240801, 7, 3));
  EXPECT_THAT(all(TokenSource::from_token_file(wide, 128256)), ElementsAre(128000, 7, 128255));
}

TEST(TokenSource, ReadsRawIdsOfNanoGpt) {
  const TemporaryFolder folder;
  std::vector<uint16_t> ids(2000);
  std::iota(ids.begin(), ids.end(), uint16_t{1});
  const TokenSource source = TokenSource::from_token_file(folder.write_ids("train.bin", ids), 50257);
  EXPECT_EQ(all(source), std::vector<int32_t>(ids.begin(), ids.end()));
  const auto single = folder.write_ids<uint16_t>("one.bin", {5});
  EXPECT_THAT(all(TokenSource::from_token_file(single, 6)), ElementsAre(5));
}

TEST(TokenSource, ReadsAcrossPieces) {
  TokenSource source = TokenSource::from_ids({1, 2, 3}, "a", 10);
  source.append(TokenSource::from_ids({}, "nothing", 10));
  source.append(TokenSource::from_ids({4}, "b", 10));
  source.append(TokenSource::from_ids({5, 6}, "c", 10));
  ASSERT_EQ(source.size(), 6);
  for (int64_t first = 0; first <= 6; ++first) {
    for (int64_t count = 0; first + count <= 6; ++count) {
      std::vector<int32_t> out(static_cast<size_t>(count)), expected(out.size());
      std::iota(expected.begin(), expected.end(), static_cast<int32_t>(first + 1));
      source.read(first, out);
      EXPECT_EQ(out, expected);
    }
  }
}

TEST(TokenSource, RefusesDamagedShards) {
  const TemporaryFolder folder;
  const auto open = [](const std::string& path) {
    return error_of([&] { TokenSource::from_token_file(path, 50257); });
  };
  const std::vector<uint16_t> ids = {1, 2, 3, 4};

  const auto missing = folder.file("missing.bin");
  EXPECT_THAT(open(missing), AllOf(HasSubstr(missing), HasSubstr("No such file")));
  EXPECT_THAT(open(folder.path()), HasSubstr("not a regular file"));
  const auto empty = folder.write("empty.bin", "");
  EXPECT_THAT(open(empty), AllOf(HasSubstr(empty), HasSubstr("empty")));

  const auto cut = folder.write_ids("cut.bin", ids, llmc_header(20240520, 1, 5));
  EXPECT_THAT(open(cut), AllOf(HasSubstr(cut), HasSubstr("truncated"), HasSubstr("1032"), HasSubstr("1034")));
  const auto longer = folder.write_ids("longer.bin", ids, llmc_header(20240520, 1, 3));
  EXPECT_THAT(open(longer), AllOf(HasSubstr("too long"), HasSubstr("1032"), HasSubstr("1030")));
  const auto stub = folder.write("stub.bin", llmc_header(20240520, 1, 3).substr(0, 100));
  EXPECT_THAT(open(stub), AllOf(HasSubstr("truncated"), HasSubstr("100 bytes"), HasSubstr("1024")));
  const auto negative = folder.write("negative.bin", llmc_header(20240520, 1, 0xffffffff));
  EXPECT_THAT(open(negative), HasSubstr("-1 tokens"));

  const auto version = folder.write_ids("version.bin", ids, llmc_header(20240520, 2, 4));
  EXPECT_THAT(open(version), AllOf(HasSubstr("version 2"), HasSubstr("expected 1")));
  const auto magic = folder.write_ids("magic.bin", ids, llmc_header(20240521, 1, 4));
  EXPECT_THAT(open(magic), AllOf(HasSubstr(magic), HasSubstr("bad magic 20240521"), HasSubstr("20240520")));
  const auto questions = folder.write_ids("hellaswag.bin", ids, llmc_header(20240522, 1, 4));
  EXPECT_THAT(open(questions), HasSubstr("evaluation file"));
  const auto zeros = folder.write("zeros.bin", std::string(4096, '\0'));
  EXPECT_THAT(open(zeros), HasSubstr("bad magic 0"));
  const auto odd = folder.write("odd.bin", "abc");
  EXPECT_THAT(open(odd), AllOf(HasSubstr(odd), HasSubstr("3 bytes"), HasSubstr("odd")));
}

TEST(TokenSource, RefusesIdsOutsideTheVocabulary) {
  const TemporaryFolder folder;
  std::vector<uint16_t> ids(100000, 9);
  ids[70001] = 10;
  ids[99999] = 11;
  const auto shard = folder.write_ids("shard.bin", ids, llmc_header(20240520, 1, 100000));
  EXPECT_EQ(TokenSource::from_token_file(shard, 12).size(), 100000);
  // 1024 + 2 * 70001
  EXPECT_THAT(error_of([&] { TokenSource::from_token_file(shard, 10); }),
              AllOf(HasSubstr(shard), HasSubstr("id 10 "), HasSubstr("token 70001"),
                    HasSubstr("offset 141026"), HasSubstr("vocabulary of 10")));
  const auto raw = folder.write_ids("raw.bin", ids);
  EXPECT_THAT(error_of([&] { TokenSource::from_token_file(raw, 11); }), HasSubstr("offset 199998"));
  const auto wide = folder.write_ids<uint32_t>("wide.bin", {1, 0xfffffff0}, llmc_header(20240801, 7, 2));
  EXPECT_THAT(error_of([&] { TokenSource::from_token_file(wide, 128256); }),
              HasSubstr("id 4294967280 at token 1"));
  EXPECT_THAT(error_of([&] { TokenSource::from_ids({1, -1}, "memory", 4); }), HasSubstr("memory"));
}

TEST(TokenSource, ReadsBeyondTwoGibibytes) {
  const TemporaryFolder folder;
  const auto path = folder.write_ids<uint16_t>("large.bin", {1, 2, 3});
  // Sparse: takes no room on the disk. A vocabulary of 2^16 takes any id of 2 bytes, so nothing is scanned.
  const int64_t far = (int64_t{5} << 30) + 6;
  std::filesystem::resize_file(path, static_cast<uintmax_t>(far));
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const std::vector<uint16_t> ids(600, 77);
    file.seekp(8);
    file.write(reinterpret_cast<const char*>(ids.data()), 1200);
    file.seekp(far - 4);
    file.write(reinterpret_cast<const char*>(ids.data()), 2);
  }
  const TokenSource source = TokenSource::from_token_file(path, 65536);
  ASSERT_EQ(source.size(), far / 2);
  std::vector<int32_t> out(3);
  source.read(far / 2 - 3, out);
  EXPECT_THAT(out, ElementsAre(0, 77, 0));
  const TokenSource tail = source.split_tail(0.25).second;
  tail.read(tail.size() - 3, out);
  EXPECT_THAT(out, ElementsAre(0, 77, 0));
}

TEST(TokenSource, SplitsTheTailOfEachPiece) {
  TokenSource source = TokenSource::from_ids({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, "a", 100);
  source.append(TokenSource::from_ids({20, 21, 22, 23, 24, 25}, "b", 100));
  source.append(TokenSource::from_ids({30}, "c", 100));
  const auto [front, tail] = source.split_tail(0.34);
  EXPECT_THAT(all(front), ElementsAre(0, 1, 2, 3, 4, 5, 6, 20, 21, 22, 23, 30));
  EXPECT_THAT(all(tail), ElementsAre(7, 8, 9, 24, 25));
  EXPECT_EQ(all(source.split_tail(0).first), all(source));
  EXPECT_TRUE(source.split_tail(0).second.empty());
  EXPECT_THAT(error_of([&] { (void)source.split_tail(1.5); }), HasSubstr("1.5"));
}

TEST(TokenSource, TextDocumentsEndWithEos) {
  const TemporaryFolder folder;
  const std::vector<std::string> paths = {
      folder.write("1.txt", "one\n<|endoftext|>\ntwo<|endoftext|><|endoftext|>\n"), folder.write("2.txt", ""),
      folder.write("3.txt", "\nthree")};
  const BytesTokenizer tokenizer;
  const TokenSource source = TokenSource::from_text_files(paths, tokenizer, 257);
  EXPECT_EQ(tokenizer.decode(all(source)), "one\n<|endoftext|>two<|endoftext|>\nthree<|endoftext|>");
  EXPECT_THAT(error_of([&] { TokenSource::from_text_files(paths, tokenizer, 256); }),
              AllOf(HasSubstr("1.txt and 2 more"), HasSubstr("id 256 at token 4")));
}

TEST(TokenSource, ADocumentsFirstTokenIsNoTarget) {
  const std::vector<Document> documents = {counting_document(0, 3), counting_document(3, 2),
                                           counting_document(5, 4)};
  TokenSource source = TokenSource::from_shard(parse_shard(shard_bytes(documents, {100, 7})), 100);
  ASSERT_TRUE(source.has_mask());
  const auto targets = [](const TokenSource& of, int64_t first, size_t count) {
    std::vector<uint8_t> bits(count);
    of.read_targets(first, bits);
    return bits;
  };
  EXPECT_THAT(targets(source, 0, 9), ElementsAre(0, 1, 1, 0, 1, 0, 1, 1, 1));
  EXPECT_THAT(targets(source, 4, 3), ElementsAre(1, 0, 1));
  source.append(TokenSource(source));
  EXPECT_THAT(targets(source, 7, 4), ElementsAre(1, 1, 0, 1));
  const auto [front, tail] = source.split_tail(0.5);  // 4 and 5 of 9 tokens
  EXPECT_EQ(tail.size(), 9);
  EXPECT_THAT(targets(tail, 0, 9), ElementsAre(0, 1, 1, 1, 1, 0, 1, 1, 1));
  EXPECT_THAT(targets(front, 0, 5), ElementsAre(0, 1, 1, 0, 1));
}

TEST(TokenSource, TextFilesAreReadAsTheReaderReadsThem) {
  const TemporaryFolder folder;
  const BytesTokenizer tokenizer;
  const std::vector<std::string> marked = {folder.write("bom.txt", "\xef\xbb\xbfone")};
  EXPECT_EQ(tokenizer.decode(all(TokenSource::from_text_files(marked, tokenizer, 257))), "one<|endoftext|>");
  const std::vector<std::string> bad = {folder.write("bad.txt", "a\xff<|endoftext|>good")};
  EXPECT_THAT(error_of([&] { TokenSource::from_text_files(bad, tokenizer, 257); }),
              HasSubstr("bad.txt] invalid UTF-8 at byte 1"));
  const LogSink previous = set_log_sink([](LogLevel, std::string_view) {});
  EXPECT_EQ(tokenizer.decode(all(TokenSource::from_text_files(bad, tokenizer, 257, true))),
            "good<|endoftext|>");
  set_log_sink(previous);
}

// Ranks compare it to notice that one of them has other data.
TEST(TokenSource, EveryTokenCountsInTheHash) {
  std::vector<int32_t> ids(100'000, 7);
  const uint64_t before = TokenSource::from_ids(ids, "same", 10).hash();
  ids[50'000] = 8;
  EXPECT_NE(TokenSource::from_ids(ids, "same", 10).hash(), before);
}

}  // namespace
}  // namespace octet
