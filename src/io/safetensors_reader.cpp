#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/checked.h"
#include "base/json.h"
#include "io/safetensors.h"
#include "io/safetensors_detail.h"

namespace octet {

using nlohmann::json;
namespace {
using Fault = SafetensorsFault;
}

// Reads a header straight from the parser's events into the tables of a SafetensorsFile: a document tree of a
// 100 MB header would take a gigabyte.
class SafetensorsHeader {
 public:
  explicit SafetensorsHeader(SafetensorsFile& file) : file_(file) {}

  void read(std::span<const std::byte> bytes);

  bool null() { return value("null"); }
  bool boolean(bool) { return value("a boolean"); }
  bool number_integer(json::number_integer_t) { return value("a negative number"); }
  bool number_float(json::number_float_t, const std::string&) {
    return value("a fraction or too large a number");
  }
  bool binary(json::binary_t&) { return false; }

  bool number_unsigned(json::number_unsigned_t number) {
    if (skipping()) return true;
    if (state_ == State::Shape) {
      if (!std::in_range<int64_t>(number)) {
        fault(Fault::ShapeOverflow, "dimension {} does not fit in 63 bits", number);
      }
      if (file_.dims_.size() - entry_.first_dim >= kSafetensorsMaxRank) {
        fault(Fault::ShapeOverflow, "shape has more than {} dimensions", kSafetensorsMaxRank);
      }
      file_.dims_.push_back(static_cast<int64_t>(number));
      return true;
    }
    if (state_ == State::Offsets) {
      if (entry_.offset_count == 2) fault(Fault::HeaderSchema, "data_offsets has more than two numbers");
      entry_.offsets[entry_.offset_count++] = number;
      return true;
    }
    return value("a number");
  }

  bool string(std::string& text) {
    if (skipping()) return true;
    if (state_ == State::MetadataValue) {
      file_.metadata_.find(metadata_key_)->second = std::move(text);
      state_ = State::Metadata;
      return true;
    }
    if (state_ == State::DType) {
      const auto dtype = parse_safe_dtype(text);
      if (!dtype) fault(Fault::UnknownDType, "dtype {} is not one of the format's", quoted_name(text));
      entry_.dtype = *dtype;
      state_ = State::Entry;
      return true;
    }
    return value("a string");
  }

  bool start_object(size_t) {
    if (skip_deeper()) return true;
    switch (state_) {
      case State::Start:
        state_ = State::Top;
        return true;
      case State::TopValue:
        state_ = State::Entry;
        return true;
      case State::MetadataStart:
        state_ = State::Metadata;
        return true;
      default:
        return value("an object");
    }
  }

  bool key(std::string& name) {
    if (skipping()) return true;
    if (state_ == State::Top) {
      if (name == "__metadata__") {
        if (has_metadata_) fault(Fault::DuplicateKey, "key \"__metadata__\" appears twice");
        has_metadata_ = true;
        state_ = State::MetadataStart;
        return true;
      }
      entry_ = {};
      entry_.first_name = file_.names_.size();
      entry_.first_dim = file_.dims_.size();
      file_.names_.insert(file_.names_.end(), name.begin(), name.end());
      entry_.name_size = name.size();
      in_entry_ = true;
      state_ = State::TopValue;
    } else if (state_ == State::Metadata) {
      if (!file_.metadata_.try_emplace(name).second) {
        fault(Fault::DuplicateKey, "__metadata__ key {} appears twice", quoted_name(name));
      }
      metadata_key_ = name;
      state_ = State::MetadataValue;
    } else {
      const auto begin = [&](bool& seen, State next) {
        if (seen) fault(Fault::DuplicateKey, "key \"{}\" appears twice", name);
        seen = true;
        state_ = next;
      };
      if (name == "dtype")
        begin(entry_.has_dtype, State::DType);
      else if (name == "shape")
        begin(entry_.has_shape, State::ShapeStart);
      else if (name == "data_offsets")
        begin(entry_.has_offsets, State::OffsetsStart);
      else
        state_ = State::Unknown;  // like the reference library, because a later version may add fields
    }
    return true;
  }

  bool end_object() {
    if (skip_shallower()) return true;
    if (state_ == State::Entry) {
      if (!entry_.has_dtype || !entry_.has_shape || !entry_.has_offsets) {
        fault(Fault::HeaderSchema, "has no \"{}\"",
              !entry_.has_dtype   ? "dtype"
              : !entry_.has_shape ? "shape"
                                  : "data_offsets");
      }
      entry_.rank = file_.dims_.size() - entry_.first_dim;
      entries_.push_back(entry_);
      in_entry_ = false;
      state_ = State::Top;
    } else {
      state_ = state_ == State::Metadata ? State::Top : State::End;
    }
    return true;
  }

