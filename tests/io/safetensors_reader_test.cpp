#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/philox.h"
#include "safetensors_support.h"
#include "temp_dir.h"

namespace octet {
namespace {

using Fault = SafetensorsFault;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string file_of(std::string_view header, size_t data_bytes = 0) {
  return with_length(header.size(), std::string(header) + std::string(data_bytes, 'x'));
}

// The rule that `file` breaks; nullopt when it is accepted.
std::optional<Fault> fault_of(std::string_view file) {
  try {
    SafetensorsFile::parse(bytes_of(file), "test.safetensors");
  } catch (const SafetensorsError& error) {
    EXPECT_THAT(error.what(), HasSubstr("[test.safetensors] "));
    return error.fault();
  }
  return std::nullopt;
}

std::string tensor(std::string_view name, std::string_view dtype, std::string_view shape, uint64_t begin,
                   uint64_t end) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, dtype, shape, begin,
                     end);
}

std::string braces(std::initializer_list<std::string> parts) {
  return fmt::format("{{{}}}", fmt::join(parts, ","));
}

TEST(Safetensors, ReadsTensorsOfEveryKind) {
  const std::string file =
      file_of(braces({tensor("b", "BF16", "[2,3]", 4, 16), R"("__metadata__":{"format":"pt","x":"\u00e9"})",
                      tensor("scalar", "F32", "[]", 0, 4), tensor("empty", "I64", "[3,0]", 16, 16),
                      tensor("half_bytes", "F4", "[2,3]", 16, 19)}),
              19);
  const auto parsed = SafetensorsFile::parse(bytes_of(file), "f");
  ASSERT_EQ(parsed.tensors().size(), 4u);
  EXPECT_EQ(parsed.tensors()[0].name, "scalar");
  EXPECT_EQ(parsed.tensors()[1].name, "b");
  const SafeTensor& b = parsed.at("b");
  EXPECT_EQ(b.dtype, SafeDType::BF16);
  EXPECT_THAT(b.shape, ElementsAre(2, 3));
  EXPECT_EQ(b.count(), 6);
  EXPECT_EQ(b.bytes.size(), 12u);
  EXPECT_EQ(reinterpret_cast<const char*>(b.bytes.data()), file.data() + file.size() - 15);
  EXPECT_EQ(parsed.at("scalar").count(), 1);
  EXPECT_EQ(parsed.at("empty").count(), 0);
  EXPECT_TRUE(parsed.at("empty").bytes.empty());
  EXPECT_EQ(parsed.metadata().at("format"), "pt");
  EXPECT_EQ(parsed.metadata().at("x"), "é");
  EXPECT_EQ(parsed.find("c"), nullptr);
  try {
    parsed.at("c");
    FAIL();
  } catch (const SafetensorsError& error) {
    EXPECT_EQ(error.fault(), Fault::NoSuchTensor);
    EXPECT_STREQ(error.what(), "[f] has no tensor \"c\"");
  }
}

