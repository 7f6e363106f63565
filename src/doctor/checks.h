#pragma once

#include <memory>
#include <optional>

#include "base/nvml.h"
#include "doctor/check_result.h"
#include "doctor/products.h"
#include "ops/device.h"
#include "plan/model_stage.h"
#include "plan/run_plan.h"

namespace octet {

// What doctor looks at, area by area. None of these throws for what it finds.

// What a run would be, planned without its data. `plan` is empty if it could not be planned; `problem` says why.
struct DoctorRun {
  TrainConfig config;
  bool is_given = false;  // false: nobody named a configuration or keys
  std::optional<ModelChoice> model;
  std::optional<RunPlan> plan;
  std::vector<ProductShape> shapes;  // of the products to test, each once
  std::string exceptions;            // layers that do not run in FP8, with their reasons
  std::string problem;
};
DoctorRun plan_doctor_run(const TrainConfig& given, bool is_given, const std::shared_ptr<Device>& device);

// CPU, memory, disks.
std::vector<CheckResult> check_host(const DoctorRun& run);
// Write and read speed of a folder, in MB/s, with a file of `bytes` that is removed. Error if it cannot be written.
struct DiskSpeed {
  double write = 0, read = 0;
};
DiskSpeed measure_disk(const std::string& folder, int64_t bytes);

// Driver, GPU, clocks, power; what is needed if there is none.
std::vector<CheckResult> check_gpu(const CudaProbe& probe, const Nvml* nvml, const std::string& nvml_problem,
                                   const TrainConfig& config);
// The state of a GPU on its own.
std::vector<CheckResult> check_gpu_state(const GpuState& state);
std::vector<CheckResult> check_libraries(const TrainConfig& config);

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
