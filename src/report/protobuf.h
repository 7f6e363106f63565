#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace octet {

// Encodes one protobuf message field by field (the wire format alone: no schema, no reading). Numbers and
// names of fields are the caller's; a nested message is encoded on its own and added as bytes.
class ProtoMessage {
 public:
  ProtoMessage& integer(uint32_t field, int64_t value) {
    tag(field, 0);
    varint(static_cast<uint64_t>(value));
    return *this;
  }
  ProtoMessage& number(uint32_t field, double value) {
    tag(field, 1);
    little_endian(std::bit_cast<uint64_t>(value), 8);
    return *this;
  }
  ProtoMessage& number(uint32_t field, float value) {
    tag(field, 5);
    little_endian(std::bit_cast<uint32_t>(value), 4);
    return *this;
  }
  ProtoMessage& bytes(uint32_t field, std::string_view value) {
    tag(field, 2);
    varint(value.size());
    encoded_ += value;
    return *this;
  }
  ProtoMessage& message(uint32_t field, const ProtoMessage& value) { return bytes(field, value.encoded_); }
  ProtoMessage& packed(uint32_t field, std::span<const double> values) {
    tag(field, 2);
    varint(values.size() * 8);
    for (const double value : values) little_endian(std::bit_cast<uint64_t>(value), 8);
    return *this;
  }

  const std::string& encoded() const { return encoded_; }

 private:
  void tag(uint32_t field, uint32_t wire_type) { varint(field << 3 | wire_type); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) encoded_ += static_cast<char>(value | 0x80);
    encoded_ += static_cast<char>(value);
  }
  void little_endian(uint64_t value, int size) {
    for (int i = 0; i < size; ++i) encoded_ += static_cast<char>(value >> (8 * i));
  }

  std::string encoded_;
};

}  // namespace octet
