// Whatever the bytes: as JSONL, JSON, CSV and text they give errors that can be stepped over, or records of
// well-formed UTF-8; CSV records come back when they are written again, and a text is the sum of its parts.

#include <cstdlib>

#include "data/chat/conversation.h"
#include "data/records/record_reader.h"

namespace {

using namespace octet;
using nlohmann::json;

void expect(bool condition) {
  if (!condition) std::abort();
}

void expect_utf8(const json& value) {
  if (value.is_string())
    expect(find_invalid_utf8(value.get_ref<const std::string&>()) == std::string_view::npos);
  for (const json& item : value) {
    if (value.is_structured()) expect_utf8(item);
  }
}

void check_examples(const Record& read) {
  const json& record = read.value;
  try {
    const FormatColumns columns = choose_format({}, columns_of(record), "fuzz]");
    if (columns.format == ExampleFormat::Text) {
      text_of(record, columns, "fuzz]");
    } else {
      expect(!conversation_of(record, columns, "fuzz]", read.json_text).messages.empty());
    }
  } catch (const Error&) {
  }
}

// The records that are good; every bad one must be stepped over or end the file.
template <class Open>
std::vector<Record> read_all(Open&& open, size_t size) {
  std::vector<Record> records;
  try {
    const std::unique_ptr<RecordReader> reader = open();
    for (size_t steps = 0;; ++steps) {
      expect(steps <= size + 1);  // each step takes at least a byte
      try {
        Record record;
        if (!reader->next(record)) break;
        expect(record.value.is_object());
        expect_utf8(record.value);
        check_examples(record);
        records.push_back(std::move(record));
      } catch (const RecordError&) {
      }
    }
  } catch (const RecordError&) {  // of a CSV file's header
  } catch (const Error&) {
  }
  return records;
}

void check_csv(const std::vector<Record>& records, size_t size) {
  if (records.empty()) return;
  const auto quoted = [](const std::string& text) {
    std::string result = "\"";
    for (const char c : text) result += c == '"' ? std::string("\"\"") : std::string(1, c);
    return result + "\"";
  };
  std::string text, line;
  for (const std::string& column : columns_of(records[0].value))
    line += (line.empty() ? "" : ",") + quoted(column);
  text = line + "\n";
  for (const Record& record : records) {
    line.clear();
    for (const json& field : record.value)
      line += (line.empty() ? "" : ",") + quoted(field.get<std::string>());
    text += line + "\r\n";
  }
  const auto again =
      read_all([&] { return csv_records(memory_byte_stream(text, "again"), ','); }, text.size() + size);
  expect(again.size() == records.size());
  for (size_t i = 0; i < again.size(); ++i) expect(again[i].value == records[i].value);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const RecordLimits limits = {.max_record = 2000, .max_text = 100, .window = 16};
  const auto stream = [&] { return memory_byte_stream(text, "fuzz"); };
  read_all([&] { return json_lines(stream(), limits); }, size);
  read_all([&] { return json_records(stream(), limits); }, size);
  check_csv(read_all([&] { return csv_records(stream(), ',', limits); }, size), size);
  std::string whole;
  bool is_end = true;
  for (const Record& part : read_all([&] { return text_records(stream(), limits); }, size)) {
    if (is_end) expect(part.is_begin || find_invalid_utf8(text) != std::string_view::npos);
    is_end = part.is_end;
    whole += part.value["text"].get_ref<const std::string&>();
  }
  const bool is_one_text = text.find("<|endoftext|>") == text.npos && !text.starts_with("\xef\xbb\xbf") &&
                           find_invalid_utf8(text) == std::string_view::npos;
  if (is_one_text) expect(whole == text);
  return 0;
}
