#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/records/example_reader.h"
#include "io/byte_stream.h"

namespace octet {

// One record of a file: an object whose keys are the columns. A text file's records have the column `text`.
struct Record {
  nlohmann::json value;
  // The text of a JSON record, which has its keys in their order. Until the next record; else empty.
  std::string_view json_text = {};
  // False for the parts of a text that is too long to be given in one piece; otherwise true.
  bool is_begin = true;
  bool is_end = true;
};

// A record that cannot be used. The reader that throws it is already past that record: next() may be called again.
class RecordError : public Error {
 public:
  RecordError(SkipReason reason, const std::string& message) : Error(message), reason_(reason) {}
  SkipReason reason() const { return reason_; }

 private:
  SkipReason reason_;
};

template <class... Args>
[[noreturn]] void fail_record(SkipReason reason, fmt::format_string<Args...> format, Args&&... args) {
  throw RecordError(reason, fmt::format(format, std::forward<Args>(args)...));
}

// RecordLimits::stop has said so.
class ReadingStopped : public StoppedError {
 public:
  using StoppedError::StoppedError;
};

class RecordReader {
 public:
  virtual ~RecordReader() = default;
  // False at the end. Throws RecordError for a bad record. After any other Error the reader cannot continue.
  virtual bool next(Record& record) = 0;
  virtual std::string place()
      const = 0;  // of the last record: "file.jsonl] line 12", without the opening bracket
  virtual int64_t bytes_read() const = 0;  // of the file
};

struct RecordLimits {
  size_t max_record =
      size_t{256} << 20;  // bytes; a longer record is an error, so that memory does not run out
  int64_t max_values = int64_t{1} << 22;  // of a JSON record: lists, objects, texts, numbers
  size_t max_text = size_t{16} << 20;     // longer texts are given in parts, cut between lines
  size_t window = size_t{1} << 18;        // read at once; tests make it small
  bool ends_at_bad = false;  // the caller reads nothing after a bad record, so its end need not be found
  // Asked again and again while bytes are read; true ends the reading with ReadingStopped.
  std::function<bool()> stop = {};
};

enum class FileKind { Text, JsonLines, Json, Csv, Tsv, Parquet };
// By the extension, which .gz, .zst or .zstd may follow. Nothing for a file that is not a dataset.
std::optional<FileKind> file_kind(const std::string& path);
inline constexpr std::string_view kFileKinds =
    ".txt, .jsonl, .ndjson, .json, .csv, .tsv (each also with .gz or .zst added) or .parquet";

inline constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// Given a file's columns, returns the ones to read. Only Parquet knows them before its records. Empty: all.
using ColumnChooser = std::function<std::vector<std::string>(const std::vector<std::string>&)>;

std::unique_ptr<RecordReader> open_records(const std::string& path, const ColumnChooser& choose = {},
                                           const RecordLimits& limits = {});

// open_examples of example_reader.h, with RecordLimits::stop.
std::unique_ptr<DatasetReader> open_examples(const ExampleOptions& options, const Tokenizer& tokenizer,
                                             std::function<bool()> stop);

// The kinds, for open_records and tests. A UTF-8 byte order mark at the start is not part of the text.
std::unique_ptr<RecordReader> text_records(std::unique_ptr<ByteStream> stream,
                                           const RecordLimits& limits = {});
std::unique_ptr<RecordReader> json_lines(std::unique_ptr<ByteStream> stream, const RecordLimits& limits = {});
// An array of objects, or objects one after another; read element by element.
std::unique_ptr<RecordReader> json_records(std::unique_ptr<ByteStream> stream,
                                           const RecordLimits& limits = {});
// RFC 4180 with a header line; `separator` between the fields.
std::unique_ptr<RecordReader> csv_records(std::unique_ptr<ByteStream> stream, char separator,
                                          const RecordLimits& limits = {});
std::unique_ptr<RecordReader> parquet_records(const std::string& path, const ColumnChooser& choose,
                                              const RecordLimits& limits = {});
bool has_parquet();  // built in

// The first byte that is not part of a well-formed UTF-8 sequence, or npos.
size_t find_invalid_utf8(std::string_view text);

// "a, b, c", shortened when there are very many.
std::string list_columns(const std::vector<std::string>& columns);
std::vector<std::string> columns_of(const nlohmann::json& object);

}  // namespace octet
