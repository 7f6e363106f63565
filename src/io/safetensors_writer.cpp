#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/checked.h"
#include "io/safetensors.h"
#include "io/safetensors_detail.h"

namespace octet {
namespace {

using Fault = SafetensorsFault;

struct DTypeInfo {
  std::string_view name;
  int bits;
};

// In the order of SafeDType.
constexpr std::array<DTypeInfo, 22> kDTypes = {{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};
static_assert(kDTypes[static_cast<size_t>(SafeDType::U64)].name == "U64");

std::string json_string(std::string_view text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    fail_safetensors(Fault::HeaderSyntax, "[safetensors] {} is not valid UTF-8", quoted_name(text));
  }
}

std::string header_text(const std::vector<SafeTensorSpec>& specs,
                        const std::map<std::string, std::string>& metadata, int64_t& data_bytes) {
  std::string text = "{";
  const auto comma = [&] {
    if (text.size() > 1) text += ',';
  };
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (bool first = true; const auto& [key, value] : metadata) {
      if (!std::exchange(first, false)) text += ',';
      text += json_string(key) + ":" + json_string(value);
    }
    text += '}';
  }
  data_bytes = 0;
  for (const SafeTensorSpec& spec : specs) {
    comma();
    const int64_t end = checked_add(data_bytes, spec.byte_size());
    fmt::format_to(std::back_inserter(text),
                   "{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", json_string(spec.name),
                   safe_dtype_name(spec.dtype), fmt::join(spec.shape, ","), data_bytes, end);
    data_bytes = end;
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data then begins on a multiple of 8
  if (text.size() > kSafetensorsMaxHeader) {
    fail_safetensors(Fault::HeaderTooLarge, "[safetensors] header of {} bytes is above the limit of {}",
                     text.size(), kSafetensorsMaxHeader);
  }
  return text;
}

}  // namespace

std::string_view safe_dtype_name(SafeDType dtype) {
  return kDTypes[static_cast<size_t>(dtype)].name;
}

int safe_dtype_bits(SafeDType dtype) {
  return kDTypes[static_cast<size_t>(dtype)].bits;
}

std::optional<SafeDType> parse_safe_dtype(std::string_view name) {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].name == name) return static_cast<SafeDType>(i);
  }
  return std::nullopt;
}

std::string quoted_name(std::string_view name) {
  size_t size = std::min<size_t>(name.size(), 120);
  while (size > 0 && size < name.size() && (name[size] & 0xc0) == 0x80) --size;  // not inside a character
  std::string text = "\"";
  for (const char c : name.substr(0, size))
    text += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return text + (size < name.size() ? "...\"" : "\"");
}

SafeTensorBytes safe_tensor_bytes(SafeDType dtype, std::span<const int64_t> shape) {
  int64_t bits = safe_dtype_bits(dtype);
  for (const int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(bits, dim, &bits)) return {0, Fault::ShapeOverflow};
  }
  if (bits % 8 != 0) return {0, Fault::PartialByte};
  return {bits / 8, std::nullopt};
}

std::string_view describe_size_fault(SafetensorsFault fault) {
  return fault == Fault::PartialByte ? "does not end on a byte" : "size of its shape does not fit in 64 bits";
}

int64_t SafeTensorSpec::byte_size() const {
  const SafeTensorBytes size = safe_tensor_bytes(dtype, shape);
  if (size.fault) {
    fail_safetensors(*size.fault, "[safetensors] tensor {}: {}", quoted_name(name),
                     describe_size_fault(*size.fault));
  }
  return size.bytes;
}

SafetensorsWriter::SafetensorsWriter(Sink& sink, std::vector<SafeTensorSpec> specs,
                                     const std::map<std::string, std::string>& metadata)
    : sink_(sink), specs_(std::move(specs)) {
  std::sort(specs_.begin(), specs_.end(), [](const SafeTensorSpec& a, const SafeTensorSpec& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  std::vector<std::string_view> names;
  for (const SafeTensorSpec& spec : specs_) {
    if (spec.name == "__metadata__") {
      fail_safetensors(Fault::HeaderSchema, "[safetensors] a tensor cannot be named \"__metadata__\"");
    }
    if (spec.shape.size() > kSafetensorsMaxRank) {
      fail_safetensors(Fault::ShapeOverflow,
                       "[safetensors] tensor {} has {} dimensions, at most {} are written",
                       quoted_name(spec.name), spec.shape.size(), kSafetensorsMaxRank);
    }
    names.push_back(spec.name);
  }
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
    fail_safetensors(Fault::DuplicateKey, "[safetensors] tensor {} appears twice", quoted_name(*twice));
  }

  int64_t data_bytes = 0;
  const std::string header = header_text(specs_, metadata, data_bytes);
  total_bytes_ = checked_add(8 + static_cast<int64_t>(header.size()), data_bytes);
  std::array<std::byte, 8> length;
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<std::byte>(uint64_t{header.size()} >> (8 * i));
  sink_.append(length);
  sink_.append(header);
  if (!specs_.empty()) left_ = specs_.front().byte_size();
  skip_finished();
}

void SafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  // Tensors without bytes may be appended or not.
  if (bytes.empty()) return;
  const std::string_view expected = current_ < specs_.size() ? std::string_view(specs_[current_].name) : "";
  if (current_ == specs_.size() || name != expected || std::cmp_greater(bytes.size(), left_)) {
    fail_safetensors(Fault::WriteOrder, "[safetensors] {} bytes for tensor {}, expected {} for {}",
                     bytes.size(), quoted_name(name), left_, quoted_name(expected));
  }
  sink_.append(bytes);
  left_ -= static_cast<int64_t>(bytes.size());
  skip_finished();
}

void SafetensorsWriter::skip_finished() {
  while (current_ < specs_.size() && left_ == 0) {
    if (++current_ < specs_.size()) left_ = specs_[current_].byte_size();
  }
}

void SafetensorsWriter::finish() {
  if (current_ < specs_.size()) {
    fail_safetensors(Fault::WriteOrder, "[safetensors] tensor {} still needs {} bytes",
                     quoted_name(specs_[current_].name), left_);
  }
}

}  // namespace octet
