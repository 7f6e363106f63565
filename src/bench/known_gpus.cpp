#include "bench/known_gpus.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace octet {
namespace {

constexpr std::string_view kNoKernels =
    "octet has no kernels for this GPU yet: it can plan for it, but not run on it";
constexpr std::string_view kBlackwell =
    "octet has kernels for this GPU (-DOCTET_CUDA_BLACKWELL=ON), but nobody has run them; its MXFP8 tensor cores are not "
    "used yet, so fp8_recipe mxfp8 runs as delayed";
constexpr std::string_view kHopper =
    "octet has been measured on an H200, which has the same kernels, not on this GPU";

// Memory that a run can use. It was measured on the H200 only; the others are estimates: the nominal size, less what the
// driver and the CUDA context take.
constexpr KnownGpu kGpus[] = {
    {"h100", "NVIDIA H100", 78.5, 132, Fp8Kernels::TensorAndBlock, true, kHopper},
    {"h100-nvl", "NVIDIA H100 NVL", 92.5, 132, Fp8Kernels::TensorAndBlock, true, kHopper},
    {"h200", "NVIDIA H200", 139, 132, Fp8Kernels::TensorAndBlock, true, ""},
    {"gh200", "NVIDIA GH200 96GB", 94.5, 132, Fp8Kernels::TensorAndBlock, true, kHopper},
    // Like the H200, which has little less memory.
    {"gh200-144gb", "NVIDIA GH200 144GB", 139, 132, Fp8Kernels::TensorAndBlock, true, kHopper},
    {"b200", "NVIDIA B200", 177.5, 148, Fp8Kernels::Tensor, true, kBlackwell},
    // One of its GPUs, planned like a B200.
    {"gb200", "NVIDIA GB200", 177.5, 148, Fp8Kernels::Tensor, true, kBlackwell},
    {"a100", "NVIDIA A100 80GB", 78.5, 108, Fp8Kernels::None, false, kNoKernels},
    {"a100-40gb", "NVIDIA A100 40GB", 38.8, 108, Fp8Kernels::None, false, kNoKernels},
    {"l40s", "NVIDIA L40S", 43.8, 142, Fp8Kernels::Tensor, false, kNoKernels},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 23.1, 128, Fp8Kernels::Tensor, false, kNoKernels},
    {"rtx5090", "NVIDIA GeForce RTX 5090", 30.8, 170, Fp8Kernels::Tensor, false, kNoKernels},
};

// Letters and digits in lower case, without makers and words that all GPUs of a kind have.
std::string plain(std::string_view name) {
  std::string text, word;
  const auto add = [&] {
    constexpr std::string_view kIdle[] = {"nvidia", "geforce", "tesla", "gpu",  "sxm",  "sxm2",
                                          "sxm4",   "sxm5",    "sxm6",  "pcie", "hbm2", "hbm3"};
    if (std::ranges::find(kIdle, word) == std::end(kIdle)) text += word;
    word.clear();
  };
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0) {
      word += static_cast<char>(std::tolower(byte));
    } else {
      add();
    }
  }
  add();
  return text;
}

// "80", "80GB", "80 GiB"
bool is_memory_size(std::string_view text) {
  const size_t digits = text.find_first_not_of("0123456789.");
  if (digits == 0 || text.empty()) return false;
  const std::string unit = digits == text.npos ? "" : plain(text.substr(digits));
  return unit.empty() || unit == "g" || unit == "gb" || unit == "gib";
}

}  // namespace

KnownGpu known_gpu(std::string_view name) {
  // A card's memory is part of its name where there are several.
  constexpr std::pair<std::string_view, std::string_view> kOther[] = {
      {"h10080gb", "h100"},   {"h100nvl94gb", "h100nvl"}, {"h200141gb", "h200"},
      {"gh20096gb", "gh200"}, {"gh200480gb", "gh200"},    {"gh200144ghbm3e", "gh200144gb"},
      {"gb100", "b200"},      {"a10080gb", "a100"},       {"4090", "rtx4090"},
      {"5090", "rtx5090"}};
  std::string wanted = plain(name);
  for (const auto& [other, key] : kOther) {
    if (wanted == other) wanted = key;
  }
  for (const KnownGpu& gpu : kGpus) {
    if (plain(gpu.key) == wanted) return gpu;
  }
  if (is_memory_size(name)) {
    fail_config(
        "--gpu is '{}', expected the name of a GPU: {}. To plan for a size of memory, add --device_memory_limit_gb to "
        "one of them",
        printable(name), known_gpu_keys());
  }
  fail_config(
      "--gpu: '{}' is not known, expected one of {}; device_memory_limit_gb sets another size of memory",
      printable(name), known_gpu_keys());
}

std::string known_gpu_keys() {
  std::vector<std::string_view> keys;
  for (const KnownGpu& gpu : kGpus) keys.push_back(gpu.key);
  return fmt::format("{}", fmt::join(keys, ", "));
}

}  // namespace octet
