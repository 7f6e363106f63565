#include <gtest/gtest.h>

#include "safetensors_support.h"
#include "temp_dir.h"

namespace octet {
namespace {

using Fault = SafetensorsFault;

std::optional<Fault> folder_fault(const std::string& dir) {
  return thrown_by([&] { SafetensorsFolder::open(posix_env(), dir); });
}

TEST(SafetensorsFolder, ReadsShards) {
  const TempDir dir;
  EXPECT_THROW(SafetensorsFolder::open(posix_env(), dir.path()), Error);
  write_file(dir / "m-1.safetensors", write_all({{"a", SafeDType::U8, {4}}, {"b", SafeDType::U8, {2}}}));
  write_file(dir / "m-2.safetensors", write_all({{"c", SafeDType::F32, {1}}}));
  const std::string index = dir / "model.safetensors.index.json";
  const auto map = [&](const std::string& text) {
    write_file(index, R"({"metadata":{"total_size":10},"weight_map":{)" + text + "}}");
    return folder_fault(dir.path());
  };
  ASSERT_EQ(map(R"("a":"m-1.safetensors","b":"m-1.safetensors","c":"m-2.safetensors")"), std::nullopt);
  const auto folder = SafetensorsFolder::open(posix_env(), dir.path());
  EXPECT_EQ(folder.tensor_count(), 3u);
  EXPECT_EQ(folder.at("c").dtype, SafeDType::F32);
  EXPECT_EQ(folder.find("d"), nullptr);
  EXPECT_EQ(thrown_by([&] { folder.at("d"); }), Fault::NoSuchTensor);

  EXPECT_EQ(map(R"("a":"m-1.safetensors","c":"m-2.safetensors")"), Fault::ShardContent);
  EXPECT_EQ(map(R"("a":"m-1.safetensors","b":"m-2.safetensors","c":"m-2.safetensors")"), Fault::ShardContent);
  EXPECT_EQ(map(R"("a":"m-1.safetensors","b":"m-1.safetensors","c":"m-2.safetensors","d":"m-2.safetensors")"),
            Fault::ShardContent);
  EXPECT_EQ(map(R"("a":"m-1.safetensors","b":"m-1.safetensors","c":"m-3.safetensors")"), Fault::ShardContent);
  for (const char* outside :
       {"../m.safetensors", "/etc/passwd", "sub/m.safetensors", "..", ".", "", "a\\\\b", "a\\u0000b"}) {
    EXPECT_EQ(map(fmt::format(R"("a":"{}")", outside)), Fault::BadIndex) << outside;
  }
  EXPECT_EQ(map(R"("a":1)"), Fault::BadIndex);
  write_file(index, "[]");
  EXPECT_EQ(folder_fault(dir.path()), Fault::BadIndex);
  write_file(index, R"({"weight_map":[]})");
  EXPECT_EQ(folder_fault(dir.path()), Fault::BadIndex);
  write_file(index, std::string(100'000, '['));
  EXPECT_THROW(SafetensorsFolder::open(posix_env(), dir.path()), Error);

  write_file(dir / "model.safetensors", write_all({{"only", SafeDType::F32, {1}}}));
  EXPECT_EQ(SafetensorsFolder::open(posix_env(), dir.path()).tensor_count(), 1u);
}

}  // namespace
}  // namespace octet