TEST(Safetensors, DTypeNamesAndSizes) {
  const std::vector<std::pair<std::string, int>> known = {
      {"BOOL", 8}, {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
      {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},
      {"U16", 16}, {"F16", 16},    {"BF16", 16},   {"I32", 32},    {"U32", 32},
      {"F32", 32}, {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}};
  for (const auto& [name, bits] : known) {
    const auto dtype = parse_safe_dtype(name);
    ASSERT_TRUE(dtype) << name;
    EXPECT_EQ(safe_dtype_name(*dtype), name);
    EXPECT_EQ(safe_dtype_bits(*dtype), bits) << name;
    EXPECT_EQ(fault_of(file_of(braces({tensor("t", name, "[8]", 0, static_cast<uint64_t>(bits))}),
                               static_cast<size_t>(bits))),
              std::nullopt)
        << name;
  }
  EXPECT_FALSE(parse_safe_dtype("f32"));
  EXPECT_FALSE(parse_safe_dtype(""));
}

TEST(Safetensors, AcceptsTheEdges) {
  EXPECT_EQ(fault_of(file_of("{}")), std::nullopt);
  EXPECT_EQ(fault_of(file_of("{} \n\t\r")), std::nullopt);
  EXPECT_EQ(fault_of(file_of("{\"__metadata__\":{}}  ")), std::nullopt);
  EXPECT_EQ(fault_of(file_of(braces({tensor("", "U8", "[1]", 0, 1)}), 1)), std::nullopt);
  // Tensors without bytes share an offset with their neighbours.
  EXPECT_EQ(fault_of(file_of(braces({tensor("a", "U8", "[4]", 0, 4), tensor("b", "U8", "[0]", 0, 0),
                                     tensor("c", "U8", "[0]", 4, 4), tensor("d", "U8", "[0]", 4, 4)}),
                             4)),
            std::nullopt);
  EXPECT_EQ(fault_of(file_of(braces({tensor("a", "U8", "[0,9223372036854775807]", 0, 0)}))), std::nullopt);
  // Fields that the format does not know are passed over, as the reference library does.
  EXPECT_EQ(fault_of(file_of(R"({"a":{"dtype":"U8","new":[{"x":[1,-2,0.5,null,true,"s"]}],"n":1,"shape":[1],)"
                             R"("data_offsets":[0,1]}})",
                             1)),
            std::nullopt);
}

TEST(Safetensors, RefusesBadHeaderLengths) {
  EXPECT_EQ(fault_of(""), Fault::TooShort);
  EXPECT_EQ(fault_of("1234567"), Fault::TooShort);
  EXPECT_EQ(fault_of(with_length(uint64_t{1} << 63, "{}")), Fault::HeaderTooLarge);
  EXPECT_EQ(fault_of(with_length(~uint64_t{0}, "{}")), Fault::HeaderTooLarge);
  EXPECT_EQ(fault_of(with_length(100'000'001, "{}")), Fault::HeaderTooLarge);
  EXPECT_EQ(fault_of(with_length(100'000'000, "{}")), Fault::HeaderBeyondFile);
  EXPECT_EQ(fault_of(with_length(3, "{}")), Fault::HeaderBeyondFile);
  EXPECT_EQ(fault_of(with_length(0, "")), Fault::HeaderStart);
}

TEST(Safetensors, RefusesBadHeaders) {
  EXPECT_EQ(fault_of(file_of(" {}")), Fault::HeaderStart);
  EXPECT_EQ(fault_of(file_of("\xef\xbb\xbf{}")), Fault::HeaderStart);
  EXPECT_EQ(fault_of(file_of("[]")), Fault::HeaderStart);
  for (const char* text :
       {"{", "{]", "{} {}", "{}x", "{\"a\"}", "{\"__metadata__\":{},}", "{\"\xff\":1}", "{'a':1}"}) {
    EXPECT_EQ(fault_of(file_of(text)), Fault::HeaderSyntax) << text;
  }
  EXPECT_EQ(fault_of(file_of(std::string_view("{}\0\0", 4))), Fault::HeaderSyntax);
  std::string deep = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":)";
  EXPECT_EQ(fault_of(file_of(deep + std::string(64, '[') + std::string(64, ']') + "}}", 1)), std::nullopt);
  EXPECT_EQ(fault_of(file_of(deep + std::string(100'000, '['), 1)), Fault::HeaderSyntax);
  EXPECT_EQ(fault_of(file_of(deep + std::string(65, '[') + std::string(65, ']') + "}}", 1)),
            Fault::HeaderSyntax);
}

TEST(Safetensors, RefusesOtherForms) {
  for (const char* entry : {
           "1",
           "[]",
           "null",
           "\"x\"",
           "{}",
           R"({"shape":[1],"data_offsets":[0,1]})",
           R"({"dtype":"U8","data_offsets":[0,1]})",
           R"({"dtype":"U8","shape":[1]})",
           R"({"dtype":8,"shape":[1],"data_offsets":[0,1]})",
           R"({"dtype":"U8","shape":1,"data_offsets":[0,1]})",
           R"({"dtype":"U8","shape":"[1]","data_offsets":[0,1]})",
           R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})",
           R"({"dtype":"U8","shape":[-0],"data_offsets":[0,1]})",
           R"({"dtype":"U8","shape":[1.0],"data_offsets":[0,1]})",
           R"({"dtype":"U8","shape":[1e0],"data_offsets":[0,1]})",
           R"({"dtype":"U8","shape":[true],"data_offsets":[0,1]})",
           R"({"dtype":"U8","shape":["1"],"data_offsets":[0,1]})",
           R"({"dtype":"U8","shape":[[1]],"data_offsets":[0,1]})",
           R"({"dtype":"U8","shape":{"0":1},"data_offsets":[0,1]})",
           R"({"dtype":"U8","shape":[1],"data_offsets":[0]})",
           R"({"dtype":"U8","shape":[1],"data_offsets":[]})",
           R"({"dtype":"U8","shape":[1],"data_offsets":[0,1,2]})",
           R"({"dtype":"U8","shape":[1],"data_offsets":[0,-1]})",
           R"({"dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551616]})",
       }) {
    EXPECT_EQ(fault_of(file_of(fmt::format("{{\"a\":{}}}", entry), 1)), Fault::HeaderSchema) << entry;
  }
  for (const char* metadata :
       {"1", "[]", "null", "{\"a\":1}", "{\"a\":null}", "{\"a\":{}}", "{\"a\":[\"b\"]}"}) {
    EXPECT_EQ(fault_of(file_of(fmt::format("{{\"__metadata__\":{}}}", metadata))), Fault::HeaderSchema)
        << metadata;
  }
  EXPECT_EQ(fault_of(file_of(braces({tensor("a", "F33", "[1]", 0, 4)}), 4)), Fault::UnknownDType);
}

TEST(Safetensors, RefusesDuplicateKeys) {
  const std::string a = tensor("a", "U8", "[1]", 0, 1);
  EXPECT_EQ(fault_of(file_of(braces({a, a}), 1)), Fault::DuplicateKey);
  EXPECT_EQ(
      fault_of(file_of(braces({a, tensor("b", "U8", "[1]", 1, 2), tensor("\\u0061", "U8", "[1]", 2, 3)}), 3)),
      Fault::DuplicateKey);
  EXPECT_EQ(fault_of(file_of(R"({"__metadata__":{},"__metadata__":{}})")), Fault::DuplicateKey);
  EXPECT_EQ(fault_of(file_of(R"({"__metadata__":{"a":"1","a":"1"}})")), Fault::DuplicateKey);
  for (const char* twice : {R"("dtype":"U8")", R"("shape":[1])", R"("data_offsets":[0,1])"}) {
    const std::string entry = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],)";
    EXPECT_EQ(fault_of(file_of(entry + twice + "}}", 1)), Fault::DuplicateKey) << twice;
  }
}

