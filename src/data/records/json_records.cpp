#include "base/json.h"

#include "base/text.h"
#include "data/records/record_reader.h"

namespace octet {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

// `text` begins at `line` and `column` of the file.
void parse_object(Record& record, std::string_view text, const std::string& path, int64_t line,
                  int64_t column, const RecordLimits& limits) {
  const size_t bad = find_invalid_utf8(text);
  if (bad != text.npos) {
    const std::string_view before = text.substr(0, bad);
    const size_t line_start = before.rfind('\n');
    const auto lines = std::count(before.begin(), before.end(), '\n');
    const auto in_line =
        static_cast<int64_t>(lines == 0 ? bad : bad - line_start - 1) + (lines == 0 ? column : 1);
    fail_record(SkipReason::InvalidUtf8, "[{}] line {}, byte {}: invalid UTF-8", path, line + lines, in_line);
  }
  try {
    record.value =
        parse_json(text, path, {.max_values = limits.max_values, .first_line = line, .first_column = column});
  } catch (const Error& error) {
    throw RecordError(SkipReason::BrokenRecord, error.what());
  }
  record.json_text = text;
  if (!record.value.is_object()) {
    fail_record(SkipReason::BrokenRecord, "[{}] line {}: {} {}, expected an object", path, line,
                record.value.type_name(), printable(record.value.dump(-1, ' ', true).substr(0, 60)));
  }
}

class JsonLines final : public RecordReader {
 public:
  JsonLines(std::unique_ptr<ByteStream> stream, const RecordLimits& limits)
      : bytes_(std::move(stream), limits.window), limits_(limits) {
    if (bytes_.starts_with(kByteOrderMark)) bytes_.consume(kByteOrderMark.size());
  }

  bool next(Record& record) override {
    while (read_line()) {
      const size_t begin = line_.find_first_not_of(kSpaces);
      if (begin == line_.npos) continue;
      const size_t end = line_.find_last_not_of(kSpaces) + 1;
      parse_object(record, std::string_view(line_).substr(begin, end - begin), bytes_.stream().path(),
                   number_, static_cast<int64_t>(begin) + 1, limits_);
      return true;
    }
    return false;
  }

  std::string place() const override { return fmt::format("{}] line {}", bytes_.stream().path(), number_); }
  int64_t bytes_read() const override { return bytes_.stream().file_position(); }

 private:
  bool read_line() {
    line_.clear();
    bool is_too_long = false;
    std::string_view window = bytes_.window();
    if (window.empty()) return false;
    ++number_;
    for (; !window.empty(); window = bytes_.window()) {
      const size_t end = window.find('\n');
      const std::string_view part = window.substr(0, end);
      is_too_long = is_too_long || line_.size() + part.size() > limits_.max_record;
      if (!is_too_long) line_ += part;
      bytes_.consume(end == window.npos ? window.size() : end + 1);
      if (end != window.npos || (is_too_long && limits_.ends_at_bad)) break;
    }
    if (is_too_long) {
      fail_record(SkipReason::BrokenRecord, "[{}] line {}: more than {} bytes, expected one object per line",
                  bytes_.stream().path(), number_, limits_.max_record);
    }
    return true;
  }

  BufferedBytes bytes_;
  RecordLimits limits_;
  std::string line_;
  int64_t number_ = 0;
};

class JsonRecords final : public RecordReader {
 public:
  JsonRecords(std::unique_ptr<ByteStream> stream, const RecordLimits& limits)
      : bytes_(std::move(stream), limits.window), limits_(limits) {
    if (bytes_.starts_with(kByteOrderMark)) bytes_.consume(kByteOrderMark.size());
  }

  bool next(Record& record) override {
    if (is_done_) return false;
    char c = skip_spaces();
    if (!is_started_) {
      is_started_ = true;
      is_array_ = c == '[';
      if (is_array_) take(1), c = skip_spaces();
    } else if (is_array_ && has_value_ && c == ',') {
      take(1);
      c = skip_spaces();
      if (c == ']') fail_here("a comma before the ']'");
    } else if (is_array_ && has_value_ && c != ']' && c != '\0') {
      fail_here("expected ',' or ']' after an element");
    }
    if (is_array_ ? c == ']' : c == '\0') {
      if (is_array_) {
        take(1);
        if (skip_spaces() != '\0') fail_here("more text after the array");
      }
      is_done_ = true;
      return false;
    }
    if (c == '\0') fail_here("the file ends inside the array, expected ']'");
    first_line_ = line_;
    const int64_t column = bytes_.position() - line_start_ + 1;
    read_value();
    has_value_ = true;
    parse_object(record, value_, bytes_.stream().path(), first_line_, column, limits_);
    return true;
  }

