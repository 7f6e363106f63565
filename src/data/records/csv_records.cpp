#include <algorithm>
#include <set>

#include "base/text.h"
#include "data/records/record_reader.h"

namespace octet {
namespace {

constexpr size_t kMaxFields = 65536;  // of a record

class CsvRecords final : public RecordReader {
 public:
  CsvRecords(std::unique_ptr<ByteStream> stream, char separator, const RecordLimits& limits)
      : bytes_(std::move(stream), limits.window), separator_(separator), limits_(limits) {
    if (bytes_.starts_with(kByteOrderMark)) bytes_.consume(kByteOrderMark.size());
    try {
      if (!read_fields()) return;  // an empty file has no records
    } catch (const RecordError& error) {
      // Not a bad record that could be skipped: without its header the whole file has no meaning.
      fail("{} (the header line)", error.what());
    }
    columns_ = fields_;
    std::set<std::string_view> names;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (find_invalid_utf8(columns_[i]) != std::string_view::npos) {
        fail("[{}] line 1: invalid UTF-8 in the name of column {}", path(), i + 1);
      }
      require(names.insert(columns_[i]).second,
              "[{}] line 1: column {} appears twice, expected different names", path(),
              printable(columns_[i]));
    }
  }

  bool next(Record& record) override {
    while (read_fields()) {
      // A blank line is not a record, as in most readers. A quoted empty field ("") is one.
      if (fields_.size() == 1 && fields_[0].empty() && !was_quoted_) continue;
      if (fields_.size() != columns_.size()) {
        fail_record(SkipReason::BrokenRecord, "[{}] line {}: {} fields, expected {} (columns: {})", path(),
                    first_line_, fields_.size(), columns_.size(), list_columns(columns_));
      }
      record.value = nlohmann::json::object();
      for (size_t i = 0; i < fields_.size(); ++i) {
        const size_t bad = find_invalid_utf8(fields_[i]);
        if (bad != std::string_view::npos) {
          fail_record(SkipReason::InvalidUtf8, "[{}] line {}: invalid UTF-8 at byte {} of column {}", path(),
                      first_line_, bad, printable(columns_[i]));
        }
        record.value[columns_[i]] = fields_[i];
      }
      return true;
    }
    return false;
  }

  std::string place() const override { return fmt::format("{}] line {}", path(), first_line_); }
  int64_t bytes_read() const override { return bytes_.stream().file_position(); }

 private:
  enum class State { FieldStart, Plain, Quoted, QuoteInQuoted, SkipLine };

  const std::string& path() const { return bytes_.stream().path(); }

  // One record into fields_; false at the end of the file.
  bool read_fields() {
    fields_.clear();
    was_quoted_ = false;
    first_line_ = line_;
    if (bytes_.window().empty()) return false;
    std::string error;
    std::string field;
    size_t size = 0;
    State state = State::FieldStart;
    const auto end_field = [&] {
      // Limited, because each field is a string: a line of only separators would take many times its own size.
      if (fields_.size() < kMaxFields) {
        fields_.push_back(std::move(field));
      } else if (error.empty()) {
        error = fmt::format("more than {} fields", kMaxFields);
      }
      field.clear();
      state = State::FieldStart;
    };
    bool is_end = false;
    for (std::string_view window = bytes_.window(); !window.empty() && !is_end; window = bytes_.window()) {
      size_t i = 0;
      for (; i < window.size() && !is_end; ++i) {
        const char c = window[i];
        if (c == '\n') ++line_;
        switch (state) {
          case State::Quoted:
            if (c == '"') {
              state = State::QuoteInQuoted;
            } else {
              field += c;
            }
            break;
          case State::QuoteInQuoted:
            if (c == '"') {
              field += c;
              state = State::Quoted;
            } else if (c == separator_) {
              end_field();
            } else if (c == '\n') {
              is_end = true;
            } else if (c != '\r') {
              error = fmt::format(
                  "'{}' after the closing quote of field {}, expected '{}' or the end of the line",
                  printable(std::string_view(&c, 1)), fields_.size() + 1,
                  printable(std::string_view(&separator_, 1)));
              state = State::SkipLine;
            }
            break;
          case State::FieldStart:
          case State::Plain:
            if (c == separator_) {
              end_field();
            } else if (c == '\n') {
              if (field.ends_with('\r')) field.pop_back();
              is_end = true;
            } else if (c == '"' && state == State::FieldStart) {
              was_quoted_ = true;
              state = State::Quoted;
            } else {
              field += c;
              state = State::Plain;
            }
            break;
          case State::SkipLine:
            is_end = c == '\n';
            break;
        }
      }
      bytes_.consume(i);
      size += i;
      if (size > limits_.max_record) {
        fail("[{}] line {}: a record of more than {} bytes, is a quote missing?", path(), first_line_,
             limits_.max_record);
      }
    }
    if (state == State::Quoted) {
      fail_record(SkipReason::BrokenRecord, "[{}] line {}: the file ends inside a quoted field (field {})",
                  path(), first_line_, fields_.size() + 1);
    }
    if (!error.empty()) {
      fail_record(SkipReason::BrokenRecord, "[{}] line {}: {}", path(), std::max(first_line_, line_ - 1),
                  error);
    }
    if (state == State::Plain && !is_end && field.ends_with('\r')) field.pop_back();
    fields_.push_back(std::move(field));
    return true;
  }

  BufferedBytes bytes_;
  char separator_;
  RecordLimits limits_;
  std::vector<std::string> columns_, fields_;
  bool was_quoted_ = false;
  int64_t line_ = 1, first_line_ = 1;
};

}  // namespace

std::unique_ptr<RecordReader> csv_records(std::unique_ptr<ByteStream> stream, char separator,
                                          const RecordLimits& limits) {
  return std::make_unique<CsvRecords>(std::move(stream), separator, limits);
}

}  // namespace octet
