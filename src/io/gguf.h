#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "io/env.h"

namespace octet {

// Writes GGUF files (version 3), which llama.cpp, Ollama and others load:
//   "GGUF", version, number of tensors, number of keys; the keys with their values; for each tensor its name,
//   dimensions (the innermost first), type and offset; then the tensors, each at a multiple of 32 bytes.
// All numbers are little-endian.

// How the values of a tensor are stored, with the numbers of the format.
enum class GgmlType : uint32_t {
  F32 = 0,
  F16 = 1,
  Q8_0 = 8,  // blocks of 32 values of a row: an fp16 scale and 32 int8
  BF16 = 30,
};
constexpr int64_t kQ8Block = 32;
const char* name_of(GgmlType type);  // "bf16"
// Bytes of `count` values; for Q8_0 a multiple of 32.
int64_t ggml_bytes(GgmlType type, int64_t count);
// Error where a finite value is too large for the type; for Q8_0 also where a value is not finite. `tensor` is named in it.
std::vector<std::byte> ggml_encode(GgmlType type, std::span<const float> values,
                                   const std::string& tensor = "tensor");

// fp32 to fp16, to nearest even. Values from 65520 on become infinite.
uint16_t to_fp16_bits(float value);

struct GgufTensor {
  std::string name;
  int64_t rows = 0;  // of a matrix; 0: a vector
  int64_t columns = 0;
  GgmlType type = GgmlType::F32;
  int64_t count() const { return (rows > 0 ? rows : 1) * columns; }
};

class GgufWriter {
 public:
  void add(const std::string& key, const std::string& value);
  void add(const std::string& key, const char* value) { add(key, std::string(value)); }
  void add(const std::string& key, bool value);
  void add(const std::string& key, float value);
  void add_count(const std::string& key, int64_t value);  // uint32; Error where it is outside
  void add(const std::string& key, const std::vector<std::string>& values);
  void add(const std::string& key, const std::vector<float>& values);
  void add(const std::string& key, const std::vector<int32_t>& values);
  void add_tensor(GgufTensor tensor) { tensors_.push_back(std::move(tensor)); }

  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  int64_t tensor_bytes() const;

  // `read` gives rows [begin, begin + rows) of a tensor, by its index; a vector counts as one row.
  using ReadRows = std::function<std::vector<float>(size_t tensor, int64_t begin, int64_t rows)>;
  void write(Sink& sink, const ReadRows& read) const;

 private:
  void begin_key(const std::string& key, uint32_t type);

  std::string keys_;  // as they are written
  int64_t key_count_ = 0;
  std::vector<GgufTensor> tensors_;
};

}  // namespace octet
