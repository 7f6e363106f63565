#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace octet {

// The bytes of a PNG file of `width` x `height` pixels, 3 bytes (red, green, blue) each, row after row.
std::string encode_png(int64_t width, int64_t height, std::span<const uint8_t> rgb);

// A zlib stream (RFC 1950) of the bytes: matches up to 32 KiB back, fixed codes. For pictures of few colours.
std::string zlib_compress(std::span<const uint8_t> bytes);

}  // namespace octet
