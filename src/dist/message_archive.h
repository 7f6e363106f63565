#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace octet {

enum class MessageProblem { Magic, Version, Type, Length, Content };
class MessageError : public Error {
 public:
  MessageError(MessageProblem problem, const std::string& message) : Error(message), problem_(problem) {}
  MessageProblem problem() const { return problem_; }

 private:
  MessageProblem problem_;
};

template <class... Args>
[[noreturn]] void refuse_message(MessageProblem problem, fmt::format_string<Args...> format, Args&&... args) {
  throw MessageError(problem, fmt::format("[message] {}", fmt::format(format, std::forward<Args>(args)...)));
}

// Both archives go through the fields of a message in the same order, so they cannot disagree.
class MessageWriter {
 public:
  explicit MessageWriter(std::string& out) : out_(out) {}
  void number(uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i));
  }
  template <class T>
  void integer(T& value) {
    number(static_cast<uint64_t>(value), sizeof(T));
  }
  template <class E>
  void choice(E& value, E, E) {
    integer(value);
  }
  template <size_t N>
  void fixed(std::array<char, N>& bytes) {
    out_.append(bytes.data(), N);
  }
  void text(std::string& value, size_t most) {
    if (value.size() > most)
      refuse_message(MessageProblem::Content, "a text has {} bytes, at most {}", value.size(), most);
    number(value.size(), 4);
    out_ += value;
  }
  template <class T, class Each>
  void list(std::vector<T>& items, size_t most, Each each) {
    if (items.size() > most)
      refuse_message(MessageProblem::Content, "a list has {} items, at most {}", items.size(), most);
    number(items.size(), 4);
    for (T& item : items) each(item);
  }

 private:
  std::string& out_;
};

class MessageReader {
 public:
  explicit MessageReader(std::string_view body) : rest_(body) {}
  std::string_view take(size_t bytes) {
    if (bytes > rest_.size())
      refuse_message(MessageProblem::Content, "{} bytes are left, expected {}", rest_.size(), bytes);
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }
  uint64_t number(size_t bytes) {
    uint64_t value = 0;
    const std::string_view taken = take(bytes);
    for (size_t i = 0; i < bytes; ++i) value |= uint64_t{static_cast<unsigned char>(taken[i])} << (8 * i);
    return value;
  }
  template <class T>
  void integer(T& value) {
    value = static_cast<T>(number(sizeof(T)));
  }
  template <class E>
  void choice(E& value, E first, E last) {
    integer(value);
    if (value < first || value > last)
      refuse_message(MessageProblem::Content, "{} is no known choice", static_cast<int>(value));
  }
  template <size_t N>
  void fixed(std::array<char, N>& bytes) {
    std::memcpy(bytes.data(), take(N).data(), N);
  }
  void text(std::string& value, size_t most) {
    const size_t bytes = number(4);
    if (bytes > most) refuse_message(MessageProblem::Content, "a text has {} bytes, at most {}", bytes, most);
    value = take(bytes);
  }
  template <class T, class Each>
  void list(std::vector<T>& items, size_t most, Each each) {
    const size_t count = number(4);
    // Every item has at least 4 bytes: a short message cannot ask for much memory.
    if (count > most || count > rest_.size() / 4)
      refuse_message(MessageProblem::Content, "a list has {} items, at most {}", count,
                     std::min(most, rest_.size() / 4));
    items.resize(count);
    for (T& item : items) each(item);
  }
  void end() const {
    if (!rest_.empty()) refuse_message(MessageProblem::Content, "{} bytes follow the message", rest_.size());
  }

 private:
  std::string_view rest_;
};

}  // namespace octet
