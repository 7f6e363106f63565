#include "io/gguf.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "base/parallel_for.h"
#include "tensor/floats.h"

namespace octet {
namespace {

constexpr int64_t kAlignment = 32;

// The types of values, with the numbers of the format.
enum ValueType : uint32_t { kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9 };

template <class T>
void put(std::string& out, T value) {
  static_assert(std::endian::native == std::endian::little);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string& out, const std::string& text) {
  put(out, static_cast<uint64_t>(text.size()));
  out += text;
}

void pad(std::string& out) {
  out.resize(static_cast<size_t>(round_up(std::ssize(out), kAlignment)), '\0');
}

template <class T, class Convert>
std::vector<std::byte> encode_each(std::span<const float> values, const Convert& convert) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  parallel_for(std::ssize(values), kElementsPerPiece, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const T value = convert(values[i]);
      std::memcpy(bytes.data() + sizeof(T) * i, &value, sizeof(T));
    }
  });
  return bytes;
}

bool is_finite_fp16(uint16_t bits) {
  return (bits & 0x7C00) != 0x7C00;
}

// scale = largest / 127, in fp32; codes = value / scale, rounded half away from zero.
void encode_q8_block(const float* values, std::byte* out) {
  float largest = 0;
  for (int64_t i = 0; i < kQ8Block; ++i) largest = std::max(largest, std::fabs(values[i]));
  const float scale = largest / 127, inverse = scale == 0 ? 0 : 1 / scale;
  const uint16_t bits = to_fp16_bits(scale);
  std::memcpy(out, &bits, 2);
  for (int64_t i = 0; i < kQ8Block; ++i)
    out[2 + i] = static_cast<std::byte>(static_cast<int8_t>(std::round(values[i] * inverse)));
}

}  // namespace

const char* name_of(GgmlType type) {
  switch (type) {
    case GgmlType::F32:
      return "f32";
    case GgmlType::F16:
      return "f16";
    case GgmlType::Q8_0:
      return "q8_0";
    case GgmlType::BF16:
      break;
  }
  return "bf16";
}

int64_t ggml_bytes(GgmlType type, int64_t count) {
  if (type == GgmlType::Q8_0) return count / kQ8Block * (2 + kQ8Block);
  return count * (type == GgmlType::F32 ? 4 : 2);
}

uint16_t to_fp16_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7FFFFFFF;
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const auto signed_bits = [&](uint32_t code) { return static_cast<uint16_t>(sign | code); };
  if (magnitude > 0x7F800000) return signed_bits(0x7E00);   // NaN
  if (magnitude >= 0x477FF000) return signed_bits(0x7C00);  // from 65520 on
  if (magnitude < 0x38800000) {
    // Below the normal range, codes are multiples of 2^-24: adding 0.5 in fp32 rounds to them, to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return signed_bits(std::bit_cast<uint32_t>(shifted) - 0x3F000000);
  }
  const uint32_t rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1);
  return signed_bits((rounded - 0x38000000) >> 13);
}

std::vector<std::byte> ggml_encode(GgmlType type, std::span<const float> values, const std::string& tensor) {
  switch (type) {
    case GgmlType::F32:
      return encode_each<float>(values, [](float value) { return value; });
    case GgmlType::BF16:
      return encode_each<uint16_t>(values, [](float value) { return to_bf16(value).bits; });
    case GgmlType::F16: {
      for (const float value : values) {
        if (std::isfinite(value) && !is_finite_fp16(to_fp16_bits(value)))
          fail("[gguf] {}: a weight is {}, but f16 ends at 65504; use bf16", tensor, value);
      }
      return encode_each<uint16_t>(values, to_fp16_bits);
    }
    case GgmlType::Q8_0:
      break;
  }
  require(std::ssize(values) % kQ8Block == 0, "[gguf] {} values, expected blocks of {}", values.size(),
          kQ8Block);
  // An infinite scale would lose a whole block, and codes of values that are not finite are undefined.
  for (const float value : values) {
    if (!(std::fabs(value) <= 127 * 65504.0f))
      fail("[gguf] {}: a weight is {}, which q8_0 cannot hold; use bf16 or f32", tensor, value);
  }
  const int64_t blocks = std::ssize(values) / kQ8Block;
  std::vector<std::byte> bytes(static_cast<size_t>(ggml_bytes(type, std::ssize(values))));
  parallel_for(blocks, rows_per_piece(kQ8Block), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      encode_q8_block(values.data() + i * kQ8Block, bytes.data() + i * (2 + kQ8Block));
  });
  return bytes;
}

