#include <cmath>
#include <cstdio>
#include <fstream>

#include "cuda/fixture.h"

namespace octet::test {
namespace {

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::isfinite(difference) ? std::sqrt(difference / size) : INFINITY;
}

std::vector<float> floats(Side& side, const Tensor& x) {
  std::vector<float> result(static_cast<size_t>(x.numel()));
  const auto bytes = side.bytes(x);
  for (size_t i = 0; i < result.size(); ++i) {
    if (x.dtype == DType::F32) {
      std::memcpy(&result[i], bytes.data() + 4 * i, 4);
    } else {
      Bf16 half;
      std::memcpy(&half, bytes.data() + 2 * i, 2);
      result[i] = to_float(half);
    }
  }
  return result;
}

using CudaGemm = CudaTest;

// Every pair of granularities and formats that a product may have, aligned (native where the library can) and
// not. The FP8 tensor cores keep about 14 bits while they add.
TEST_F(CudaGemm, Fp8AgreesWithCpu) {
  struct Size {
    int64_t m, n, k;
  };
  for (const Size size : {Size{128, 256, 384}, Size{64, 48, 1040}, Size{17, 23, 50}, Size{256, 128, 200}}) {
    for (const QuantizeRule& rule_a : all_rules()) {
      for (const QuantizeRule& rule_b : all_rules()) {
        if (rule_a.format_rowwise == DType::E5M2 && rule_b.format_rowwise == DType::E5M2) continue;
        if (rule_a.delayed || rule_b.delayed || rule_b.pow2_scales) continue;
        // Only the rowwise copies take part.
        if (rule_a.format_rowwise != rule_a.format_colwise || rule_b.format_rowwise != rule_b.format_colwise)
          continue;
        for (const DType out : {DType::F32, DType::BF16}) {
          for (const bool accumulate : {false, true}) {
            const bool bias = accumulate && out == DType::BF16;
            std::vector<std::vector<float>> results;
            for (Side* side : {cuda.get(), cpu.get()}) {
              const size_t mark = side->mark();
              Quantized a = make_quantized(*side, size.m, size.k, rule_a);
              Quantized b = make_quantized(*side, size.n, size.k, rule_b);
              const Tensor x = side->upload(DType::BF16, {size.m, size.k}, normal_values(size.m * size.k, 1));
              const Tensor w =
                  side->upload(DType::BF16, {size.n, size.k}, normal_values(size.n * size.k, 2, 0.1f));
              (*side)->ops().quantize({.dense = x, .fp8 = &a});
              (*side)->ops().quantize({.dense = w, .fp8 = &b});
              const Tensor c = side->upload(out, {size.m, size.n}, normal_values(size.m * size.n, 3));
              GemmOptions options{.accumulate = accumulate};
              if (bias) options.bias = side->upload(DType::BF16, {size.n}, normal_values(size.n, 4));
              (*side)->ops().gemm_fp8(c, a.rowwise, b.rowwise, options);
              results.push_back(floats(*side, c));
              side->release(mark);
            }
            ASSERT_LE(distance(results[0], results[1]), 3e-3)
                << describe(rule_a) << " x " << describe(rule_b) << " -> " << name_of(out) << " m " << size.m
                << " n " << size.n << " k " << size.k << " accumulate " << accumulate;
          }
        }
      }
    }
  }
}

// With tuning on: the timed launches must not show in the result, and a second backend must read what was
// kept.
TEST_F(CudaGemm, TuningKeepsResults) {
  const std::string cache = testing::TempDir() + "octet_tuning_test.jsonl";
  std::remove(cache.c_str());
  const int64_t m = 256, n = 512, k = 320;
  std::vector<std::vector<float>> results;
  int lines = 0;
  for (int pass = 0; pass < 3; ++pass) {
    Side side(pass == 2 ? make_cpu_device(1) : make_cuda_device({.tuning_cache = cache}));
    const Tensor a = side.upload(DType::BF16, {m, k}, normal_values(m * k, 1));
    const Tensor b = side.upload(DType::BF16, {n, k}, normal_values(n * k, 2));
    const Tensor c = side.upload(DType::F32, {m, n}, normal_values(m * n, 3));
    for (int i = 0; i < 2; ++i) side->ops().gemm(c, a, b, {.transpose_b = true, .accumulate = true});
    results.push_back(floats(side, c));
    int now = 0;
    std::ifstream file(cache);
    for (std::string line; std::getline(file, line);) ++now;
    if (pass == 0) lines = now;
    EXPECT_EQ(now, lines);
  }
  EXPECT_GE(lines, 1);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_LE(distance(results[0], results[2]), 1e-5);
  std::remove(cache.c_str());
}

}  // namespace
}  // namespace octet::test
