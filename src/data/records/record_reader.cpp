#include "data/records/record_reader.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/regular_file.h"
#include "base/text.h"
#include "data/tokenizer/unicode.h"

namespace octet {
namespace {

class StoppableStream final : public ByteStream {
 public:
  StoppableStream(std::unique_ptr<ByteStream> stream, std::function<bool()> stop)
      : stream_(std::move(stream)), stop_(std::move(stop)) {}

  size_t read(std::span<char> into) override {
    if (stop_()) throw ReadingStopped(fmt::format("[{}] the reading was stopped", path()));
    return stream_->read(into);
  }
  const std::string& path() const override { return stream_->path(); }
  int64_t file_size() const override { return stream_->file_size(); }
  int64_t file_position() const override { return stream_->file_position(); }

 private:
  std::unique_ptr<ByteStream> stream_;
  std::function<bool()> stop_;
};

}  // namespace

std::optional<FileKind> file_kind(const std::string& path) {
  std::filesystem::path name = std::filesystem::path(path).filename();
  const auto extension = [&] {
    std::string text = name.extension().string();
    std::transform(text.begin(), text.end(), text.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    return text;
  };
  if (extension() == ".parquet") return FileKind::Parquet;
  if (extension() == ".gz" || extension() == ".zst" || extension() == ".zstd") name = name.stem();
  const std::string kind = extension();
  if (kind == ".txt" || kind == ".text") return FileKind::Text;
  if (kind == ".jsonl" || kind == ".ndjson") return FileKind::JsonLines;
  if (kind == ".json") return FileKind::Json;
  if (kind == ".csv") return FileKind::Csv;
  if (kind == ".tsv") return FileKind::Tsv;
  return std::nullopt;
}

std::unique_ptr<RecordReader> open_records(const std::string& path, const ColumnChooser& choose,
                                           const RecordLimits& limits) {
  const std::optional<FileKind> kind = file_kind(path);
  require(kind.has_value(), "[{}] not a known kind of dataset file, expected {}", path, kFileKinds);
  if (kind == FileKind::Parquet) {
    require_regular_file(path);  // Arrow opens it
    return parquet_records(path, choose, limits);
  }
  std::unique_ptr<ByteStream> stream = open_byte_stream(path);
  if (limits.stop) stream = std::make_unique<StoppableStream>(std::move(stream), limits.stop);
  switch (*kind) {
    case FileKind::Text:
      return text_records(std::move(stream), limits);
    case FileKind::JsonLines:
      return json_lines(std::move(stream), limits);
    case FileKind::Json:
      return json_records(std::move(stream), limits);
    case FileKind::Csv:
      return csv_records(std::move(stream), ',', limits);
    case FileKind::Tsv:
      return csv_records(std::move(stream), '\t', limits);
    case FileKind::Parquet:
      break;
  }
  fail("[{}] not a known kind of dataset file", path);
}

size_t find_invalid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    uint64_t eight = 0;
    if (text.size() - i >= 8) {
      std::memcpy(&eight, text.data() + i, 8);
      if ((eight & 0x8080808080808080u) == 0) {
        i += 8;
        continue;
      }
    }
    const Utf8Char next = decode_utf8(text.data() + i, text.size() - i);
    if (!next.valid) return i;
    i += next.length;
  }
  return std::string_view::npos;
}

std::string list_columns(const std::vector<std::string>& columns) {
  constexpr size_t kMost = 40;
  std::string list;
  for (size_t i = 0; i < std::min(columns.size(), kMost); ++i) {
    list += fmt::format("{}{}", i > 0 ? ", " : "", printable(columns[i]));
  }
  if (columns.size() > kMost) list += fmt::format(" and {} more", columns.size() - kMost);
  return list.empty() ? "none" : list;
}

std::vector<std::string> columns_of(const nlohmann::json& object) {
  std::vector<std::string> columns;
  for (const auto& [name, value] : object.items()) columns.push_back(name);
  return columns;
}

}  // namespace octet
