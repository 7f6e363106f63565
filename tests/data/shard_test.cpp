#include "data/shards/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/crc32c.h"
#include "data/shards/token_source.h"
#include "document_support.h"
#include "support/error_of.h"
#include "temporary_folder.h"

namespace octet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

uint32_t word(const std::string& bytes, size_t offset) {
  uint32_t value = 0;
  std::memcpy(&value, bytes.data() + offset, 4);
  return value;
}

// Changes bytes and makes the checksums right again, so that the rules behind them are reached.
std::string reseal(std::string bytes) {
  const size_t trailer = bytes.size() - 64;
  uint64_t tokens = 0, documents = 0;
  std::memcpy(&tokens, bytes.data() + trailer, 8);
  std::memcpy(&documents, bytes.data() + trailer + 8, 8);
  const size_t index = 64 + (tokens * word(bytes, 12) + 7) / 8 * 8, mask = index + (documents + 1) * 8;
  const auto put = [&](size_t offset, uint32_t value) { std::memcpy(bytes.data() + offset, &value, 4); };
  put(60, crc32c(bytes.data(), 60));
  if (mask <= trailer) {
    put(trailer + 28, crc32c(bytes.data() + 64, index - 64));
    put(trailer + 32, crc32c(bytes.data() + index, mask - index));
    if (word(bytes, trailer + 24) != 0) put(trailer + 36, crc32c(bytes.data() + mask, trailer - mask));
  }
  put(trailer + 52, crc32c(bytes.data() + trailer, 52));
  return bytes;
}

template <class T>
std::string with(std::string bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
  return reseal(bytes);
}

const std::vector<Document> kThree = {counting_document(5, 3), counting_document(100, 9, 4),
                                      counting_document(0, 2)};

TEST(Shard, GivesBackItsDocuments) {
  for (const int64_t vocab : {300, 65536, 65537}) {
    const std::string bytes = shard_bytes(kThree, {vocab, 0xabc});
    EXPECT_EQ(word(bytes, 12), vocab <= 65536 ? 2u : 4u);
    const Shard shard = parse_shard(bytes);
    EXPECT_EQ(shard.counts(), (ShardCounts{3, 14, 2 + 5 + 1}));
    EXPECT_EQ(shard.kind().vocab_size, vocab);
    EXPECT_EQ(shard.kind().tokenizer_hash, 0xabcu);
    std::vector<Document> expected = kThree;
    for (Document& document : expected) document.is_target[0] = 0;
    EXPECT_EQ(documents_of(shard), expected);
    EXPECT_TRUE(shard.any_target(0, 3));
    EXPECT_FALSE(shard.any_target(3, 4));
    EXPECT_TRUE(shard.any_target(3, 5));
  }
}

TEST(Shard, HasNoMaskWhereAllAreTargets) {
  const std::vector<Document> all = {counting_document(1, 4), counting_document(2, 70)};
  const Shard shard = parse_shard(shard_bytes(all, {1000, 0}));
  EXPECT_FALSE(shard.has_mask());
  EXPECT_EQ(shard.counts(), (ShardCounts{2, 74, 72}));
  EXPECT_EQ(shard_bytes(all, {1000, 0}).size(), 64u + 152 + 24 + 64);
}

TEST(Shard, ManyWritesMakeTheSameBytesAsTheirChecksumSays) {
  StringSink sink;
  ShardWriter writer(sink, {1 << 24, 0});
  for (int32_t i = 0; i < 900; ++i) writer.append(counting_document(i, 1000, i % 2 * 500));
  writer.finish();
  EXPECT_GT(sink.text.size(), size_t{3} << 20);
  EXPECT_EQ(writer.bytes(), static_cast<int64_t>(sink.text.size()));
  EXPECT_EQ(writer.checksum(), crc32c(sink.text));
  EXPECT_EQ(parse_shard(sink.text).counts(), writer.counts());
}

