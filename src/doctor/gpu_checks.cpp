#include <fmt/format.h>

#include <algorithm>

#include "backend/cuda_libraries.h"
#include "dist/engines.h"
#include "doctor/checks.h"
#include "plan/device_choice.h"
#include "report/text.h"

namespace octet {
namespace {

constexpr const char* kNeeded =
    "FP8 needs an NVIDIA GPU of compute capability 9.0 (H100, H200, GH200), a driver for CUDA 13 (580 or later), and a "
    "build of octet with CUDA ('make build CUDA=ON')";

std::string bytes_text(int64_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

// What is lost without a library.
struct LibraryNeed {
  std::string_view name, cost, package;
  bool is_needed;  // nothing runs on the GPU without it
};
constexpr LibraryNeed kLibraries[] = {
    {"cuBLASLt", "no product runs on the GPU", "libcublas of the CUDA toolkit, or nvidia-cublas of pip",
     true},
    {"cuDNN", "attention runs on octet's own kernels, which are slower",
     "cudnn9-cuda-13, or nvidia-cudnn-cu13 of pip", false},
    {"NCCL", "several GPUs cannot train together", "libnccl2, or nvidia-nccl-cu13 of pip", false},
};

}  // namespace

std::vector<CheckResult> check_gpu_state(const GpuState& state) {
  CheckResults results("GPU");
  if (state.memory_bytes && state.memory_used_bytes) {
    const std::string text =
        fmt::format("{} of {} used", bytes_text(*state.memory_used_bytes), bytes_text(*state.memory_bytes));
    // This program's own context takes part of a gibibyte.
    const bool is_free = *state.memory_used_bytes < std::max(*state.memory_bytes / 20, int64_t{2} << 30);
    CheckResult& memory =
        is_free ? results.ok("memory", text)
                : results.warning("memory", text, "end the programs that use it: nvidia-smi lists them");
    memory.figures = {{"bytes", static_cast<double>(*state.memory_bytes)},
                      {"used_bytes", static_cast<double>(*state.memory_used_bytes)}};
  }
  if (state.compute_processes.value_or(0) > 0)
    results.warning("other programs",
                    fmt::format("{} on this GPU",
                                counted(*state.compute_processes, "program computes", "programs compute")),
                    "share no GPU during training: 'nvidia-smi' lists the programs");
  if (state.power_limit_watts) {
    const double limit = *state.power_limit_watts, usual = state.default_power_limit_watts.value_or(limit);
    CheckResult& power =
        limit >= 0.99 * usual
            ? results.ok("power limit", fmt::format("{:.0f} W", limit))
            : results.warning(
                  "power limit", fmt::format("{:.0f} W, {:.0f} W by default", limit, usual),
                  fmt::format("the GPU is slower under load; 'nvidia-smi -pl {:.0f}' restores it", usual));
    power.figures = {{"watts", limit}, {"default_watts", usual}};
  }
  if (state.sm_clock_mhz && state.max_sm_clock_mhz)
    results.ok("clocks", fmt::format("SM {:.0f} MHz now, {:.0f} MHz at most; {:.0f} W, {:.0f} C",
                                     *state.sm_clock_mhz, *state.max_sm_clock_mhz,
                                     state.power_watts.value_or(0), state.temperature_c.value_or(0)));
  if (const std::string reason = state.throttled(); !reason.empty())
    results.warning("throttling", fmt::format("the clocks are lowered: {}", reason),
                    "check cooling and power supply: 'nvidia-smi -q -d PERFORMANCE'");
  if (state.persistence_mode == false)
    results.warning("persistence mode", "off: every start of a program loads the driver again",
                    "'nvidia-smi -pm 1' turns it on");
  if (state.mig == true)
    results.warning("MIG", "this GPU is split into instances",
                    "a whole GPU trains faster: 'nvidia-smi -mig 0'");
  return results.take();
}

std::vector<CheckResult> check_gpu(const CudaProbe& probe, const Nvml* nvml, const std::string& nvml_problem,
                                   bool is_needed) {
  CheckResults results("GPU");
  const Health absent = is_needed ? Health::Failure : Health::Warning;
  if (nvml) {
    results.ok("driver", fmt::format("{}, supports CUDA {}; {}", nvml->driver_version(), nvml->cuda_version(),
                                     counted(nvml->gpus(), "GPU")));
  } else {
    results.add(absent, "driver", nvml_problem,
                "on a machine with an NVIDIA GPU, install the driver, version 580 or later");
  }
  if (!cuda_backend_built()) {
    results.add(absent, "program", probe.reason, gpu_remedy(probe));
  } else {
    results.ok("program", fmt::format("built with CUDA: {}", probe.driver));
  }
  if (probe.usable) {
    CheckResult& gpu = results.ok(
        "device", fmt::format("{}, compute capability {}.{}, {} free of {}", probe.name, probe.major,
                              probe.minor, bytes_text(probe.memory_free), bytes_text(probe.memory)));
    gpu.figures = {{"compute_capability", probe.major + 0.1 * probe.minor},
                   {"memory_bytes", static_cast<double>(probe.memory)}};
  } else {
    results.add(absent, "device", fmt::format("no GPU can be used: {}", probe.reason),
                probe.major > 0 ? gpu_remedy(probe) : kNeeded);
  }
  std::vector<CheckResult> all = results.take();
  if (nvml) {
    // Without a usable CUDA device, the first GPU of the machine.
    auto state = probe.usable ? nvml->state(probe.uuid) : nvml->state(0);
    // The probe has made this program one of those that use the GPU.
    if (state && probe.usable && state->compute_processes.value_or(0) > 0) --*state->compute_processes;
    if (state) {
      for (CheckResult& result : check_gpu_state(*state)) all.push_back(std::move(result));
    }
    // The other GPUs of the machine: only what is wrong with them.
    for (int i = 0; i < nvml->gpus(); ++i) {
      const auto other = nvml->state(i);
      if (!other || (state && other->uuid == state->uuid)) continue;
      for (CheckResult& result : check_gpu_state(*other)) {
        if (result.health == Health::Ok) continue;
        result.name = fmt::format("GPU {}: {}", i, result.name);
        all.push_back(std::move(result));
      }
    }
  }
  return all;
}

std::vector<CheckResult> check_libraries(bool gpu_is_needed) {
  CheckResults results("libraries");
  for (const CudaLibrary& library : cuda_libraries()) {
    const LibraryNeed* need = nullptr;
    for (const LibraryNeed& known : kLibraries) {
      if (known.name == library.name) need = &known;
    }
    if (!library.version.empty()) {
      results.ok(library.name, library.version);
    } else if (need) {
      results.add(need->is_needed && gpu_is_needed ? Health::Failure : Health::Warning, library.name,
                  fmt::format("missing, so {}: {}", need->cost, library.problem),
                  fmt::format("install {}", need->package));
    }
  }
  if (!cuda_backend_built())
    results.ok("GPU libraries",
               "cuBLASLt, cuDNN and NCCL are not looked for: the program was built without CUDA");
  const std::string gloo = gloo_description();
  if (gloo == "Gloo") {
    results.ok("Gloo", "present: several CPU processes can train together");
  } else {
    results.warning("Gloo", gloo,
                    "install libgloo-dev and build again; only runs of several CPU processes need it");
  }
  return results.take();
}

}  // namespace octet