TEST(Safetensors, RefusesBadOffsets) {
  const auto two = [](uint64_t b1, uint64_t e1, uint64_t b2, uint64_t e2, size_t data) {
    return fault_of(file_of(braces({tensor("a", "U8", fmt::format("[{}]", e1 - b1), b1, e1),
                                    tensor("b", "U8", fmt::format("[{}]", e2 - b2), b2, e2)}),
                            data));
  };
  EXPECT_EQ(two(0, 4, 4, 8, 8), std::nullopt);
  EXPECT_EQ(two(4, 8, 0, 4, 8), std::nullopt);
  EXPECT_EQ(two(0, 4, 5, 8, 8), Fault::OffsetsHole);
  EXPECT_EQ(two(1, 4, 4, 8, 8), Fault::OffsetsHole);
  EXPECT_EQ(two(0, 4, 3, 8, 8), Fault::OffsetsOverlap);
  EXPECT_EQ(two(0, 4, 0, 4, 4), Fault::OffsetsOverlap);
  EXPECT_EQ(two(0, 4, 2, 2, 4), Fault::OffsetsOverlap);
  EXPECT_EQ(two(0, 4, 4, 8, 9), Fault::TrailingBytes);
  EXPECT_EQ(two(0, 4, 4, 8, 7), Fault::DataBeyondFile);
  EXPECT_EQ(fault_of(file_of("{}", 1)), Fault::TrailingBytes);
  EXPECT_EQ(fault_of(file_of(braces({tensor("a", "U8", "[1]", 0, 0)}))), Fault::SizeMismatch);
  EXPECT_EQ(fault_of(file_of(braces({tensor("a", "F32", "[2,2]", 0, 4)}), 4)), Fault::SizeMismatch);
  EXPECT_EQ(fault_of(file_of(braces({tensor("a", "U8", "[]", 0, 0)}))), Fault::SizeMismatch);
  EXPECT_EQ(fault_of(file_of(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[4,0]}})", 4)),
            Fault::OffsetsReversed);
  EXPECT_EQ(fault_of(file_of(braces({tensor("a", "F4", "[3]", 0, 1)}), 1)), Fault::PartialByte);
  EXPECT_EQ(fault_of(file_of(braces({tensor("a", "U8", "[18446744073709551615]", 0, ~uint64_t{0})}))),
            Fault::ShapeOverflow);
}

