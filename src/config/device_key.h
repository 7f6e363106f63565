#pragma once

namespace octet {

// Where users want a run to be.
enum class DeviceKey { Auto, Cpu, Cuda };

}  // namespace octet
