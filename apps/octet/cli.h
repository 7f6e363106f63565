#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"

namespace octet {

// Like CLI11's own, with messages that can be read.
inline CLI::Validator number_that(const std::string& is, const std::function<bool(double)>& good) {
  return {[=](std::string& text) {
            double value = 0;
            const bool is_number = CLI::detail::lexical_cast(text, value);
            return is_number && good(value) ? "" : fmt::format("is '{}', expected a number {}", text, is);
          },
          ""};
}
inline CLI::Validator at_least(int least) {
  return number_that(fmt::format("of at least {}", least), [least](double x) { return x >= least; });
}
inline CLI::Validator above_zero() {
  return number_that("above 0", [](double x) { return x > 0; });
}

// Names of flags may be written with dashes, as those of keys.
inline std::string with_underscores(const CLI::App& app, const std::string& argument) {
  if (!argument.starts_with("--")) return argument;
  std::string name = argument.substr(0, argument.find('='));
  const size_t length = name.size();
  std::replace(name.begin() + 2, name.end(), '-', '_');
  return app.get_option_no_throw(name) ? name + argument.substr(length) : argument;
}

// Parses what follows a command's name; false after --help, which is then printed. Wrong usage is thrown.
inline bool parse_arguments(CLI::App& app, std::span<const std::string> arguments) {
  std::vector<std::string> reversed;  // CLI11 takes them from the back
  for (const std::string& argument : arguments) reversed.push_back(with_underscores(app, argument));
  std::ranges::reverse(reversed);
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
    app.add_option("--num_threads", threads, "Of the CPU; 0: all")->check(at_least(0));
  }
  TrainConfig config() const {
    TrainConfig result;
    result.device = device == "cpu"    ? TrainConfig::Device::Cpu
                    : device == "cuda" ? TrainConfig::Device::Cuda
                                       : TrainConfig::Device::Auto;
    result.num_threads = threads;
    return result;
  }
  std::string precision_on(const Device& on) const {
    return !precision.empty() ? precision : on.capabilities().fast_bf16 ? "bf16" : "fp32";
  }
};

}  // namespace octet
