#include "data/records/record_reader.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "temporary_folder.h"
#include "support/places.h"

namespace octet {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<json> all_of(RecordReader& reader) {
  std::vector<json> records;
  Record record;
  while (reader.next(record)) records.push_back(record.value);
  return records;
}

std::vector<json> lines(const std::string& text) {
  return all_of(*json_lines(memory_byte_stream(text, "f.jsonl")));
}
std::vector<json> elements(const std::string& text) {
  return all_of(*json_records(memory_byte_stream(text, "f.json")));
}
std::vector<json> rows(const std::string& text, char separator = ',') {
  return all_of(*csv_records(memory_byte_stream(text, "f.csv"), separator));
}

template <class F>
std::string error_of(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// What a reader gives when bad records are stepped over, and why they were.
std::pair<std::vector<json>, std::vector<SkipReason>> with_skips(RecordReader& reader) {
  std::pair<std::vector<json>, std::vector<SkipReason>> result;
  Record record;
  while (true) {
    try {
      if (!reader.next(record)) return result;
      result.first.push_back(record.value);
    } catch (const RecordError& error) {
      result.second.push_back(error.reason());
    }
  }
}

// Such as a JSON array of a terabyte that is named .jsonl.
TEST(JsonLines, AnEndlessLineEndsTheReadingAtTheLimit) {
  const std::string text = std::string(100'000, 'x') + "\n{\"a\":1}";
  const auto reader_with = [&](bool ends_at_bad) {
    return json_lines(memory_byte_stream(text, "f.jsonl"),
                      {.max_record = 1000, .window = 100, .ends_at_bad = ends_at_bad});
  };
  Record record;
  const auto reader = reader_with(true);
  EXPECT_THROW(reader->next(record), RecordError);
  EXPECT_LT(reader->bytes_read(), 2000);
  EXPECT_THAT(with_skips(*reader_with(false)).first, ElementsAre(json{{"a", 1}}));
}

TEST(RecordReading, StopsInsideALongRecord) {
  const TemporaryFolder folder;
  const std::string text(100'000, ' ');
  for (const char* name : {"f.jsonl", "f.json", "f.csv", "f.txt"}) {
    int asked = 0;
    const RecordLimits limits{.window = 100, .stop = [&] { return ++asked > 20; }};
    Record record;
    const auto read = [&] {
      while (open_records(folder.write(name, text), {}, limits)->next(record)) {
      }
    };
    EXPECT_THROW(read(), ReadingStopped) << name;
  }
}

TEST(JsonLines, ObjectsAndBlankLines) {
  EXPECT_THAT(lines("{\"a\":1}\n\n  \r\n{\"a\":2}\r\n{\"a\":\"\\u00e9\\ud83d\\ude00\"}"),
              ElementsAre(json{{"a", 1}}, json{{"a", 2}}, json{{"a", "é😀"}}));
  EXPECT_TRUE(lines("").empty());
  EXPECT_THAT(lines("\xef\xbb\xbf{\"a\":1}\n"), ElementsAre(json{{"a", 1}}));
}

TEST(JsonLines, ErrorsNameFileLineAndColumn) {
  EXPECT_THAT(error_of([] { lines("{\"a\":1}\n\n {\"a\":}\n"); }), HasSubstr("[f.jsonl] line 3, column 7: "));
  EXPECT_THAT(error_of([] { lines("{\"a\":1}\n[1]\n"); }),
              HasSubstr("[f.jsonl] line 2: array [1], expected an object"));
  EXPECT_THAT(error_of([] { lines("{\"a\":\"x\xff\"}\n"); }),
              HasSubstr("[f.jsonl] line 1, byte 8: invalid UTF-8"));
  EXPECT_THAT(error_of([] { lines("{\"a\":1}{\"b\":2}\n"); }), HasSubstr("line 1, column 8"));
  const std::string deep = "{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}\n";
  EXPECT_THAT(error_of([&] { lines(deep); }), HasSubstr("nested deeper than"));
}

TEST(JsonLines, GoesOnBehindABadLine) {
  const auto reader = json_lines(memory_byte_stream("{\"a\":1}\n{\n\xff\n{\"a\":2}\n\"x\"\n{\"a\":3}", "f"));
  const auto [records, reasons] = with_skips(*reader);
  EXPECT_THAT(records, ElementsAre(json{{"a", 1}}, json{{"a", 2}}, json{{"a", 3}}));
  EXPECT_THAT(reasons,
              ElementsAre(SkipReason::BrokenRecord, SkipReason::InvalidUtf8, SkipReason::BrokenRecord));
}

TEST(JsonLines, LineBeyondTheLimitIsSteppedOver) {
  const std::string text = "{\"a\":1}\n{\"a\":\"" + std::string(600000, 'x') + "\"}\n{\"a\":2}\n";
  const auto reader = json_lines(memory_byte_stream(text, "f"), {.max_record = 1000});
  const auto [records, reasons] = with_skips(*reader);
  EXPECT_THAT(records, ElementsAre(json{{"a", 1}}, json{{"a", 2}}));
  EXPECT_THAT(reasons, ElementsAre(SkipReason::BrokenRecord));
}

TEST(JsonRecords, ArraysAndSequences) {
  const json one = {{"a", "]},[{\"\\"}, {"b", {1, {{"c", nullptr}}}}};
  const json two = {{"a", "x"}};
  EXPECT_THAT(elements(json::array({one, two}).dump()), ElementsAre(one, two));
  EXPECT_THAT(elements(json::array({one, two}).dump(2)), ElementsAre(one, two));
  EXPECT_THAT(elements(one.dump(2) + "\n" + two.dump()), ElementsAre(one, two));
  EXPECT_TRUE(elements("").empty());
  EXPECT_TRUE(elements(" [ ] \n").empty());
}

TEST(JsonRecords, LongerThanAnyBuffer) {
  json list = json::array();
  for (int i = 0; i < 3000; ++i)
    list.push_back({{"i", i}, {"text", std::string(static_cast<size_t>(i % 700), '"')}});
  EXPECT_EQ(json(elements(list.dump(1))), list);
}

TEST(JsonRecords, ErrorsNameTheLineInTheFile) {
  EXPECT_THAT(error_of([] { elements("[\n  {\"a\": 1},\n  {\"a\": tru}\n]"); }),
              HasSubstr("[f.json] line 3, column 12: "));
  EXPECT_THAT(error_of([] { elements("[{\"a\":1} {\"a\":2}]"); }), HasSubstr("expected ',' or ']'"));
  EXPECT_THAT(error_of([] { elements("[{\"a\":1},]"); }), HasSubstr("a comma before the ']'"));
  EXPECT_THAT(error_of([] { elements("[{\"a\":1}"); }), HasSubstr("ends inside the array"));
  EXPECT_THAT(error_of([] { elements("[\n{\"a\":\"1]"); }),
              HasSubstr("line 2: the file ends inside the value"));
  EXPECT_THAT(error_of([] { elements("[{}] x"); }), HasSubstr("more text after the array"));
  EXPECT_THAT(error_of([] { elements("[,{}]"); }), HasSubstr("expected a value"));
  EXPECT_THAT(error_of([] { elements("[1, 2]"); }), HasSubstr("expected an object"));
  EXPECT_THAT(error_of([] { elements("[{\n\"a\": \"\xc3\"}]"); }),
              HasSubstr("line 2, byte 7: invalid UTF-8"));
  EXPECT_THAT(error_of([] { elements("[" + std::string(100000, '[')); }), HasSubstr("ends inside the value"));
  EXPECT_THAT(error_of([] { elements("[" + std::string(100000, '[') + std::string(100001, ']')); }),
              HasSubstr("nested deeper than"));
}

TEST(JsonRecords, GoesOnBehindABrokenElement) {
  const auto reader = json_records(memory_byte_stream("[{\"a\":1}, {\"a\":x}, nonsense, {\"a\":2}]", "f"));
  const auto [records, reasons] = with_skips(*reader);
  EXPECT_THAT(records, ElementsAre(json{{"a", 1}}, json{{"a", 2}}));
  EXPECT_EQ(reasons.size(), 2u);
}

TEST(Csv, QuotesNewlinesAndLineEnds) {
  EXPECT_THAT(rows("a,b\r\n1,\"two, \"\"2\"\"\r\nlines\"\r\n\r\n,\"\"\n3,4"),
              ElementsAre(json{{"a", "1"}, {"b", "two, \"2\"\r\nlines"}}, json{{"a", ""}, {"b", ""}},
                          json{{"a", "3"}, {"b", "4"}}));
  EXPECT_THAT(rows("a\tb\n1,0\t\"x\ty\"\n", '\t'), ElementsAre(json{{"a", "1,0"}, {"b", "x\ty"}}));
  EXPECT_THAT(rows("\xef\xbb\xbf"
                   "a\nit's 5\" wide\n"),
              ElementsAre(json{{"a", "it's 5\" wide"}}));
  EXPECT_TRUE(rows("").empty());
  EXPECT_TRUE(rows("a,b\n").empty());
}

TEST(Csv, Errors) {
  EXPECT_THAT(error_of([] { rows("a,b\n1,2\n\"x\ny\",2,3\n"); }),
              HasSubstr("[f.csv] line 3: 3 fields, expected 2 (columns: a, b)"));
  EXPECT_THAT(error_of([] { rows("a,b\n1,\"2\n3,4\n"); }),
              HasSubstr("line 2: the file ends inside a quoted field"));
  EXPECT_THAT(error_of([] { rows("a,b\n\"1\"x,2\n"); }),
              HasSubstr("line 2: 'x' after the closing quote of field 1"));
  EXPECT_THAT(error_of([] { rows("a,a\n1,2\n"); }), HasSubstr("column a appears twice"));
  EXPECT_THAT(error_of([] { rows("a,b\n1,\xff\n"); }),
              HasSubstr("line 2: invalid UTF-8 at byte 0 of column b"));
}

TEST(Csv, ABadHeaderIsOfTheWholeFile) {
  for (const char* text : {"\"a\"x,b\n1,2\n", "\"a\n1,2\n"}) {
    try {
      csv_records(memory_byte_stream(text, "f"), ',');
      FAIL() << text;
    } catch (const RecordError&) {
      FAIL() << "could be skipped: " << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("the header line"));
    }
  }
}

TEST(Csv, TooManyFieldsAreABadRecord) {
  EXPECT_THAT(error_of([] { rows("a,b\n" + std::string(70000, ',') + "\n"); }),
              HasSubstr("line 2: more than 65536 fields"));
  EXPECT_THAT(error_of([] { rows(std::string(70000, ',') + "\n"); }), HasSubstr("more than 65536 fields"));
}

TEST(JsonLines, TooManyValuesAreABadRecord) {
  const auto reader =
      json_lines(memory_byte_stream("{\"a\":[1,2,3,4]}\n{\"a\":[1]}\n", "f"), {.max_values = 5});
  const auto [records, reasons] = with_skips(*reader);
  EXPECT_THAT(records, ElementsAre(json{{"a", {1}}}));
  EXPECT_THAT(reasons, ElementsAre(SkipReason::BrokenRecord));
}

TEST(Csv, GoesOnBehindABadRecord) {
  const auto reader = csv_records(memory_byte_stream("a,b\n1\n\"1\"x,\"\n3,4\n", "f"), ',');
  const auto [records, reasons] = with_skips(*reader);
  EXPECT_THAT(records, ElementsAre(json{{"a", "3"}, {"b", "4"}}));
  EXPECT_EQ(reasons.size(), 2u);
}

TEST(Csv, WhatIsWrittenComesBack) {
  std::string text = "one,two\n";
  std::vector<json> expected;
  for (int i = 0; i < 20000; ++i) {
    std::string value, quoted;
    for (int k = 0; k < i % 37; ++k) value += "\",\n\r ab"[(i * 7 + k * k) % 7];
    for (const char c : value) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
    text += fmt::format("\"{}\",{}\n", quoted, i);
    expected.push_back({{"one", value}, {"two", std::to_string(i)}});
  }
  EXPECT_EQ(rows(text), expected);
}

TEST(TextRecords, DocumentsBetweenMarkers) {
  const auto texts = [](const std::string& text) {
    std::vector<std::string> all;
    for (const json& record : all_of(*text_records(memory_byte_stream(text, "f.txt"))))
      all.push_back(record["text"]);
    return all;
  };
  EXPECT_THAT(texts("one\ntwo"), ElementsAre("one\ntwo"));
  EXPECT_THAT(texts("one<|endoftext|>\ntwo<|endoftext|><|endoftext|>\n\nthree\n<|endoftext|>\n"),
              ElementsAre("one", "two", "\nthree\n"));
  EXPECT_TRUE(texts("").empty());
  EXPECT_THAT(error_of([&] { texts("abc<|endoftext|>\nd\xe2\x82"); }),
              HasSubstr("[f.txt] invalid UTF-8 at byte 18"));
  std::string wide;
  for (int i = 0; i < 20; ++i) wide += std::string("a\0", 2);
  EXPECT_THAT(error_of([&] { texts(wide); }),
              AllOf(HasSubstr("[f.txt] 20 of 40 bytes from byte 0 on are NUL"), HasSubstr("-f UTF-16LE")));
  EXPECT_THAT(error_of([&] { texts("\xff\xfe" + wide); }), HasSubstr("[f.txt] is UTF-16"));
  // A stray one does no harm, also in a short document.
  EXPECT_EQ(texts(std::string("ab\0<|endoftext|>c", 17)).at(0).size(), 3u);
}

TEST(TextRecords, LongTextComesInPartsThatAreTheWhole) {
  std::string text;
  for (int i = 0; i < 100000; ++i) text += fmt::format("line {}é\n{}", i, i % 3 == 0 ? "  " : "");
  const auto reader = text_records(memory_byte_stream(text + "<|endoftext|>short", "f"), {.max_text = 5000});
  Record record;
  std::string whole;
  int parts = 0;
  while (reader->next(record)) {
    const std::string part = record.value["text"];
    EXPECT_LE(part.size(), 5000u);
    EXPECT_EQ(record.is_begin, parts == 0) << parts;
    whole += part;
    ++parts;
    if (record.is_end) break;
    EXPECT_TRUE(part.ends_with('\n')) << part;
  }
  EXPECT_EQ(whole, text);
  ASSERT_TRUE(reader->next(record));
  EXPECT_TRUE(record.is_begin && record.is_end);
  EXPECT_EQ(record.value["text"], "short");
  EXPECT_FALSE(reader->next(record));
  // Without any line to cut at: between two characters.
  std::string line;
  for (int i = 0; i < 5000; ++i) line += "é";
  const auto cut = text_records(memory_byte_stream(line, "f"), {.max_text = 1001});
  std::string again;
  for (const json& part : all_of(*cut)) again += part["text"].get<std::string>();
  EXPECT_EQ(again, line);
}

TEST(TextRecords, AMarkerAcrossTheWindowsEndIsFound) {
  const std::string marker = "<|endoftext|>", first(95, 'a');
  for (size_t window = 90; window < 120; ++window) {  // the marker is cut by it at every place
    const auto reader =
        text_records(memory_byte_stream(first + marker + "second", "f"), {.max_text = 98, .window = window});
    EXPECT_THAT(all_of(*reader), ElementsAre(json{{"text", first}}, json{{"text", "second"}})) << window;
  }
}

TEST(FileKinds, ByExtension) {
  EXPECT_EQ(file_kind("a/b.jsonl.gz"), FileKind::JsonLines);
  EXPECT_EQ(file_kind("b.JSON"), FileKind::Json);
  EXPECT_EQ(file_kind("b.txt.zst"), FileKind::Text);
  EXPECT_EQ(file_kind("b.tsv"), FileKind::Tsv);
  EXPECT_EQ(file_kind("b.parquet"), FileKind::Parquet);
  EXPECT_EQ(file_kind("b.bin"), std::nullopt);
  EXPECT_EQ(file_kind("b.gz"), std::nullopt);
}

// Files written by gzip, zstd and pyarrow: tests/data/files/make_files.py.
class StoredFiles : public ::testing::Test {
 protected:
  static std::string stored(const std::string& name) {
    return (std::filesystem::path(test::source_path("")) / "tests/data/files" / name).string();
  }
  static std::string bytes_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Whether the error is only that the library was not built in.
  static bool is_missing(const std::string& error) { return error.find("was built without") != error.npos; }
  TemporaryFolder folder_;
};

TEST_F(StoredFiles, CompressedFilesReadAsPlainOnes) {
  int read = 0;
  for (const char* name :
       {"lines.jsonl.gz", "lines.jsonl.zst", "two_members.jsonl.gz", "two_frames.jsonl.zst"}) {
    std::vector<json> records;
    const std::string error = error_of([&] { records = all_of(*open_records(stored(name))); });
    if (is_missing(error)) continue;
    ++read;
    ASSERT_EQ(error, "no error") << name;
    ASSERT_EQ(records.size(), 2000u) << name;
    for (int i = 0; i < 2000; ++i) EXPECT_EQ(records[static_cast<size_t>(i)]["i"], i);
  }
  if (read == 0) GTEST_SKIP() << "built without zlib and zstd";
}

TEST_F(StoredFiles, ANameOfACompressedFileIsAPromise) {
  for (const char* name : {"a.jsonl.gz", "a.jsonl.zst", "a.jsonl.ZSTD"}) {
    for (const char* bytes : {"", "\x1f", "{}\n"}) {
      EXPECT_THAT(error_of([&] { open_records(folder_.write(name, bytes)); }), HasSubstr("truncated or not"))
          << name << " " << bytes;
    }
  }
  // A frame of the user's own may stand in front.
  const std::string skippable("\x5a\x2a\x4d\x18\x03\0\0\0abc", 11);
  const std::string path = folder_.write("skip.jsonl.zst", skippable + bytes_of(stored("lines.jsonl.zst")));
  std::vector<json> records;
  const std::string error = error_of([&] { records = all_of(*open_records(path)); });
  if (is_missing(error)) GTEST_SKIP() << "built without zstd";
  EXPECT_EQ(error, "no error");
  EXPECT_EQ(records.size(), 2000u);
}

TEST_F(StoredFiles, TruncatedAndDamagedOnesAreErrors) {
  for (const char* name : {"lines.jsonl.gz", "lines.jsonl.zst"}) {
    const std::string bytes = bytes_of(stored(name));
    for (const size_t size : {bytes.size() - 1, bytes.size() - 4, bytes.size() / 2, size_t{20}}) {
      const std::string path = folder_.write("cut.jsonl", bytes.substr(0, size));
      const std::string error = error_of([&] { all_of(*open_records(path)); });
      EXPECT_TRUE(is_missing(error) || error.find("truncated") != error.npos)
          << name << " " << size << ": " << error;
    }
    std::string damaged = bytes;
    damaged[bytes.size() / 2] = static_cast<char>(damaged[bytes.size() / 2] ^ 0x55);
    const std::string path = folder_.write("bad.jsonl", damaged);
    EXPECT_NE(error_of([&] { all_of(*open_records(path)); }), "no error") << name;
  }
  const std::string xz = folder_.write("x.jsonl", std::string("\xfd"
                                                              "7zXZ\0abc",
                                                              9));
  EXPECT_THAT(error_of([&] { open_records(xz); }),
              HasSubstr("compressed with xz, expected gzip, zstd or none"));
}

TEST_F(StoredFiles, Parquet) {
  if (!has_parquet()) {
    EXPECT_THAT(error_of([&] { open_records(stored("chat.parquet")); }), HasSubstr("libparquet-dev"));
    GTEST_SKIP() << "built without Parquet";
  }
  const std::vector<json> records = all_of(*open_records(stored("chat.parquet")));
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(
      records[0]["messages"],
      json::parse(R"([{"content": "Hi", "role": "user"}, {"content": "Hello é😀", "role": "assistant"}])"));
  EXPECT_EQ(records[1]["messages"].size(), 0u);
  EXPECT_TRUE(records[2]["messages"].is_null());
  EXPECT_EQ(records[0]["score"], 0.5);
  EXPECT_EQ(records[0]["kind"], "a");  // dictionary-encoded
  EXPECT_EQ(records[1]["id"], 1);
  // Only the columns asked for are read.
  std::vector<std::string> seen;
  const auto choose = [&](const std::vector<std::string>& columns) {
    seen = columns;
    return std::vector<std::string>{"messages"};
  };
  Record record;
  ASSERT_TRUE(open_records(stored("chat.parquet"), choose)->next(record));
  EXPECT_THAT(seen, ElementsAre("id", "kind", "score", "messages"));
  EXPECT_THAT(columns_of(record.value), ElementsAre("messages"));
}

TEST_F(StoredFiles, ParquetTypes) {
  if (!has_parquet()) GTEST_SKIP() << "built without Parquet";
  const std::vector<json> records = all_of(*open_records(stored("types.parquet")));
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1]["large"], "two é");
  EXPECT_EQ(records[0]["bytes"], "three");
  EXPECT_EQ(records[0]["small"], -3);
  EXPECT_EQ(records[0]["large_list"], json::parse(R"([{"content": "Hi", "role": "user"}])"));
  EXPECT_EQ(records[1]["pair"], json({3, 4}));
  EXPECT_EQ(records[0]["day"], (json{{"date32[day]", "1970-01-01"}}));  // no text that would be trained on
  const auto reader = open_records(stored("types.parquet"), {}, {.max_record = 4});
  const auto [short_ones, reasons] = with_skips(*reader);
  EXPECT_TRUE(short_ones.empty());
  EXPECT_THAT(reasons, ElementsAre(SkipReason::BadValue, SkipReason::BadValue));
}

TEST_F(StoredFiles, DamagedParquetIsAnError) {
  if (!has_parquet()) GTEST_SKIP() << "built without Parquet";
  const std::string bytes = bytes_of(stored("rows.parquet"));
  EXPECT_EQ(all_of(*open_records(stored("rows.parquet"))).size(), 1000u);
  for (const size_t size : {size_t{0}, size_t{5}, bytes.size() / 2, bytes.size() - 1}) {
    const std::string path = folder_.write("cut.parquet", bytes.substr(0, size));
    EXPECT_THAT(error_of([&] { all_of(*open_records(path)); }), HasSubstr(path)) << size;
  }
  for (size_t at = 4; at < bytes.size();
       at += 97) {  // never a crash; the values' own bytes may change unseen
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0xff);
    const std::string path = folder_.write("bad.parquet", damaged);
    error_of([&] { all_of(*open_records(path)); });
  }
}

}  // namespace
}  // namespace octet