TEST(Shard, IsReadFromItsFile) {
  const TemporaryFolder folder;
  const std::string path = folder.write("a.octet", shard_bytes(kThree, {300, 0}));
  EXPECT_EQ(Shard::open(posix_env(), path).counts().tokens, 14);
  EXPECT_THAT(error_of([&] { Shard::open(posix_env(), folder.file("b.octet")); }), HasSubstr("b.octet"));
}

TEST(Shard, RefusesAnIdOutsideTheVocabularyWhenWritten) {
  EXPECT_THAT(error_of([] {
                shard_bytes({counting_document(8, 3)}, {10, 0});
              }),
              HasSubstr("id 10 at token 2 of document 0, expected 0 to 9"));
}

TEST(Shard, EveryFlippedBitAndEveryLengthIsNoticed) {
  const std::string bytes = shard_bytes(kThree, {300, 0xabc});
  for (size_t i = 0; i < bytes.size() * 8; ++i) {
    std::string changed = bytes;
    changed[i / 8] = static_cast<char>(changed[i / 8] ^ 1 << i % 8);
    EXPECT_THAT(error_of([&] { parse_shard(changed, "x.octet"); }),
                AllOf(HasSubstr("x.octet"), HasSubstr("offset")))
        << "bit " << i;
  }
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THAT(error_of([&] { parse_shard(bytes.substr(0, size), "x.octet"); }),
                HasSubstr("[shard] x.octet"));
  }
  EXPECT_THAT(error_of([&] { parse_shard(bytes + bytes); }), HasSubstr("size mismatch"));
}

TEST(Shard, ForeignAndBrokenFilesAreNamedWithTheirPlace) {
  const std::string bytes = shard_bytes(kThree, {300, 0});
  const size_t trailer = bytes.size() - 64, index = 64 + 32, mask = index + 32;
  const auto error = [](const std::string& changed) { return error_of([&] { parse_shard(changed, "x"); }); };
  EXPECT_EQ(error(reseal(bytes)), "nothing was thrown");
  EXPECT_THAT(error(llmc_header(20240520, 1, 0)), HasSubstr("bad magic at byte offset 0"));
  EXPECT_THAT(error(""), HasSubstr("not an octet shard"));
  EXPECT_THAT(error(with(bytes, 8, uint32_t{2})), HasSubstr("version 2 at byte offset 8, expected 1"));
  EXPECT_THAT(error(with(bytes, 24, uint64_t{0})), HasSubstr("vocabulary of 0 at byte offset 24"));
  EXPECT_THAT(error(with(bytes, 64 + 4, uint16_t{300})),
              HasSubstr("id 300 at token 2 (byte offset 68), expected ids below the vocabulary of 300"));
  // Offsets beyond the file and beyond 2 GiB.
  EXPECT_THAT(error(with(bytes, trailer, uint64_t{1} << 40)),
              HasSubstr("size mismatch: 1099511627776 tokens"));
  EXPECT_THAT(error(with(bytes, trailer, ~uint64_t{0})), HasSubstr("size mismatch"));
  EXPECT_THAT(error(with(bytes, trailer + 8, uint64_t{1} << 60)), HasSubstr("size mismatch"));
  EXPECT_THAT(error(with(bytes, index + 8, uint64_t{1} << 33)),
              HasSubstr("document 0 goes from token 0 to 8589934592 (byte offset 104)"));
  EXPECT_THAT(error(with(bytes, index + 8, uint64_t{0})), HasSubstr("document 0 goes from token 0 to 0"));
  EXPECT_THAT(error(with(bytes, index, uint64_t{1})), HasSubstr("the first document starts at token 1"));
  EXPECT_THAT(error(with(bytes, index + 24, uint64_t{13})), HasSubstr("the last document ends at token 13"));
  EXPECT_THAT(error(with(bytes, mask, uint8_t{0x0e})),
              HasSubstr("the first token of document 1 is a target"));
  EXPECT_THAT(error(with(bytes, mask + 2, uint8_t{1})), HasSubstr("a target after the last token"));
  EXPECT_THAT(error(with(bytes, mask, uint8_t{2})), HasSubstr("targets in the mask"));
  EXPECT_THAT(error(with(bytes, trailer + 24, uint32_t{2})), HasSubstr("mask kind 2"));
}