  bool start_array(size_t) {
    if (skip_deeper()) return true;
    if (state_ == State::ShapeStart)
      state_ = State::Shape;
    else if (state_ == State::OffsetsStart)
      state_ = State::Offsets;
    else
      return value("an array");
    return true;
  }

  bool end_array() {
    if (skip_shallower()) return true;
    if (state_ == State::Offsets && entry_.offset_count != 2) {
      fault(Fault::HeaderSchema, "data_offsets has {} numbers, expected two", entry_.offset_count);
    }
    state_ = State::Entry;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const json::exception& error) {
    in_entry_ = false;
    fault(Fault::HeaderSyntax, "header byte {}: {}", position, plain_json_error(error.what()));
  }

 private:
  enum class State {
    Start,
    Top,
    TopValue,
    MetadataStart,
    Metadata,
    MetadataValue,
    Entry,
    DType,
    ShapeStart,
    Shape,
    OffsetsStart,
    Offsets,
    Unknown,
    End
  };

  struct Entry {
    size_t first_name = 0, name_size = 0;  // in names_
    size_t first_dim = 0, rank = 0;        // in dims_
    uint64_t offsets[2] = {};
    uint8_t offset_count = 0;
    SafeDType dtype = SafeDType::F32;
    bool has_dtype = false, has_shape = false, has_offsets = false;
  };

  // Inside the value of an unknown key only the depth is checked.
  bool skipping() {
    if (state_ != State::Unknown) return false;
    if (skip_depth_ == 0) state_ = State::Entry;  // it was a plain value
    return true;
  }
  bool skip_deeper() {
    if (state_ != State::Unknown) return false;
    if (++skip_depth_ > 64) fault(Fault::HeaderSyntax, "nested deeper than 64 levels");
    return true;
  }
  bool skip_shallower() {
    if (state_ != State::Unknown) return false;
    if (--skip_depth_ == 0) state_ = State::Entry;
    return true;
  }

  // A value of a kind that is not allowed here.
  bool value(const char* kind) {
    if (skipping()) return true;
    const char* expected = "an object";
    switch (state_) {
      case State::MetadataValue:
        expected = "a string (__metadata__ holds only strings)";
        break;
      case State::DType:
        expected = "the name of a dtype";
        break;
      case State::ShapeStart:
        expected = "an array (shape)";
        break;
      case State::OffsetsStart:
        expected = "an array (data_offsets)";
        break;
      case State::Shape:
        expected = "a dimension >= 0 (shape)";
        break;
      case State::Offsets:
        expected = "an offset >= 0 (data_offsets)";
        break;
      default:
        break;
    }
    fault(Fault::HeaderSchema, "{} where {} is expected", kind, expected);
  }

  std::string_view name_of(const Entry& entry) const {
    return {file_.names_.data() + entry.first_name, entry.name_size};
  }

  template <class... Args>
  [[noreturn]] void fault(Fault kind, fmt::format_string<Args...> format, Args&&... args) const {
    const std::string fact = fmt::format(format, std::forward<Args>(args)...);
    if (in_entry_)
      fail_safetensors(kind, "[{}] tensor {}: {}", file_.place_, quoted_name(name_of(entry_)), fact);
    fail_safetensors(kind, "[{}] {}", file_.place_, fact);
  }

  template <class... Args>
  [[noreturn]] void fault(Fault kind, const Entry& entry, fmt::format_string<Args...> format,
                          Args&&... args) {
    entry_ = entry;
    in_entry_ = true;
    fault(kind, format, std::forward<Args>(args)...);
  }

  void index_names();
  void check_offsets(uint64_t data_size);

