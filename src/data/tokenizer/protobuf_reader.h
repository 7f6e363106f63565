#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace octet {

// Reads the fields of one protobuf message, in the order of the file. A message that ends inside a field, or that has a
// field of a wrong kind, is an Error that names `place`, what is read and the byte.
class ProtobufReader {
 public:
  ProtobufReader(std::string_view message, std::string place) : rest_(message), place_(std::move(place)) {
    begin_ = message.data();
  }

  // Moves to the next field; false at the end.
  bool next();
  uint32_t field() const { return field_; }

  // The value of the field, whose kind must fit.
  uint64_t integer() const;
  bool boolean() const { return integer() != 0; }
  int32_t int32() const { return static_cast<int32_t>(integer()); }  // negative ones are stored with 64 bits
  float float32() const;
  std::string_view bytes() const;  // also a string or a message; part of the message given to the constructor

 private:
  enum Wire : uint8_t { Varint = 0, Fixed64 = 1, Length = 2, Fixed32 = 5 };

  uint64_t read_varint();
  std::string_view take(uint64_t size);
  void expect(Wire wire) const;
  [[noreturn]] void broken(const char* what) const;

  std::string_view rest_;
  std::string place_;
  const char* begin_;
  uint32_t field_ = 0;
  uint8_t wire_ = 0;
  uint64_t integer_ = 0;
  std::string_view bytes_;
};

}  // namespace octet