TEST(Safetensors, RefusesShapesThatOverflow) {
  for (const char* shape : {"[2,9223372036854775807]", "[18446744073709551614]", "[4294967296,4294967296]",
                            "[4294967296,4294967296,0]", "[1152921504606846976]"}) {
    EXPECT_EQ(fault_of(file_of(braces({tensor("a", "F32", shape, 0, 16)}), 16)), Fault::ShapeOverflow)
        << shape;
  }
  std::string ones = "1";
  for (int i = 1; i < 64; ++i) ones += ",1";
  EXPECT_EQ(fault_of(file_of(braces({tensor("a", "U8", "[" + ones + "]", 0, 1)}), 1)), std::nullopt);
  EXPECT_EQ(fault_of(file_of(braces({tensor("a", "U8", "[" + ones + ",1]", 0, 1)}), 1)),
            Fault::ShapeOverflow);
}

TEST(Safetensors, MessagesNameTheTensorAndTheValues) {
  const std::string file = file_of(braces({tensor("layer.0\\n", "F32", "[2,2]", 0, 4)}), 4);
  try {
    SafetensorsFile::parse(bytes_of(file), "m.safetensors");
    FAIL();
  } catch (const SafetensorsError& error) {
    EXPECT_STREQ(
        error.what(),
        "[m.safetensors] tensor \"layer.0?\": shape and dtype F32 need 16 bytes, data_offsets [0, 4] give 4");
  }
}

int64_t peak_rss_bytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

