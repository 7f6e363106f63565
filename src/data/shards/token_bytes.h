#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace octet {

// Ids as stored in files: `width` (2 or 4) bytes each, little-endian, at an address that is a multiple of `width`.

// Throws Error naming the first id that is not below `vocab_size`; `data_offset` is where `data` begins in the file.
void check_token_bytes(const std::byte* data, int width, int64_t count, int64_t vocab_size,
                       const std::string& name, int64_t data_offset);

// The same for ids that are about to be used. They were checked before, perhaps long ago. `data` begins at the file's
// token number `first`.
void check_tokens_again(const std::byte* data, int width, int64_t count, int64_t vocab_size,
                        const std::string& name, int64_t data_offset, int64_t first);

// The largest id, 0 if there is none.
uint32_t largest_token(const std::byte* data, int width, int64_t count);

// out = ids [first, first + out.size()).
void widen_token_bytes(const std::byte* data, int width, int64_t first, std::span<int32_t> out);

// out = bits [first, first + out.size()) of a mask, lowest bit of a byte first; all 1 if `mask` is null.
void read_mask_bits(const std::byte* mask, int64_t first, std::span<uint8_t> out);

}  // namespace octet
