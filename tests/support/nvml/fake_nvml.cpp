// A libnvidia-ml for tests. Its values are those of the file that FAKE_NVML_STATE names, one "name value" per line, read
// anew at every call, so that a test can change them during a run. A value that is not there is "not supported".
// power_mw also drives the energy counter, from energy_mj at the first call on.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>

namespace {

constexpr int kSuccess = 0, kNotSupported = 3, kNotFound = 6;
constexpr const char* kUuid = "GPU-00112233-4455-6677-8899-aabbccddeeff";

std::map<std::string, std::string> values() {
  std::map<std::string, std::string> result;
  const char* path = std::getenv("FAKE_NVML_STATE");
  std::ifstream file(path ? path : "");
  for (std::string name, value; file >> name && std::getline(file >> std::ws, value);) result[name] = value;
  return result;
}

template <class Number>
int give(const char* name, Number* to) {
  const auto all = values();
  const auto value = all.find(name);
  if (value == all.end()) return kNotSupported;
  *to = static_cast<Number>(std::stoull(value->second));
  return kSuccess;
}

int give_text(const char* name, const char* otherwise, char* to, unsigned size) {
  const auto all = values();
  const auto value = all.find(name);
  std::strncpy(to, value == all.end() ? otherwise : value->second.c_str(), size - 1);
  to[size - 1] = '\0';
  return kSuccess;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  return values().contains("init_fails") ? 9 : kSuccess;
}
int nvmlShutdown() {
  return kSuccess;
}
const char* nvmlErrorString(int status) {
  return status == 9 ? "Driver Not Loaded" : "error";
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 1;
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** gpu) {
  *gpu = gpu;
  return index == 0 ? kSuccess : kNotFound;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** gpu) {
  *gpu = gpu;
  return std::strcmp(uuid, kUuid) == 0 ? kSuccess : kNotFound;
}
int nvmlSystemGetDriverVersion(char* to, unsigned size) {
  return give_text("driver", "580.95.05", to, size);
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return kSuccess;
}
int nvmlDeviceGetName(void*, char* to, unsigned size) {
  return give_text("name", "Fake H200", to, size);
}
int nvmlDeviceGetCudaComputeCapability(void*, int* major, int* minor) {
  const int status = give("major", major);
  return status == kSuccess ? give("minor", minor) : status;
}
int nvmlDeviceGetUUID(void*, char* to, unsigned size) {
  return give_text("uuid", kUuid, to, size);
}
int nvmlDeviceGetPowerUsage(void*, unsigned* to) {
  return give("power_mw", to);
}
int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* to) {
  return give("power_limit_mw", to);
}
int nvmlDeviceGetPowerManagementDefaultLimit(void*, unsigned* to) {
  return give("default_power_limit_mw", to);
}
int nvmlDeviceGetTotalEnergyConsumption(void*, unsigned long long* to) {
  static const auto start = std::chrono::steady_clock::now();
  unsigned long long base = 0, power = 0;
  if (give("energy_mj", &base) != kSuccess) return kNotSupported;
  give("power_mw", &power);
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  *to = base + static_cast<unsigned long long>(passed.count() * static_cast<double>(power));
  return kSuccess;
}
int nvmlDeviceGetUtilizationRates(void*, unsigned* to) {
  to[1] = 0;
  return give("utilization", to);
}
int nvmlDeviceGetClockInfo(void*, unsigned kind, unsigned* to) {
  return give(kind == 1 ? "sm_clock" : "memory_clock", to);
}
int nvmlDeviceGetMaxClockInfo(void*, unsigned kind, unsigned* to) {
  return give(kind == 1 ? "max_sm_clock" : "max_memory_clock", to);
}
int nvmlDeviceGetTemperature(void*, unsigned, unsigned* to) {
  return give("temperature", to);
}
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* to) {
  to[1] = 0;
  return give("memory", &to[0]) == kSuccess ? give("memory_used", &to[2]) : kNotSupported;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* to) {
  return give("throttle", to);
}
int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) {
  const int status = give("processes", count);
  return status == kSuccess && *count > 0 ? 7 : status;
}
int nvmlDeviceGetPersistenceMode(void*, unsigned* to) {
  return give("persistence", to);
}
}