// A shard that was checked before is not read again as a whole. What is damaged since then must not lead outside of it.
TEST(Shard, ADamagedIndexIsNoticedWhereItIsUsed) {
  const std::string bytes = shard_bytes(kThree, {1000, 7});
  const size_t index = 64 + (14 * word(bytes, 12) + 7) / 8 * 8;
  const auto damaged = [&](size_t document, uint64_t start) {
    return parse_shard(with(bytes, index + 8 * document, start), "test.octet", ShardCheck::Ends);
  };
  EXPECT_EQ(documents_of(parse_shard(bytes, "test.octet", ShardCheck::Ends)),
            documents_of(parse_shard(bytes)));
  for (const uint64_t start : {uint64_t{13}, uint64_t{1} << 40, uint64_t{1} << 63}) {
    const Shard shard = damaged(0, start);
    std::vector<int32_t> tokens(2);
    std::vector<uint8_t> targets(2);
    EXPECT_THAT(error_of([&] { shard.read(shard.document_start(0), tokens); }),
                AllOf(HasSubstr("test.octet"), HasSubstr("the index of documents is damaged")));
    EXPECT_THAT(error_of([&] { shard.read_targets(shard.document_start(0), targets); }),
                HasSubstr("the index of documents is damaged"));
  }
  // Without a mask the index says which tokens are no targets. Starts 0, 3 and 12 become 0, 12 and 3.
  const std::string unmasked =
      shard_bytes({counting_document(0, 3), counting_document(3, 9), counting_document(12, 2)}, {1000, 7});
  const std::string swapped = with(with(unmasked, index + 8, uint64_t{12}), index + 16, uint64_t{3});
  const TokenSource source =
      TokenSource::from_shard(parse_shard(swapped, "test.octet", ShardCheck::Ends), 1000);
  std::vector<uint8_t> targets(10);
  EXPECT_THAT(error_of([&] { source.read_targets(4, targets); }),
              AllOf(HasSubstr("test.octet"), HasSubstr("the index of documents is damaged")));
}

TEST(DocumentSource, NumbersTheDocumentsOfAllShards) {
  const auto documents = many_documents(50, 20);
  const DocumentSource source = source_of(documents, 4);
  EXPECT_EQ(source.shards().size(), 4u);
  EXPECT_EQ(source.counts().documents, 50);
  for (size_t i = 0; i < documents.size(); ++i) {
    std::vector<int32_t> tokens(documents[i].tokens.size() - 1);
    std::vector<uint8_t> is_target(tokens.size());
    source.read(static_cast<int64_t>(i), 1, tokens, is_target);
    EXPECT_EQ(tokens, std::vector<int32_t>(documents[i].tokens.begin() + 1, documents[i].tokens.end()));
    EXPECT_EQ(is_target,
              std::vector<uint8_t>(documents[i].is_target.begin() + 1, documents[i].is_target.end()));
  }
}

TEST(DocumentSource, RefusesIdsOutsideTheModelAndMixedTokenizers) {
  std::vector<Shard> shards = {parse_shard(shard_bytes(kThree, {300, 1}), "a"),
                               parse_shard(shard_bytes(kThree, {300, 2}), "b")};
  EXPECT_THAT(error_of([&] { DocumentSource({shards[0]}, 105); }), HasSubstr("a: id 105 at token 8"));
  EXPECT_THAT(error_of([&] { DocumentSource(shards, 300); }), HasSubstr("expected one tokenizer"));
}

}  // namespace
}  // namespace octet
