#include "base/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <utility>

namespace octet {
namespace {

constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;
constexpr unsigned kTemperatureOfGpu = 0;
constexpr unsigned kSmClock = 1, kMemoryClock = 2;

// The bits that mean lost speed. An idle GPU and clocks that somebody has chosen are not among them.
constexpr std::pair<uint64_t, const char*> kThrottleReasons[] = {
    {0x04, "power cap"},        {0x08, "hardware slowdown"},
    {0x20, "thermal slowdown"}, {0x40, "hardware thermal slowdown"},
    {0x80, "power brake"},
};

template <class Value>
std::optional<double> scaled(const std::optional<Value>& value, double factor) {
  return value ? std::optional(factor * static_cast<double>(*value)) : std::nullopt;
}

}  // namespace

std::string GpuState::throttled() const {
  std::string text;
  for (const auto& [bit, reason] : kThrottleReasons) {
    if (throttle_reasons & bit) text += fmt::format("{}{}", text.empty() ? "" : ", ", reason);
  }
  return text;
}

// The functions that are used, with NVML's names without the prefix "nvml". All but the first ones may be missing in
// an old driver.
struct Nvml::Api {
  using Gpu = void*;
  struct Utilization {
    unsigned gpu, memory;  // percent
  };
  struct Memory {
    unsigned long long total, free, used;
  };
  void* library = nullptr;
  int (*Init_v2)() = nullptr;
  int (*Shutdown)() = nullptr;
  int (*DeviceGetCount_v2)(unsigned*) = nullptr;
  int (*DeviceGetHandleByIndex_v2)(unsigned, Gpu*) = nullptr;
  int (*DeviceGetHandleByUUID)(const char*, Gpu*) = nullptr;
  const char* (*ErrorString)(int) = nullptr;
  int (*SystemGetDriverVersion)(char*, unsigned) = nullptr;
  int (*SystemGetCudaDriverVersion_v2)(int*) = nullptr;
  int (*DeviceGetName)(Gpu, char*, unsigned) = nullptr;
  int (*DeviceGetCudaComputeCapability)(Gpu, int*, int*) = nullptr;
  int (*DeviceGetUUID)(Gpu, char*, unsigned) = nullptr;
  int (*DeviceGetPowerUsage)(Gpu, unsigned*) = nullptr;
  int (*DeviceGetEnforcedPowerLimit)(Gpu, unsigned*) = nullptr;
  int (*DeviceGetPowerManagementDefaultLimit)(Gpu, unsigned*) = nullptr;
  int (*DeviceGetTotalEnergyConsumption)(Gpu, unsigned long long*) = nullptr;
  int (*DeviceGetUtilizationRates)(Gpu, Utilization*) = nullptr;
  int (*DeviceGetClockInfo)(Gpu, unsigned, unsigned*) = nullptr;
  int (*DeviceGetMaxClockInfo)(Gpu, unsigned, unsigned*) = nullptr;
  int (*DeviceGetTemperature)(Gpu, unsigned, unsigned*) = nullptr;
  int (*DeviceGetMemoryInfo)(Gpu, Memory*) = nullptr;
  int (*DeviceGetCurrentClocksThrottleReasons)(Gpu, unsigned long long*) = nullptr;
  int (*DeviceGetComputeRunningProcesses)(Gpu, unsigned*, void*) = nullptr;
  int (*DeviceGetPersistenceMode)(Gpu, unsigned*) = nullptr;
  int (*DeviceGetEccMode)(Gpu, unsigned*, unsigned*) = nullptr;
  int (*DeviceGetMigMode)(Gpu, unsigned*, unsigned*) = nullptr;

