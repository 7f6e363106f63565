#pragma once

#include <memory>
#include <optional>

#include "base/nvml.h"
#include "doctor/check_result.h"
#include "doctor/products.h"
#include "ops/device.h"
#include "plan/resolve.h"

namespace octet {

// What doctor looks at, area by area. None of these throws for what it finds.

// What a run would be, planned without its data. One that cannot be planned may still have a model; `problem` says why.
struct DoctorRun {
  bool is_given = false;  // false: nobody named a configuration or keys
  ResolvedRun resolved;
  bool is_planned = false;
  std::vector<ProductShape> shapes;  // of the products to test, each once
  std::string exceptions;            // layers that do not run in FP8, with their reasons
  std::string problem;

  bool has_model() const { return resolved.model.config.layers > 0; }
};
// `run` has its keys, and gets the rest.
void plan_doctor_run(DoctorRun& run, const std::shared_ptr<Device>& device);

// CPU, memory, disks.
std::vector<CheckResult> check_host(const DoctorRun& run);
// Write and read speed of a folder, in MB/s, with a file of `bytes` that is removed. Error if it cannot be written.
struct DiskSpeed {
  double write = 0, read = 0;
};
DiskSpeed measure_disk(const std::string& folder, int64_t bytes);

// Driver, GPU, clocks, power; what is needed if there is none. `is_needed`: without a GPU the run cannot start.
std::vector<CheckResult> check_gpu(const CudaProbe& probe, const Nvml* nvml, const std::string& nvml_problem,
                                   bool is_needed);
// The state of a GPU on its own.
std::vector<CheckResult> check_gpu_state(const GpuState& state);
std::vector<CheckResult> check_libraries(bool gpu_is_needed);

// FP8 and BF16 on this device. `state` tells about the GPU under load; it may be empty.
struct ProductsOutcome {
  std::vector<CheckResult> results;
  bool native = false;
  std::optional<double> ratio;  // FP8 over BF16, all products together; only if native
};
// One line about the three products of a layer.
CheckResult judge_products(const ProductShape& shape, const std::vector<ProductTrial>& trials, bool timed);
ProductsOutcome check_products(Device& device, const DoctorRun& run,
                               const std::function<std::optional<GpuState>()>& state);

// The run that was asked for: coverage, memory, files.
std::vector<CheckResult> check_run(const DoctorRun& run);

// Hub, tokenizer, W&B.
std::vector<CheckResult> check_services(const DoctorRun& run);

// Environment variables that help, do nothing or hurt.
std::vector<CheckResult> check_environment();

}  // namespace octet
