#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/env.h"

namespace octet {

// Element types in the order of the reference library. A written file has its tensors in the reverse order: widest
// first, so that every tensor is aligned.
enum class SafeDType : uint8_t {
  BOOL,
  F4,
  F6_E2M3,
  F6_E3M2,
  U8,
  I8,
  F8_E5M2,
  F8_E4M3,
  F8_E8M0,
  F8_E4M3FNUZ,
  F8_E5M2FNUZ,
  I16,
  U16,
  F16,
  BF16,
  I32,
  U32,
  F32,
  C64,
  F64,
  I64,
  U64,
};

std::string_view safe_dtype_name(SafeDType dtype);  // "BF16"
int safe_dtype_bits(SafeDType dtype);
std::optional<SafeDType> parse_safe_dtype(std::string_view name);

// The rule of the format that a file (or what is to be written) breaks.
enum class SafetensorsFault {
  TooShort,          // fewer bytes than the header length needs
  HeaderTooLarge,    // above kSafetensorsMaxHeader
  HeaderBeyondFile,  // header length larger than the file
  HeaderStart,       // header does not begin with '{'
  HeaderSyntax,      // header is not JSON, not UTF-8, or nested too deeply
  HeaderSchema,      // JSON that does not have the format's structure
  DuplicateKey,
  UnknownDType,
  ShapeOverflow,    // dimensions or their product beyond 64 bits, or more than kSafetensorsMaxRank of them
  PartialByte,      // a tensor of 4- or 6-bit elements that does not end on a byte
  OffsetsReversed,  // end before begin
  OffsetsHole,      // bytes that belong to no tensor
  OffsetsOverlap,   // bytes that belong to two
  SizeMismatch,     // the offsets do not give the number of bytes that shape and dtype need
  DataBeyondFile,   // the file ends before the tensors do
  TrailingBytes,    // the file continues after the last tensor
  NoSuchTensor,
  BadIndex,      // model.safetensors.index.json has another structure, or names a file outside the folder
  ShardContent,  // a shard does not hold exactly the tensors that the index maps to it
  WriteOrder,    // writer: bytes for another tensor, or another number of bytes, than announced
};

class SafetensorsError : public Error {
 public:
  SafetensorsError(SafetensorsFault fault, const std::string& message) : Error(message), fault_(fault) {}
  SafetensorsFault fault() const { return fault_; }

 private:
  SafetensorsFault fault_;
};

constexpr uint64_t kSafetensorsMaxHeader = 100'000'000;
constexpr size_t kSafetensorsMaxRank = 64;

// A tensor of an open file: everything points into the SafetensorsFile. The bytes are little-endian and may not be
// aligned to the element: copy, do not cast.
struct SafeTensor {
  std::string_view name;
  SafeDType dtype = SafeDType::F32;
  std::span<const int64_t> shape;  // empty: one element
  std::span<const std::byte> bytes;

  int64_t count() const;
};

// A safetensors file, mapped and fully checked before any tensor can be read. Takes the mapping plus, per tensor,
// about 80 bytes and the name. Movable; tensors stay valid.
class SafetensorsFile {
 public:
  static SafetensorsFile open(Env& env, const std::string& path);
  // The same on bytes that the caller keeps alive; `place` names them in errors.
  static SafetensorsFile parse(std::span<const std::byte> bytes, std::string_view place);

  SafetensorsFile(SafetensorsFile&&) = default;
  SafetensorsFile& operator=(SafetensorsFile&&) = default;

  const std::vector<SafeTensor>& tensors() const { return tensors_; }  // in the order of their bytes
  const SafeTensor* find(std::string_view name) const;                 // nullptr: not there
  const SafeTensor& at(std::string_view name) const;                   // or NoSuchTensor
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& place() const { return place_; }

 private:
  friend class SafetensorsHeader;
  SafetensorsFile() = default;

  MappedFile mapping_;
  std::string place_;
  // Names and shapes are stored in two blocks, not in a heap object per tensor. So a hostile header of 100 MB takes
  // only about its own size again.
  std::vector<char> names_;
  std::vector<int64_t> dims_;
  std::vector<SafeTensor> tensors_;
  std::vector<uint32_t> by_name_;
  std::map<std::string, std::string> metadata_;
};

// A Hugging Face folder: `model.safetensors`, or else `model.safetensors.index.json` and the shards it names.
// Every shard must hold exactly the tensors that the index maps to it.
class SafetensorsFolder {
 public:
  static SafetensorsFolder open(Env& env, const std::string& directory);

  const SafeTensor* find(std::string_view name) const;
  const SafeTensor& at(std::string_view name) const;
  const std::vector<SafetensorsFile>& files() const { return files_; }
  size_t tensor_count() const;

 private:
  std::string directory_;
  std::vector<SafetensorsFile> files_;
};

struct SafeTensorSpec {
  std::string name;
  SafeDType dtype = SafeDType::F32;
  std::vector<int64_t> shape;

  int64_t byte_size() const;  // or ShapeOverflow, PartialByte
};

// Writes a file tensor by tensor, without a second copy of anything. The header is written first, then the caller
// appends the bytes of the tensors in the order of specs(). The result is byte for byte what the reference library
// writes for the same tensors.
class SafetensorsWriter {
 public:
  SafetensorsWriter(Sink& sink, std::vector<SafeTensorSpec> specs,
                    const std::map<std::string, std::string>& metadata = {});

  // In the order in which their bytes must come: wider types first, then by name.
  const std::vector<SafeTensorSpec>& specs() const { return specs_; }
  int64_t total_bytes() const { return total_bytes_; }  // of the whole file

  void append(std::string_view name,
              std::span<const std::byte> bytes);  // the whole next tensor, or a piece of it
  void finish();  // fails unless every announced byte has come; does not sync or close the sink

 private:
  void skip_finished();  // moves to the next tensor that still needs bytes

  Sink& sink_;
  std::vector<SafeTensorSpec> specs_;
  int64_t total_bytes_ = 0;
  size_t current_ = 0;
  int64_t left_ = 0;  // bytes that specs_[current_] still needs
};

}  // namespace octet