  void load() {
#define OCTET_FIND(name) name = reinterpret_cast<decltype(name)>(dlsym(library, "nvml" #name))
    OCTET_FIND(Init_v2);
    OCTET_FIND(Shutdown);
    OCTET_FIND(DeviceGetCount_v2);
    OCTET_FIND(DeviceGetHandleByIndex_v2);
    OCTET_FIND(DeviceGetHandleByUUID);
    OCTET_FIND(ErrorString);
    OCTET_FIND(SystemGetDriverVersion);
    OCTET_FIND(SystemGetCudaDriverVersion_v2);
    OCTET_FIND(DeviceGetName);
    OCTET_FIND(DeviceGetCudaComputeCapability);
    OCTET_FIND(DeviceGetUUID);
    OCTET_FIND(DeviceGetPowerUsage);
    OCTET_FIND(DeviceGetEnforcedPowerLimit);
    OCTET_FIND(DeviceGetPowerManagementDefaultLimit);
    OCTET_FIND(DeviceGetTotalEnergyConsumption);
    OCTET_FIND(DeviceGetUtilizationRates);
    OCTET_FIND(DeviceGetClockInfo);
    OCTET_FIND(DeviceGetMaxClockInfo);
    OCTET_FIND(DeviceGetTemperature);
    OCTET_FIND(DeviceGetMemoryInfo);
    OCTET_FIND(DeviceGetCurrentClocksThrottleReasons);
    OCTET_FIND(DeviceGetComputeRunningProcesses);
    OCTET_FIND(DeviceGetPersistenceMode);
    OCTET_FIND(DeviceGetEccMode);
    OCTET_FIND(DeviceGetMigMode);
#undef OCTET_FIND
  }
  bool is_complete() const {
    return Init_v2 && Shutdown && DeviceGetCount_v2 && DeviceGetHandleByIndex_v2 && DeviceGetHandleByUUID;
  }

