#pragma once

#include <cstdint>

namespace octet {

// Where a buffer lies: in the device's memory, or in the host's where the device can reach it.
enum class Place : uint8_t { Device, Host };

}  // namespace octet
