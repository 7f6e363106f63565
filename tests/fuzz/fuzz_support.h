#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "base/crc32c.h"

namespace octet {

// For what must hold whatever the bytes are.
inline void expect(bool condition) {
  if (!condition) std::abort();
}

// What octet has written it must read: an error in `work` is a finding, not the answer to strange bytes.
template <class Work>
auto must_succeed(const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "octet's own output gave an error: %s\n", error.what());
    std::abort();
  }
}

// An input of a program with several readers: its first byte is a digit, which chooses one.
struct FuzzChoice {
  size_t reader = 0;
  std::string text;  // the rest
};
inline FuzzChoice take_choice(const uint8_t* data, size_t size, size_t readers) {
  if (size == 0) return {};
  return {static_cast<size_t>(data[0] - '0') % readers,
          std::string(reinterpret_cast<const char*>(data) + 1, size - 1)};
}

// A manifest with a checksum that is right (see io/sealed_json.h), so that the rules behind it are reached.
inline std::string sealed(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('}')) text.pop_back();
  while (text.ends_with('\n')) text.pop_back();
  return fmt::format("{},\n  \"manifest_crc32c\": \"{:08x}\"\n}}\n", text, crc32c(text));
}

}  // namespace octet