  // Calls a function that fills one value; empty if it is missing or fails.
  template <class Value, class Function, class... Args>
  static std::optional<Value> ask(Function function, Args... args) {
    Value value{};
    if (!function || function(args..., &value) != kSuccess) return std::nullopt;
    return value;
  }
};

std::shared_ptr<const Nvml> Nvml::open(std::string& reason) {
  auto api = std::make_unique<Api>();
  const char* chosen = std::getenv("OCTET_NVML_LIBRARY");
  api->library = dlopen(chosen ? chosen : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!api->library) {
    reason = fmt::format("the NVIDIA driver is not installed ({})", dlerror());
    return nullptr;
  }
  api->load();
  if (!api->is_complete()) {
    reason = "libnvidia-ml.so.1 lacks functions that every driver since 2016 has";
    dlclose(api->library);
    return nullptr;
  }
  if (const int status = api->Init_v2(); status != kSuccess) {
    reason = fmt::format("NVML does not start: {}",
                         api->ErrorString ? api->ErrorString(status) : std::to_string(status).c_str());
    dlclose(api->library);
    return nullptr;
  }
  return std::shared_ptr<const Nvml>(new Nvml(std::move(api)));
}

Nvml::Nvml(std::unique_ptr<Api> api) : api_(std::move(api)) {}

Nvml::~Nvml() {
  api_->Shutdown();
  dlclose(api_->library);
}

std::string Nvml::driver_version() const {
  char text[96] = {};
  if (!api_->SystemGetDriverVersion || api_->SystemGetDriverVersion(text, sizeof text) != kSuccess) return "";
  return text;
}

std::string Nvml::cuda_version() const {
  const std::optional<int> version = Api::ask<int>(api_->SystemGetCudaDriverVersion_v2);
  return version ? fmt::format("{}.{}", *version / 1000, *version % 1000 / 10) : "";
}

int Nvml::gpus() const {
  return static_cast<int>(Api::ask<unsigned>(api_->DeviceGetCount_v2).value_or(0));
}

void* Nvml::find(int gpu) const {
  Api::Gpu handle = nullptr;
  if (gpu < 0 || api_->DeviceGetHandleByIndex_v2(static_cast<unsigned>(gpu), &handle) != kSuccess)
    return nullptr;
  return handle;
}

void* Nvml::find(const std::string& uuid) const {
  if (uuid.size() != 32) return nullptr;
  const std::string name = fmt::format("GPU-{}-{}-{}-{}-{}", uuid.substr(0, 8), uuid.substr(8, 4),
                                       uuid.substr(12, 4), uuid.substr(16, 4), uuid.substr(20));
  Api::Gpu handle = nullptr;
  return api_->DeviceGetHandleByUUID(name.c_str(), &handle) == kSuccess ? handle : nullptr;
}

std::optional<GpuState> Nvml::state(int gpu) const {
  void* handle = find(gpu);
  return handle ? std::optional(read(handle)) : std::nullopt;
}

std::optional<GpuState> Nvml::state(const std::string& uuid) const {
  void* handle = find(uuid);
  return handle ? std::optional(read(handle)) : std::nullopt;
}

std::optional<NvmlGpu> NvmlGpu::find(std::shared_ptr<const Nvml> nvml, int gpu) {
  void* handle = nvml->find(gpu);
  return handle ? std::optional(NvmlGpu(std::move(nvml), handle)) : std::nullopt;
}

std::optional<NvmlGpu> NvmlGpu::find(std::shared_ptr<const Nvml> nvml, const std::string& uuid) {
  void* handle = nvml->find(uuid);
  return handle ? std::optional(NvmlGpu(std::move(nvml), handle)) : std::nullopt;
}

void Nvml::read_changing(void* gpu, GpuState& state) const {
  const Api& api = *api_;
  state.power_watts = scaled(Api::ask<unsigned>(api.DeviceGetPowerUsage, gpu), 1e-3);
  state.energy_joules = scaled(Api::ask<unsigned long long>(api.DeviceGetTotalEnergyConsumption, gpu), 1e-3);
  const auto rates = Api::ask<Api::Utilization>(api.DeviceGetUtilizationRates, gpu);
  state.utilization = rates ? std::optional(0.01 * rates->gpu) : std::nullopt;
  state.sm_clock_mhz = scaled(Api::ask<unsigned>(api.DeviceGetClockInfo, gpu, kSmClock), 1);
  state.temperature_c = scaled(Api::ask<unsigned>(api.DeviceGetTemperature, gpu, kTemperatureOfGpu), 1);
  state.throttle_reasons =
      Api::ask<unsigned long long>(api.DeviceGetCurrentClocksThrottleReasons, gpu).value_or(0);
}

GpuState Nvml::read(void* gpu) const {
  const Api& api = *api_;
  GpuState state;
  read_changing(gpu, state);
  char text[96] = {};
  if (api.DeviceGetName && api.DeviceGetName(gpu, text, sizeof text) == kSuccess) state.name = text;
  if (api.DeviceGetCudaComputeCapability) api.DeviceGetCudaComputeCapability(gpu, &state.major, &state.minor);
  if (api.DeviceGetUUID && api.DeviceGetUUID(gpu, text, sizeof text) == kSuccess) state.uuid = text;
  state.power_limit_watts = scaled(Api::ask<unsigned>(api.DeviceGetEnforcedPowerLimit, gpu), 1e-3);
  state.default_power_limit_watts =
      scaled(Api::ask<unsigned>(api.DeviceGetPowerManagementDefaultLimit, gpu), 1e-3);
  const auto clock = [&](auto function, unsigned kind) {
    return scaled(Api::ask<unsigned>(function, gpu, kind), 1);
  };
  state.max_sm_clock_mhz = clock(api.DeviceGetMaxClockInfo, kSmClock);
  state.memory_clock_mhz = clock(api.DeviceGetClockInfo, kMemoryClock);
  state.max_memory_clock_mhz = clock(api.DeviceGetMaxClockInfo, kMemoryClock);
  if (const auto memory = Api::ask<Api::Memory>(api.DeviceGetMemoryInfo, gpu)) {
    state.memory_bytes = static_cast<int64_t>(memory->total);
    state.memory_used_bytes = static_cast<int64_t>(memory->used);
  }
  if (api.DeviceGetComputeRunningProcesses) {
    unsigned count = 0;  // with room for none, NVML only counts
    const int status = api.DeviceGetComputeRunningProcesses(gpu, &count, nullptr);
    if (status == kSuccess || status == kInsufficientSize) state.compute_processes = static_cast<int>(count);
  }
  if (const auto mode = Api::ask<unsigned>(api.DeviceGetPersistenceMode, gpu))
    state.persistence_mode = *mode != 0;
  unsigned current = 0, pending = 0;
  if (api.DeviceGetEccMode && api.DeviceGetEccMode(gpu, &current, &pending) == kSuccess)
    state.ecc = current != 0;
  if (api.DeviceGetMigMode && api.DeviceGetMigMode(gpu, &current, &pending) == kSuccess)
    state.mig = current != 0;
  return state;
}

}  // namespace octet