  std::string place() const override {
    return fmt::format("{}] line {}", bytes_.stream().path(), first_line_);
  }
  int64_t bytes_read() const override { return bytes_.stream().file_position(); }

 private:
  // These errors cannot be skipped, because where the next element begins is unknown.
  [[noreturn]] void fail_here(std::string_view what) {
    fail("[{}] line {}, column {}: {}", bytes_.stream().path(), line_, bytes_.position() - line_start_ + 1,
         what);
  }

  void take(size_t count) {
    const std::string_view taken = bytes_.window().substr(0, count);
    for (size_t at = taken.find('\n'); at != taken.npos; at = taken.find('\n', at + 1)) {
      ++line_;
      line_start_ = bytes_.position() + static_cast<int64_t>(at) + 1;
    }
    bytes_.consume(count);
  }

  // The first character that is not a space. NUL at the end of the file (and for a NUL byte, which is not JSON).
  char skip_spaces() {
    for (std::string_view window = bytes_.window(); !window.empty(); window = bytes_.window()) {
      const size_t end = std::min(window.find_first_not_of(kSpaces), window.size());
      if (end < window.size() && window[end] == '\0') fail_here("NUL byte, expected text");
      take(end);
      if (end < window.size()) return bytes_.window()[0];
    }
    return '\0';
  }

  // The value's text, up to its closing bracket. This only looks for the end, without recursion; the parser decides
  // whether it is JSON.
  void read_value() {
    value_.clear();
    int64_t depth = 0;
    bool in_string = false, is_escaped = false, is_scalar = false;
    for (std::string_view window = bytes_.window(); !window.empty(); window = bytes_.window()) {
      size_t i = 0;
      bool is_end = false;
      for (; i < window.size() && !is_end; ++i) {
        const char c = window[i];
        if (is_escaped) {
          is_escaped = false;
        } else if (in_string) {
          is_escaped = c == '\\';
          if (c == '"') in_string = false, is_end = depth == 0;
        } else if (c == '"') {
          in_string = true;
        } else if (c == '{' || c == '[') {
          ++depth;
        } else if (c == '}' || c == ']') {
          if (depth == 0) {
            if (!is_scalar) fail_here(fmt::format("'{}', expected a value", c));
            is_end = true;
            break;
          }
          is_end = --depth == 0;
        } else if (depth == 0) {
          if (c == ',' || is_space(c)) {
            if (!is_scalar && c == ',') fail_here("',', expected a value");
            is_end = true;
            break;
          }
          is_scalar = true;
        }
      }
      value_ += window.substr(0, i);
      take(i);
      if (value_.size() > limits_.max_record) {
        fail(
            "[{}] line {}: an element of more than {} bytes, expected objects; is a quote or bracket "
            "missing?",
            bytes_.stream().path(), first_line_, limits_.max_record);
      }
      if (is_end) return;
    }
    if (depth > 0 || in_string) {
      fail("[{}] line {}: the file ends inside the value that begins here", bytes_.stream().path(),
           first_line_);
    }
  }

  BufferedBytes bytes_;
  RecordLimits limits_;
  std::string value_;
  bool is_started_ = false, is_array_ = false, has_value_ = false, is_done_ = false;
  int64_t line_ = 1, line_start_ = 0, first_line_ = 1;
};

}  // namespace

std::unique_ptr<RecordReader> json_lines(std::unique_ptr<ByteStream> stream, const RecordLimits& limits) {
  return std::make_unique<JsonLines>(std::move(stream), limits);
}

std::unique_ptr<RecordReader> json_records(std::unique_ptr<ByteStream> stream, const RecordLimits& limits) {
  return std::make_unique<JsonRecords>(std::move(stream), limits);
}

}  // namespace octet