void GgufWriter::begin_key(const std::string& key, uint32_t type) {
  put_text(keys_, key);
  put(keys_, type);
  ++key_count_;
}

void GgufWriter::add(const std::string& key, const std::string& value) {
  begin_key(key, kString);
  put_text(keys_, value);
}

void GgufWriter::add(const std::string& key, bool value) {
  begin_key(key, kBool);
  put(keys_, static_cast<uint8_t>(value));
}

void GgufWriter::add(const std::string& key, float value) {
  begin_key(key, kFloat32);
  put(keys_, value);
}

void GgufWriter::add_count(const std::string& key, int64_t value) {
  require(value >= 0 && value <= UINT32_MAX, "[gguf] {} is {}, expected 0 to 2^32 - 1", key, value);
  begin_key(key, kUint32);
  put(keys_, static_cast<uint32_t>(value));
}

void GgufWriter::add(const std::string& key, const std::vector<std::string>& values) {
  begin_key(key, kArray);
  put(keys_, uint32_t{kString});
  put(keys_, static_cast<uint64_t>(values.size()));
  for (const std::string& value : values) put_text(keys_, value);
}

void GgufWriter::add(const std::string& key, const std::vector<float>& values) {
  begin_key(key, kArray);
  put(keys_, uint32_t{kFloat32});
  put(keys_, static_cast<uint64_t>(values.size()));
  for (const float value : values) put(keys_, value);
}

void GgufWriter::add(const std::string& key, const std::vector<int32_t>& values) {
  begin_key(key, kArray);
  put(keys_, uint32_t{kInt32});
  put(keys_, static_cast<uint64_t>(values.size()));
  for (const int32_t value : values) put(keys_, value);
}

int64_t GgufWriter::tensor_bytes() const {
  int64_t bytes = 0;
  for (const GgufTensor& tensor : tensors_) bytes += ggml_bytes(tensor.type, tensor.count());
  return bytes;
}

void GgufWriter::write(Sink& sink, const ReadRows& read) const {
  std::string head = "GGUF";
  put(head, uint32_t{3});
  put(head, static_cast<uint64_t>(tensors_.size()));
  put(head, static_cast<uint64_t>(key_count_));
  head += keys_;
  uint64_t offset = 0;
  for (const GgufTensor& tensor : tensors_) {
    put_text(head, tensor.name);
    put(head, tensor.rows > 0 ? uint32_t{2} : uint32_t{1});
    put(head, static_cast<uint64_t>(tensor.columns));
    if (tensor.rows > 0) put(head, static_cast<uint64_t>(tensor.rows));
    put(head, static_cast<uint32_t>(tensor.type));
    put(head, offset);
    offset += static_cast<uint64_t>(round_up(ggml_bytes(tensor.type, tensor.count()), kAlignment));
  }
  pad(head);
  sink.append(head);

  constexpr int64_t kPieceValues = int64_t{16} << 20;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const GgufTensor& tensor = tensors_[i];
    const int64_t rows = std::max<int64_t>(tensor.rows, 1);
    const int64_t step = std::max<int64_t>(1, kPieceValues / tensor.columns);
    int64_t written = 0;
    for (int64_t begin = 0; begin < rows; begin += step) {
      const int64_t count = std::min(step, rows - begin);
      const std::vector<float> values = read(i, begin, count);
      require(std::ssize(values) == count * tensor.columns, "[gguf] {}: {} values, expected {} x {}",
              tensor.name, values.size(), count, tensor.columns);
      const std::vector<std::byte> bytes = ggml_encode(tensor.type, values, tensor.name);
      sink.append(bytes);
      written += std::ssize(bytes);
    }
    sink.append(std::string(static_cast<size_t>(round_up(written, kAlignment) - written), '\0'));
  }
}

}  // namespace octet
