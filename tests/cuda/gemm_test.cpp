#include <cmath>
#include <cstdio>
#include <fstream>

#include "backend/cuda/gemm_check.h"
#include "cuda/fixture.h"
#include "support/op_case.h"

namespace octet::test {
namespace {

std::vector<double> values_of(Side& side, const Tensor& x) {
  return to_doubles(x.dtype, side.bytes(x));
}

using CudaGemm = CudaTest;

// Columns of wider matrices, as in parts of a fused projection: what lies between them is neither read nor written.
TEST_F(CudaGemm, TakesViewsWithARowStride) {
  constexpr int64_t m = 48, n = 64, k = 80, kBefore = 16, kWidth = 160;
  for (const DType dtype : {DType::BF16, DType::F32}) {
    for (const bool accumulate : {false, true}) {
      std::vector<std::vector<double>> results;
      for (Side* side : {cuda, cpu}) {
        const auto wide = [&](int64_t rows, uint64_t seed) {
          return side->upload(dtype, {rows, kWidth}, normal_values(rows * kWidth, seed));
        };
        const Tensor a = wide(m, 1), b = wide(n, 2), c = wide(m, 3);
        (*side)->ops().gemm(Matrix(c).columns(kBefore, n), Matrix(a).columns(kBefore, k),
                            Matrix(b).columns(2 * kBefore, k),
                            {.transpose_b = true, .accumulate = accumulate});
        results.push_back(values_of(*side, c));
      }
      EXPECT_EQ(mismatch(results[0], results[1], tolerance_of(dtype), 0, kWidth), "")
          << name_of(dtype) << (accumulate ? ", added to c" : "");
    }
  }
}

// With tuning on: the timed launches must not show in the result, and a second backend must read what was
// kept.
TEST_F(CudaGemm, TuningKeepsResults) {
  const std::string cache = testing::TempDir() + "octet_tuning_test.jsonl";
  std::remove(cache.c_str());
  const int64_t m = 256, n = 512, k = 320;
  std::vector<std::vector<double>> results;
  int lines = 0;
  for (int pass = 0; pass < 3; ++pass) {
    Side side(pass == 2 ? make_cpu_device(1) : make_cuda_device({.tuning_cache = cache}));
    const Tensor a = side.upload(DType::BF16, {m, k}, normal_values(m * k, 1));
    const Tensor b = side.upload(DType::BF16, {n, k}, normal_values(n * k, 2));
    const Tensor c = side.upload(DType::F32, {m, n}, normal_values(m * n, 3));
    for (int i = 0; i < 2; ++i) side->ops().gemm(c, a, b, {.transpose_b = true, .accumulate = true});
    results.push_back(values_of(side, c));
    int now = 0;
    std::ifstream file(cache);
    for (std::string line; std::getline(file, line);) ++now;
    if (pass == 0) lines = now;
    EXPECT_EQ(now, lines);
  }
  EXPECT_GE(lines, 1);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(mismatch(results[0], results[2], kFp32), "");
  std::remove(cache.c_str());
}

// Sums inside the tensor cores keep fewer bits, but enough: the products of long sums stay close, in norm, to those that
// the CPU adds up in fp32. That the bits differ shows that the flag has an effect.
TEST_F(CudaGemm, FastAccumulationIsCloseEnough) {
  constexpr int64_t m = 128, n = 256, k = 8192;
  std::vector<std::vector<double>> results;
  for (Side* side : {cpu, cuda}) {
    Quantized a = make_quantized(*side, m, k, {}), b = make_quantized(*side, n, k, {});
    const Tensor x = side->upload(DType::BF16, {m, k}, normal_values(m * k, 1));
    const Tensor w = side->upload(DType::BF16, {n, k}, normal_values(n * k, 2));
    (*side)->ops().quantize({.dense = x, .fp8 = &a});
    (*side)->ops().quantize({.dense = w, .fp8 = &b});
    const Tensor y = side->tensor(DType::F32, {m, n});
    for (const bool fast : {false, true}) {
      (*side)->ops().gemm_fp8(y, a.rowwise, b.rowwise, {.fast_accumulation = fast});
      results.push_back(values_of(*side, y));
    }
  }
  EXPECT_EQ(results[0], results[1]) << "the CPU has one way to add";
  const auto error = [&](const std::vector<double>& result) {
    double difference = 0, total = 0;
    for (size_t i = 0; i < result.size(); ++i) {
      difference += (result[i] - results[0][i]) * (result[i] - results[0][i]);
      total += results[0][i] * results[0][i];
    }
    return std::sqrt(difference / total);
  };
  EXPECT_LT(error(results[2]), 5e-4);
  EXPECT_LT(error(results[3]), 2.5e-3);  // in one chain of 8,192 terms
  EXPECT_LT(error(results[2]), error(results[3]));
  EXPECT_NE(results[2], results[3]);
}

// The shapes of real products, because an algorithm may be wrong for some of them alone. The plan of a product without its
// last rows of K runs on the same operands.
TEST_F(CudaGemm, TheCheckFindsAMissingRowOfK) {
  constexpr int64_t kWorkspace = int64_t{32} << 20;
  const DeviceMemory workspace = allocate_device(kWorkspace, "test");
  const CudaStream stream;
  GemmPlanner planner(stream.get(), "test", "", false);
  const auto forward = [](int64_t m, int64_t n, int64_t k) {
    return GemmKey{.m = m, .n = n, .k = k, .lda = k, .ldb = k, .ldc = m, .transpose_a = true};
  };
  const auto fp8 = [](GemmKey key, bool fast) {
    key.type_a = key.type_b = CUDA_R_8F_E4M3;
    key.scale_a = key.scale_b = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    key.fast_accumulation = fast;
    return key;
  };
  std::vector<GemmKey> keys = {forward(2304, 4096, 768), fp8(forward(2304, 4096, 768), true),
                               fp8(forward(4096, 512, 65536), true), fp8(forward(4096, 512, 14336), false)};
  keys[0].bias = CUDA_R_16BF;
  GemmKey weight_gradient{
      .m = 768, .n = 3072, .k = 8192, .lda = 768, .ldb = 3072, .ldc = 768, .transpose_b = true};
  weight_gradient.type_c = CUDA_R_32F;
  weight_gradient.accumulate = true;
  keys.push_back(weight_gradient);
  weight_gradient.accumulate = false;
  weight_gradient.type_a = weight_gradient.type_b = CUDA_R_32F;
  keys.push_back(weight_gradient);
  for (const GemmKey& key : keys) {
    const std::unique_ptr<GemmCheck> check = GemmCheck::make(key, stream.get());
    ASSERT_TRUE(check);
    check->prepare();
    EXPECT_GT(check->wrong_elements(), key.m * key.n * 9 / 10)
        << key.to_string() << ": C was not computed yet";
    check->prepare();
    planner.run(key, check->call(), workspace.get(), kWorkspace);
    EXPECT_EQ(check->wrong_elements(), 0) << key.to_string();
    GemmKey shorter = key;
    shorter.k -= key.scale_a ? 16 : 1;
    check->prepare();
    planner.run(shorter, check->call(), workspace.get(), kWorkspace);
    // Several rows may cancel, one does not.
    EXPECT_GT(check->wrong_elements(), key.m * key.n * (key.scale_a ? 6 : 9) / 10) << key.to_string();
  }
}

}  // namespace
}  // namespace octet::test
