#include "data/tokenizer/protobuf_reader.h"

#include <cstring>

#include "base/error.h"

namespace octet {

void ProtobufReader::broken(const char* what) const {
  fail("[{}] {} at byte {}: the file is cut off or is no SentencePiece model (protobuf)", place_, what,
       rest_.data() - begin_);
}

uint64_t ProtobufReader::read_varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (rest_.empty()) broken("a number without an end");
    const auto byte = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    value |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return value;
  }
  broken("a number of more than 64 bits");
}

std::string_view ProtobufReader::take(uint64_t size) {
  if (size > rest_.size()) broken("a value that is longer than what is left");
  const std::string_view value = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return value;
}

bool ProtobufReader::next() {
  if (rest_.empty()) return false;
  const uint64_t tag = read_varint();
  if (tag >> 3 == 0 || tag >> 3 > UINT32_MAX) broken("a field without a valid number");
  field_ = static_cast<uint32_t>(tag >> 3);
  wire_ = static_cast<uint8_t>(tag & 7);
  switch (wire_) {
    case Varint:
      integer_ = read_varint();
      return true;
    case Fixed64:
      bytes_ = take(8);
      return true;
    case Length:
      bytes_ = take(read_varint());
      return true;
    case Fixed32:
      bytes_ = take(4);
      return true;
    default:
      broken("a field of an unknown kind");
  }
}

void ProtobufReader::expect(Wire wire) const {
  if (wire_ != wire)
    fail("[{}] field {} has wire type {}, expected {}", place_, field_, wire_, static_cast<int>(wire));
}

uint64_t ProtobufReader::integer() const {
  expect(Varint);
  return integer_;
}

float ProtobufReader::float32() const {
  expect(Fixed32);
  float value;
  std::memcpy(&value, bytes_.data(), sizeof(value));
  return value;
}

std::string_view ProtobufReader::bytes() const {
  expect(Length);
  return bytes_;
}

}  // namespace octet