  SafetensorsFile& file_;
  State state_ = State::Start;
  Entry entry_;
  bool in_entry_ = false;
  bool has_metadata_ = false;
  std::string metadata_key_;
  int skip_depth_ = 0;
  std::vector<Entry> entries_;
};

void SafetensorsHeader::read(std::span<const std::byte> bytes) {
  if (bytes.size() < 8) fault(Fault::TooShort, "has {} bytes, at least 8 expected", bytes.size());
  uint64_t header_size = 0;
  for (size_t i = 8; i-- > 0;) header_size = header_size << 8 | std::to_integer<uint64_t>(bytes[i]);
  if (header_size > kSafetensorsMaxHeader) {
    fault(Fault::HeaderTooLarge, "header length {} is above the limit of {}", header_size,
          kSafetensorsMaxHeader);
  }
  if (header_size > bytes.size() - 8) {
    fault(Fault::HeaderBeyondFile, "header length {} is beyond the file's {} bytes", header_size,
          bytes.size());
  }
  const auto* const text = reinterpret_cast<const char*>(bytes.data() + 8);
  const std::string_view header(text, header_size);
  if (!header.starts_with('{')) fault(Fault::HeaderStart, "header does not begin with '{{'");
  // The lexer takes a NUL byte for the end of its input, and would let anything follow it.
  if (header.find('\0') != header.npos) fault(Fault::HeaderSyntax, "header holds a NUL byte");
  json::sax_parse(header.begin(), header.end(), this);

  index_names();
  const std::span<const std::byte> data = bytes.subspan(8 + header_size);
  check_offsets(data.size());

  file_.tensors_.reserve(entries_.size());
  for (const Entry& entry : entries_) {
    file_.tensors_.push_back({name_of(entry),
                              entry.dtype,
                              {file_.dims_.data() + entry.first_dim, entry.rank},
                              data.subspan(entry.offsets[0], entry.offsets[1] - entry.offsets[0])});
  }
}

// Sorts the entries by offset, and by_name_ by name, so that equal names are neighbours.
void SafetensorsHeader::index_names() {
  std::sort(entries_.begin(), entries_.end(), [&](const Entry& a, const Entry& b) {
    return std::tuple(a.offsets[0], a.offsets[1], name_of(a)) <
           std::tuple(b.offsets[0], b.offsets[1], name_of(b));
  });
  auto& order = file_.by_name_;
  order.resize(entries_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return name_of(entries_[a]) < name_of(entries_[b]); });
  for (size_t i = 1; i < order.size(); ++i) {
    if (name_of(entries_[order[i - 1]]) == name_of(entries_[order[i]])) {
      fault(Fault::DuplicateKey, entries_[order[i]], "appears twice");
    }
  }
}

void SafetensorsHeader::check_offsets(uint64_t data_size) {
  uint64_t end = 0;
  for (const Entry& entry : entries_) {
    const uint64_t first = entry.offsets[0], last = entry.offsets[1];
    if (last < first)
      fault(Fault::OffsetsReversed, entry, "data_offsets [{}, {}] run backwards", first, last);
    if (first > end)
      fault(Fault::OffsetsHole, entry, "begins at {}, bytes {} to {} belong to no tensor", first, end, first);
    if (first < end)
      fault(Fault::OffsetsOverlap, entry, "begins at {}, inside a tensor that ends at {}", first, end);
    const auto size = safe_tensor_bytes(entry.dtype, {file_.dims_.data() + entry.first_dim, entry.rank});
    if (size.fault) fault(*size.fault, entry, "{}", describe_size_fault(*size.fault));
    if (std::cmp_not_equal(size.bytes, last - first)) {
      fault(Fault::SizeMismatch, entry, "shape and dtype {} need {} bytes, data_offsets [{}, {}] give {}",
            safe_dtype_name(entry.dtype), size.bytes, first, last, last - first);
    }
    if (last > data_size) {
      fault(Fault::DataBeyondFile, entry, "ends at {}, the file has {} bytes of data", last, data_size);
    }
    end = last;
  }
  if (end != data_size) {
    in_entry_ = false;
    fault(Fault::TrailingBytes, "{} bytes follow the last tensor", data_size - end);
  }
}

int64_t SafeTensor::count() const {
  int64_t product = 1;
  for (const int64_t dim : shape) product = checked_mul(product, dim);
  return product;
}

SafetensorsFile SafetensorsFile::open(Env& env, const std::string& path) {
  MappedFile mapping = env.map(path);
  SafetensorsFile file = parse(mapping.bytes(), path);
  file.mapping_ = std::move(mapping);
  return file;
}

SafetensorsFile SafetensorsFile::parse(std::span<const std::byte> bytes, std::string_view place) {
  static_assert(std::endian::native == std::endian::little, "tensor bytes are handed out as they are");
  SafetensorsFile file;
  file.place_ = place;
  SafetensorsHeader(file).read(bytes);
  return file;
}

const SafeTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found =
      std::lower_bound(by_name_.begin(), by_name_.end(), name,
                       [&](uint32_t index, std::string_view n) { return tensors_[index].name < n; });
  return found != by_name_.end() && tensors_[*found].name == name ? &tensors_[*found] : nullptr;
}

const SafeTensor& SafetensorsFile::at(std::string_view name) const {
  if (const SafeTensor* const tensor = find(name)) return *tensor;
  fail_safetensors(Fault::NoSuchTensor, "[{}] has no tensor {}", place_, quoted_name(name));
}

}  // namespace octet
