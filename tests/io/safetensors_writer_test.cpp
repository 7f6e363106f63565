#include <gtest/gtest.h>

#include "safetensors_support.h"
#include "temp_dir.h"

namespace octet {
namespace {

using Fault = SafetensorsFault;

TEST(SafetensorsWriter, WritesWhatTheReferenceLibraryWrites) {
  // safetensors 0.8.0: serialize_file of the same four tensors and metadata.
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("c":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},"e":{"dtype":"F32","shape":[0,3],"data_offsets":[16,16]},)"
      R"("a":{"dtype":"F8_E4M3","shape":[1,3],"data_offsets":[16,19]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(write_all({{"a", SafeDType::F8_E4M3, {1, 3}},
                       {"b", SafeDType::I64, {}},
                       {"e", SafeDType::F32, {0, 3}},
                       {"c", SafeDType::F32, {2}}},
                      {{"format", "pt"}}),
            with_length(padded.size(), padded + "bcdefghicdefghijabc"));
  EXPECT_EQ(write_all({}), with_length(8, "{}      "));
}

TEST(SafetensorsWriter, RoundTripsThroughAFile) {
  const TempDir dir;
  const std::vector<SafeTensorSpec> specs = {{"weird \"name\" \n\x01 é", SafeDType::BF16, {3, 5}},
                                             {"z", SafeDType::F64, {2}},
                                             {"empty", SafeDType::U8, {0}}};
  const std::string bytes = write_all(specs, {{"k", "v\"\\"}});
  WritableFile file = posix_env().create(dir / "x.safetensors");
  file.append(bytes);
  file.sync();
  file.close();
  const auto parsed = SafetensorsFile::open(posix_env(), dir / "x.safetensors");
  ASSERT_EQ(parsed.tensors().size(), 3u);
  for (const auto& spec : specs) {
    const SafeTensor& found = parsed.at(spec.name);
    EXPECT_EQ(found.dtype, spec.dtype);
    EXPECT_EQ(std::vector<int64_t>(found.shape.begin(), found.shape.end()), spec.shape);
  }
  EXPECT_EQ(parsed.metadata().at("k"), "v\"\\");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(parsed.at("z").bytes.data()) % 8, 0u);
}

TEST(SafetensorsWriter, RefusesWhatItCouldNotReadBack) {
  StringSink sink;
  const auto make = [&](std::vector<SafeTensorSpec> specs) {
    return thrown_by([&] { SafetensorsWriter(sink, std::move(specs)); });
  };
  EXPECT_EQ(make({{"a", SafeDType::U8, {1}}, {"a", SafeDType::F32, {1}}}), Fault::DuplicateKey);
  EXPECT_EQ(make({{"__metadata__", SafeDType::U8, {1}}}), Fault::HeaderSchema);
  EXPECT_EQ(make({{"\xff", SafeDType::U8, {1}}}), Fault::HeaderSyntax);
  EXPECT_EQ(make({{"a", SafeDType::U8, {-1}}}), Fault::ShapeOverflow);
  EXPECT_EQ(make({{"a", SafeDType::F64, {int64_t{1} << 40, int64_t{1} << 40}}}), Fault::ShapeOverflow);
  EXPECT_EQ(make({{"a", SafeDType::F4, {3}}}), Fault::PartialByte);
  EXPECT_EQ(make({{"a", SafeDType::U8, std::vector<int64_t>(65, 1)}}), Fault::ShapeOverflow);
  EXPECT_TRUE(sink.text.empty());
}

TEST(SafetensorsWriter, HoldsTheCallerToTheOrderAndTheSizes) {
  StringSink sink;
  SafetensorsWriter writer(sink, {{"a", SafeDType::U8, {4}}, {"b", SafeDType::U8, {2}}});
  const auto append = [&](std::string_view name, std::string_view bytes) {
    return thrown_by([&] { writer.append(name, bytes_of(bytes)); });
  };
  EXPECT_EQ(append("b", "12"), Fault::WriteOrder);
  EXPECT_EQ(append("a", "12345"), Fault::WriteOrder);
  EXPECT_EQ(append("a", "12"), std::nullopt);
  EXPECT_EQ(append("a", "34"), std::nullopt);
  EXPECT_EQ(thrown_by([&] { writer.finish(); }), Fault::WriteOrder);
  EXPECT_EQ(append("b", "56"), std::nullopt);
  EXPECT_EQ(append("b", "7"), Fault::WriteOrder);
  writer.finish();
  EXPECT_TRUE(sink.text.ends_with("123456"));
}

}  // namespace
}  // namespace octet
