#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <span>
#include <string>
#include <vector>

#include "train/config.h"

namespace octet {

// Parses what follows a command's name; false after --help, which is then printed. Wrong usage is thrown.
inline bool parse_arguments(CLI::App& app, std::span<const std::string> arguments) {
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // CLI11 takes them from the back
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return false;
  }
  return true;
}

// Where and in what a model that is only read runs.
struct DeviceOptions {
  std::string device = "auto";
  std::string precision;
  int64_t threads = 0;

  // `precisions` are the allowed ones; the default is bf16 on a GPU and fp32 on the CPU.
  void add_to(CLI::App& app, const std::vector<std::string>& precisions) {
    app.add_option("--device", device, "auto, cpu or cuda")->check(CLI::IsMember({"auto", "cpu", "cuda"}));
    app.add_option("--mixed_precision", precision, "Default: bf16 on a GPU, fp32 on the CPU")
        ->check(CLI::IsMember(precisions));
    app.add_option("--num_threads", threads, "Of the CPU; 0: all")->check(CLI::NonNegativeNumber);
  }
  TrainConfig config() const {
    TrainConfig result;
    result.device = device == "cpu"    ? TrainConfig::Device::Cpu
                    : device == "cuda" ? TrainConfig::Device::Cuda
                                       : TrainConfig::Device::Auto;
    result.num_threads = threads;
    return result;
  }
  std::string precision_on(const Backend& backend) const {
    return !precision.empty() ? precision : backend.name() == "cuda" ? "bf16" : "fp32";
  }
};

}  // namespace octet
