#pragma once

#include <cstdint>

namespace octet {

// Where a buffer lies: in the device's memory, or in host memory that the device can reach.
enum class Place : uint8_t { Device, Host };

}  // namespace octet
