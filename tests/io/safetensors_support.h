#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"

namespace octet {

struct StringSink : Sink {
  using Sink::append;
  void append(std::span<const std::byte> bytes) override {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::string text;
};

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

inline std::string with_length(uint64_t length, std::string_view rest) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file.append(rest);
}

// The file with these tensors: the bytes of each count up from the first letter of its name.
inline std::string write_all(const std::vector<SafeTensorSpec>& specs,
                             const std::map<std::string, std::string>& metadata = {}) {
  StringSink sink;
  SafetensorsWriter writer(sink, specs, metadata);
  for (const auto& spec : writer.specs()) {
    std::string bytes;
    for (int64_t i = 0; i < spec.byte_size(); ++i) bytes += static_cast<char>(spec.name[0] + i);
    writer.append(spec.name, bytes_of(bytes));
  }
  writer.finish();
  EXPECT_EQ(writer.total_bytes(), static_cast<int64_t>(sink.text.size()));
  return sink.text;
}

// The rule that an action finds broken; nullopt when it passes.
template <class Action>
std::optional<SafetensorsFault> thrown_by(Action&& action) {
  try {
    action();
  } catch (const SafetensorsError& error) {
    return error.fault();
  }
  return std::nullopt;
}

}  // namespace octet
