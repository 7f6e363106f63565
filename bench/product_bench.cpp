// GFLOP/s of single matrix products on one core, of the sizes that small models have. bench/cpu_products.py compares them
// with PyTorch's. Usage: product_bench [probe]. Prints JSON; with `probe` one rate, after some hundredths of a second.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cpu/matrix_product.h"
#include "base/philox.h"

using namespace octet;

namespace {

struct Sizes {
  const char* what;
  bool transpose_a, transpose_b;
  int64_t m, n, k;
};

constexpr Sizes kCases[] = {
    {"forward", false, true, 512, 384, 128},
    {"forward", false, true, 512, 512, 128},
    {"forward", false, true, 512, 128, 512},
    {"dgrad", false, false, 512, 128, 384},
    {"dgrad", false, false, 512, 512, 128},
    {"wgrad", true, false, 256, 128, 1024},
    {"long rows", false, true, 256, 256, 4096},
    {"scores", false, true, 64, 128, 32},
    {"scores times values", false, false, 64, 32, 128},
    {"decoding", false, true, 1, 4096, 1024},
};

std::vector<float> random_values(int64_t count, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = Philox(1, stream).uniform(i) - 0.5f;
  return values;
}

// The best of `passes` passes of about `flops_of_pass` operations each.
double gflops(const Sizes& s, int passes = 7, double flops_of_pass = 3e9) {
  const std::vector<float> a = random_values(s.m * s.k, 1), b = random_values(s.k * s.n, 2);
  std::vector<float> c(static_cast<size_t>(s.m * s.n));
  const cpu::Factor left{a.data(), s.transpose_a ? s.m : s.k, s.transpose_a};
  const cpu::Factor right{b.data(), s.transpose_b ? s.k : s.n, s.transpose_b};
  const double flops = 2.0 * static_cast<double>(s.m * s.n * s.k);
  const int calls = static_cast<int>(std::ceil(flops_of_pass / flops));
  double best = 0;
  for (int pass = 0; pass < passes; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i)
      cpu::matrix_product(c.data(), s.n, left, right, s.m, s.n, s.k, 1.0f, false);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    best = std::max(best, 1e-9 * flops * calls / seconds.count());
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const bool probe = argc == 2 && std::string_view(argv[1]) == "probe";
  if (argc > 1 && !probe) {
    fmt::print(stderr, "usage: product_bench [probe]\n");
    return 2;
  }
  if (probe) {
    fmt::print("{:.1f}\n", gflops(kCases[1], 4, 1e9));
    return 0;
  }
  std::string lines;
  for (const Sizes& s : kCases) {
    lines += fmt::format(
        R"({}{{"what": "{}", "transpose_a": {}, "transpose_b": {}, "m": {}, "n": {}, "k": {}, "gflops": {:.1f}}})",
        lines.empty() ? "" : ",\n  ", s.what, s.transpose_a, s.transpose_b, s.m, s.n, s.k, gflops(s));
  }
  fmt::print("{{\"instructions\": \"{}\", \"products\": [\n  {}]}}\n", cpu::product_instructions(), lines);
}
