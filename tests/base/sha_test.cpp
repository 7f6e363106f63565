#include "base/sha.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/error_of.h"

namespace octet {
namespace {

template <class Hash>
std::string hash_of(const std::string& text, size_t piece) {
  Hash hash;
  for (size_t i = 0; i < text.size(); i += piece) hash.update(std::string_view(text).substr(i, piece));
  return hash.hex();
}

// The examples of FIPS 180 and its test vectors.
TEST(Sha, Sha256) {
  EXPECT_EQ(hash_of<Sha256>("", 1), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash_of<Sha256>("abc", 3), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash_of<Sha256>("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 7),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  const std::string million(1000000, 'a');
  for (const size_t piece : {1000000, 64, 63, 65, 1}) {
    EXPECT_EQ(hash_of<Sha256>(million, piece),
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  }
}

TEST(Sha, Sha1) {
  EXPECT_EQ(hash_of<Sha1>("", 1), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
  EXPECT_EQ(hash_of<Sha1>("abc", 3), "a9993e364706816aba3e25717850c26c9cd0d89d");
  const std::string million(1000000, 'a');
  for (const size_t piece : {1000000, 64, 63, 65}) {
    EXPECT_EQ(hash_of<Sha1>(million, piece), "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
  }
}

// Around the border where the padding needs a block of its own.
TEST(Sha, LengthsAroundABlock) {
  const char* expected[] = {"9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318",   // 55 a
                            "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a",   // 56
                            "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"};  // 64
  const size_t sizes[] = {55, 56, 64};
  for (int i = 0; i < 3; ++i) EXPECT_EQ(hash_of<Sha256>(std::string(sizes[i], 'a'), 64), expected[i]);
}

struct HashWithoutAlgorithm : ShaHash {
  HashWithoutAlgorithm() : ShaHash("none", nullptr) {}
};

TEST(Sha, TellsWhatOpenSslRefuses) {
  const std::string error = error_of([] { HashWithoutAlgorithm hash; });
  EXPECT_THAT(error, testing::StartsWith("[none] the hash cannot be started: "));
  EXPECT_THAT(error, testing::HasSubstr("no digest set"));
}

TEST(Sha, EndsOnce) {
  Sha256 hash;
  hash.hex();
  EXPECT_EQ(error_of([&] { hash.update("a"); }), "[SHA-256] data was added after the hash was finished");
  EXPECT_EQ(error_of([&] { hash.hex(); }), "[SHA-256] the hash was finished twice");
}

}  // namespace
}  // namespace octet
