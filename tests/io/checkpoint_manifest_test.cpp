#include "io/checkpoint_manifest.h"

#include <gmock/gmock.h>

#include "io/sealed_json.h"
#include "support/error_of.h"

namespace octet {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

// A manifest with one file and a right checksum, changed by `patch`.
std::string error_with(const ordered_json& patch) {
  ordered_json manifest = ordered_json::parse(R"({"format": "octet checkpoint", "version": 1, "step": 5,
      "sequence": 2, "saved_at": 1700000000, "precision": "fp8", "loss": 1.5,
      "files": [{"name": "state.json", "size": 10, "crc32c": "0123abcd"}]})");
  manifest.merge_patch(patch);
  return error_of([&] { parse_manifest(seal_json(manifest), "m"); });
}

TEST(CheckpointManifest, ValuesOfOtherKindsAreRefused) {
  EXPECT_EQ(error_with(ordered_json::object()), "nothing was thrown");
  for (const char* format : {"5", "[]", "{}", "true", "\"octet dataset\""}) {
    EXPECT_EQ(error_with({{"format", ordered_json::parse(format)}}),
              "[m] is not the manifest of an octet checkpoint")
        << format;
  }
  EXPECT_EQ(error_with({{"step", 1.5}}), "[m] \"step\" is 1.5, expected an integer");
  EXPECT_EQ(error_with({{"step", 1e300}}), "[m] \"step\" is 1e+300, expected an integer");
  EXPECT_EQ(error_with({{"saved_at", true}}), "[m] \"saved_at\" is true, expected an integer");
  EXPECT_THAT(error_with({{"sequence", ~uint64_t{0}}}), HasSubstr("expected an integer"));
}

TEST(CheckpointManifest, SizesCanBeAddedUp) {
  const auto error_with_sizes = [](int64_t first, int64_t second) {
    return error_with({{"files",
                        {{{"name", "a"}, {"size", first}, {"crc32c", "00000000"}},
                         {{"name", "b"}, {"size", second}, {"crc32c", "00000000"}}}}});
  };
  EXPECT_EQ(error_with_sizes(0, int64_t{1} << 52), "nothing was thrown");
  EXPECT_THAT(error_with_sizes(0, -1), HasSubstr("[m] b has -1 bytes, expected 0 to"));
  EXPECT_THAT(error_with_sizes(INT64_MAX, 0), HasSubstr("[m] a has 9223372036854775807 bytes"));
  EXPECT_THAT(error_with_sizes(int64_t{1} << 52, int64_t{1} << 52), HasSubstr("[m] b has"));
}

}  // namespace
}  // namespace octet
