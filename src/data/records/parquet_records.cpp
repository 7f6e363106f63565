#include "data/records/record_reader.h"

#if OCTET_WITH_PARQUET

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/util/config.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/properties.h>
#include <parquet/schema.h>

#include <algorithm>

#include "base/text.h"

namespace octet {
namespace {

using nlohmann::json;

constexpr int64_t kBatchRows = 256;        // at most, read at once
constexpr int64_t kBatchBytes = 64 << 20;  // likewise, estimated from the mean row size
constexpr int64_t kStreamBytes = 1 << 20;  // read ahead per column chunk

// A string, as a view into the array; nothing for another type.
std::optional<std::string_view> string_at(const arrow::Array& array, int64_t i) {
  switch (array.type_id()) {
    case arrow::Type::STRING:
    case arrow::Type::BINARY:
      return static_cast<const arrow::BinaryArray&>(array).GetView(i);
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
      return static_cast<const arrow::LargeBinaryArray&>(array).GetView(i);
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY_VIEW:
      return static_cast<const arrow::BinaryViewArray&>(array).GetView(i);
    default:
      return std::nullopt;
  }
}

json value_at(const arrow::Array& array, int64_t i);

template <class List>
json list_at(const arrow::Array& array, int64_t i) {
  const auto& list = static_cast<const List&>(array);
  json values = json::array();
  const int64_t begin = list.value_offset(i), end = begin + list.value_length(i);
  for (int64_t k = begin; k < end; ++k) values.push_back(value_at(*list.values(), k));
  return values;
}

// The types that the columns of a dataset can have. Others become an object with the type's name, so that they are
// not trained on as text by mistake.
json value_at(const arrow::Array& array, int64_t i) {
  if (array.IsNull(i)) return nullptr;
  if (const auto text = string_at(array, i)) return std::string(*text);
  switch (array.type_id()) {
    case arrow::Type::BOOL:
      return static_cast<const arrow::BooleanArray&>(array).Value(i);
    case arrow::Type::INT8:
      return static_cast<const arrow::Int8Array&>(array).Value(i);
    case arrow::Type::INT16:
      return static_cast<const arrow::Int16Array&>(array).Value(i);
    case arrow::Type::UINT8:
      return static_cast<const arrow::UInt8Array&>(array).Value(i);
    case arrow::Type::UINT16:
      return static_cast<const arrow::UInt16Array&>(array).Value(i);
    case arrow::Type::UINT32:
      return static_cast<const arrow::UInt32Array&>(array).Value(i);
    case arrow::Type::UINT64:
      return static_cast<const arrow::UInt64Array&>(array).Value(i);
    case arrow::Type::INT32:
      return static_cast<const arrow::Int32Array&>(array).Value(i);
    case arrow::Type::INT64:
      return static_cast<const arrow::Int64Array&>(array).Value(i);
    case arrow::Type::FLOAT:
      return static_cast<const arrow::FloatArray&>(array).Value(i);
    case arrow::Type::DOUBLE:
      return static_cast<const arrow::DoubleArray&>(array).Value(i);
    case arrow::Type::LIST:
    case arrow::Type::MAP:
      return list_at<arrow::ListArray>(array, i);
    case arrow::Type::LARGE_LIST:
      return list_at<arrow::LargeListArray>(array, i);
    case arrow::Type::FIXED_SIZE_LIST:
      return list_at<arrow::FixedSizeListArray>(array, i);
    case arrow::Type::STRUCT: {
      const auto& object = static_cast<const arrow::StructArray&>(array);
      json fields = json::object();
      for (int k = 0; k < object.num_fields(); ++k) {
        fields[object.struct_type()->field(k)->name()] = value_at(*object.field(k), i);
      }
      return fields;
    }
    case arrow::Type::DICTIONARY: {
      const auto& dictionary = static_cast<const arrow::DictionaryArray&>(array);
      return value_at(*dictionary.dictionary(), dictionary.GetValueIndex(i));
    }
    default: {
      const auto scalar = array.GetScalar(i);
      return {{array.type()->ToString(), scalar.ok() ? (*scalar)->ToString() : std::string()}};
    }
  }
}

// The first string in the value that is not UTF-8.
bool has_invalid_utf8(const json& value) {
  if (value.is_string()) return find_invalid_utf8(value.get_ref<const std::string&>()) != std::string::npos;
  return value.is_structured() && std::any_of(value.begin(), value.end(), has_invalid_utf8);
}

class ParquetRecords final : public RecordReader {
 public:
  ParquetRecords(const std::string& path, const ColumnChooser& choose, const RecordLimits& limits)
      : path_(path), limits_(limits) {
    try {
      open(choose);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {  // the library throws in some places and returns errors in others
      fail("[{}] not a readable Parquet file: {}", path_, printable(error.what()));
    }
  }

  bool next(Record& record) override {
    if (!batch_ || row_ == batch_->num_rows()) {
      if (!read_batch()) return false;
    }
    ++rows_read_;
    record.value = json::object();
    const int64_t row = row_++;
    for (int i = 0; i < batch_->num_columns(); ++i) {
      if (const auto text = string_at(*batch_->column(i), row); text && text->size() > limits_.max_record) {
        fail_record(SkipReason::BadValue, "[{}] row {}: {} bytes in column {}, expected at most {}", path_,
                    rows_read_, text->size(), printable(batch_->schema()->field(i)->name()),
                    limits_.max_record);
      }
      json value = value_at(*batch_->column(i), row);
      if (has_invalid_utf8(value)) {
        fail_record(SkipReason::InvalidUtf8, "[{}] row {}: invalid UTF-8 in column {}", path_, rows_read_,
                    printable(batch_->schema()->field(i)->name()));
      }
      record.value[batch_->schema()->field(i)->name()] = std::move(value);
    }
    return true;
  }

  std::string place() const override { return fmt::format("{}] row {}", path_, rows_read_); }
  int64_t bytes_read() const override {
    return rows_ == 0 ? bytes_
                      : static_cast<int64_t>(static_cast<double>(bytes_) * static_cast<double>(rows_read_) /
                                             static_cast<double>(rows_));
  }

 private:
  void check(const arrow::Status& status) const {
    require(status.ok(), "[{}] Parquet: {}", path_, printable(status.message()));
  }

  void open(const ColumnChooser& choose) {
    auto opened = arrow::io::ReadableFile::Open(path_);
    require(opened.ok(), "[{}] {}", path_, printable(opened.status().message()));
    const auto size = (*opened)->GetSize();
    check(size.status());
    bytes_ = *size;
    require(bytes_ > 0, "[{}] an empty file, expected Parquet", path_);

    parquet::ReaderProperties properties = parquet::default_reader_properties();
    properties
        .enable_buffered_stream();  // otherwise a whole column chunk is read at once, possibly the whole file
    properties.set_buffer_size(kStreamBytes);
    parquet::ArrowReaderProperties arrow_properties = parquet::default_arrow_reader_properties();
    arrow_properties.set_pre_buffer(false);
    arrow_properties.set_use_threads(false);
    parquet::arrow::FileReaderBuilder builder;
    check(builder.Open(*opened, properties));
    arrow_properties.set_batch_size(batch_rows(*builder.raw_reader()->metadata()));
    builder.properties(arrow_properties);
    check(builder.Build(&file_));
    rows_ = file_->parquet_reader()->metadata()->num_rows();

    std::vector<int> row_groups(static_cast<size_t>(file_->num_row_groups()));
    for (size_t i = 0; i < row_groups.size(); ++i) row_groups[i] = static_cast<int>(i);
    const std::vector<int> leaves = chosen_leaves(choose);
#if ARROW_VERSION_MAJOR >= 19
    auto batches = file_->GetRecordBatchReader(row_groups, leaves);
    check(batches.status());
    batches_ = std::move(*batches);
#else
    std::unique_ptr<arrow::RecordBatchReader> batches;
    check(file_->GetRecordBatchReader(row_groups, leaves, &batches));
    batches_ = std::move(batches);
#endif
  }

  // As many rows as give a batch of moderate size in the row group with the longest rows.
  static int64_t batch_rows(const parquet::FileMetaData& metadata) {
    int64_t rows = kBatchRows;
    for (int i = 0; i < metadata.num_row_groups(); ++i) {
      const auto group = metadata.RowGroup(i);
      const int64_t mean = group->total_byte_size() / std::max<int64_t>(group->num_rows(), 1);
      rows = std::min(rows, kBatchBytes / std::max<int64_t>(mean, 1));
    }
    return std::max<int64_t>(rows, 1);
  }

  // Parquet counts the leaves of nested columns; the chooser knows only the top-level columns.
  std::vector<int> chosen_leaves(const ColumnChooser& choose) const {
    const parquet::SchemaDescriptor& schema = *file_->parquet_reader()->metadata()->schema();
    std::vector<std::string> columns;
    for (int i = 0; i < schema.group_node()->field_count(); ++i) {
      columns.push_back(schema.group_node()->field(i)->name());
    }
    if (choose) {
      const std::vector<std::string> chosen = choose(columns);
      if (!chosen.empty()) columns = chosen;
    }
    std::vector<int> leaves;
    for (int i = 0; i < schema.num_columns(); ++i) {
      const std::string& root = schema.GetColumnRoot(i)->name();
      if (std::find(columns.begin(), columns.end(), root) != columns.end()) leaves.push_back(i);
    }
    return leaves;
  }

  bool read_batch() {
    row_ = 0;
    try {
      do {
        check(batches_->ReadNext(&batch_));
      } while (batch_ && batch_->num_rows() == 0);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      fail("[{}] Parquet, after row {}: {}", path_, rows_read_, printable(error.what()));
    }
    if (!batch_) {
      require(rows_read_ == rows_, "[{}] {} rows, expected {}", path_, rows_read_, rows_);
    }
    return batch_ != nullptr;
  }

  std::string path_;
  RecordLimits limits_;
  std::unique_ptr<parquet::arrow::FileReader> file_;
  std::shared_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::RecordBatch> batch_;
  int64_t row_ = 0;  // the next one of batch_
  int64_t rows_ = 0, rows_read_ = 0, bytes_ = 0;
};

}  // namespace

bool has_parquet() {
  return true;
}

std::unique_ptr<RecordReader> parquet_records(const std::string& path, const ColumnChooser& choose,
                                              const RecordLimits& limits) {
  return std::make_unique<ParquetRecords>(path, choose, limits);
}

}  // namespace octet

#else

namespace octet {

bool has_parquet() {
  return false;
}

std::unique_ptr<RecordReader> parquet_records(const std::string& path, const ColumnChooser&,
                                              const RecordLimits&) {
  fail(
      "[{}] octet was built without Parquet: install libparquet-dev, or the Python package pyarrow, and "
      "configure the build again",
      path);
}

}  // namespace octet

#endif