TEST(Safetensors, HundredThousandTensorsAreFine) {
  const int count = 100'000;
  std::string good = "{", overlapping = "{";
  for (int i = 0; i < count; ++i) {
    const auto begin = static_cast<uint64_t>(i);
    if (i) good += ',', overlapping += ',';
    good +=
        tensor(fmt::format("model.layers.{}.weight", (i * 7919) % count), "U8", "[1,1]", begin, begin + 1);
    overlapping += tensor(fmt::format("t{}", i), "U8", "[50000]", begin, begin + 50'000);
  }
  const std::string good_file = file_of(good + "}", count), bad_file = file_of(overlapping + "}", 150'000);
  [[maybe_unused]] const int64_t before = peak_rss_bytes();
  const auto parsed = SafetensorsFile::parse(bytes_of(good_file), "good");
  EXPECT_EQ(fault_of(bad_file), Fault::OffsetsOverlap);
#ifndef OCTET_SANITIZED  // sanitizers keep freed memory
  // Twice the header and 16 MB: entries, tables, and what the allocator keeps.
  EXPECT_LT(peak_rss_bytes() - before,
            static_cast<int64_t>(2 * (good_file.size() + bad_file.size())) + (16 << 20));
#endif
  EXPECT_EQ(parsed.tensors().size(), 100'000u);
  EXPECT_EQ(parsed.at("model.layers.0.weight").bytes.data(), parsed.tensors().front().bytes.data());
  for (int i = 0; i < count; i += 997) EXPECT_TRUE(parsed.find(fmt::format("model.layers.{}.weight", i)));
}

TEST(Safetensors, RefusesWhatIsNoRegularFile) {
  const TempDir dir;
  EXPECT_THROW(SafetensorsFile::open(posix_env(), dir.path()), Error);
  EXPECT_THROW(SafetensorsFile::open(posix_env(), dir / "absent"), IoError);
  EXPECT_THROW(SafetensorsFile::open(posix_env(), "/dev/zero"), Error);
  write_file(dir / "empty", "");
  EXPECT_EQ(thrown_by([&] { SafetensorsFile::open(posix_env(), dir / "empty"); }), Fault::TooShort);
}

// Whatever the bytes: a typed error, or tensors that cover the data exactly.
void check_any_input(const std::string& file) {
  try {
    const auto parsed = SafetensorsFile::parse(bytes_of(file), "mutated");
    size_t total = 0;
    for (const SafeTensor& t : parsed.tensors()) {
      ASSERT_EQ(parsed.find(t.name), &t);
      ASSERT_GE(t.bytes.data(), bytes_of(file).data());
      ASSERT_LE(t.bytes.data() + t.bytes.size(), bytes_of(file).data() + file.size());
      ASSERT_EQ(std::cmp_equal(t.count() * safe_dtype_bits(t.dtype) / 8, t.bytes.size()), true);
      total += t.bytes.size();
    }
    uint64_t header = 0;
    std::memcpy(&header, file.data(), 8);
    ASSERT_EQ(total + header + 8, file.size());
  } catch (const SafetensorsError&) {
  }
}

TEST(Safetensors, MutatedFilesAreRefusedOrSound) {
  const std::string seed_file = write_all({{"a", SafeDType::F32, {2, 3}},
                                           {"b", SafeDType::BF16, {}},
                                           {"c", SafeDType::U8, {0}},
                                           {"d", SafeDType::F8_E4M3, {9}}},
                                          {{"format", "pt"}});
  const char interesting[] = "{}[]\",:0123456789-+.eEtfn\\u \0\xff";
  const Philox random(20240601);
  uint64_t draw = 0;
  const auto below = [&](size_t bound) { return static_cast<size_t>(random.below(draw++, bound)); };
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string file = seed_file;
    for (size_t edits = 1 + below(4); edits-- > 0 && !file.empty();) {
      const size_t at = below(file.size());
      switch (below(6)) {
        case 0:
          file[at] = static_cast<char>(below(256));
          break;
        case 1:
          file[at] = static_cast<char>(file[at] ^ (1 << below(8)));
          break;
        case 2:
          file.erase(at, 1 + below(8));
          break;
        case 3:
          file.insert(at, 1, interesting[below(sizeof interesting - 1)]);
          break;
        case 4:
          file.insert(at, file.substr(below(file.size()), below(60)));
          break;
        default:
          file[at] = interesting[below(sizeof interesting - 1)];
      }
    }
    // Half of them with a header length that fits again, so that the rules behind it are reached.
    if (round % 2 && file.size() > 40) {
      const uint64_t header = file.rfind('}') == file.npos ? 0 : file.rfind('}') + 1 - 8;
      std::memcpy(file.data(), &header, 8);
    }
    check_any_input(file);
    if (HasFatalFailure()) FAIL() << "round " << round;
    accepted += !fault_of(file).has_value();
  }
  EXPECT_GT(accepted, 100);  // the mutations are not all of one kind
}

}  // namespace
}  // namespace octet
