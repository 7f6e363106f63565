#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "cuda/fixture.h"

// What the tests of attention on the GPU share. The reference is the CPU backend, which works from the same rounded
// inputs in fp32.

namespace octet::test {

struct AttentionTestCase {
  const char* name;
  int64_t heads, kv_heads, depth;
  std::vector<int32_t> starts;
  int64_t tokens;  // starts.back() unless some lie outside the documents
  int64_t window = 0;
};

inline AttentionTestCase packed_case(const char* name, int64_t heads, int64_t kv_heads, int64_t depth,
                                     std::vector<int32_t> lengths, int64_t window = 0) {
  AttentionTestCase result{name, heads, kv_heads, depth, {0}, 0, window};
  for (const int32_t length : lengths) result.starts.push_back(result.starts.back() + length);
  result.tokens = result.starts.back();
  return result;
}

struct AttentionResults {
  std::vector<float> out, lse, dqkv;
};

inline std::vector<float> download(Side& side, const Tensor& x) {
  std::vector<float> values(static_cast<size_t>(x.numel()));
  if (x.dtype == DType::F32) {
    side->copy_to_host(values.data(), x);
  } else {
    std::vector<Bf16> rounded(values.size());
    side->copy_to_host(rounded.data(), x);
    for (size_t i = 0; i < values.size(); ++i) values[i] = to_float(rounded[i]);
  }
  return values;
}

inline Tensor upload_starts(Side& side, const std::vector<int32_t>& starts) {
  Tensor result = side.tensor(DType::I32, {static_cast<int64_t>(starts.size())});
  side->copy_to_device(result, starts.data());
  return result;
}

struct AttentionInputs {
  Tensor qkv, dout;
  Documents documents;
  AttentionShape shape;
};

// Scores of a few units, so that the softmax is neither flat nor one-hot.
inline AttentionInputs make_inputs(Side& side, const AttentionTestCase& attention, DType dtype,
                                   uint64_t seed = 1) {
  AttentionInputs inputs;
  inputs.shape = {attention.heads, attention.kv_heads, attention.depth,
                  1.0f / std::sqrt(static_cast<float>(attention.depth)), attention.window};
  const int64_t qkv_size = attention.tokens * inputs.shape.qkv_width();
  inputs.qkv = side.upload(dtype, {attention.tokens, inputs.shape.qkv_width()},
                           normal_values(qkv_size, 2 * seed - 1, 1.5f));
  const int64_t out_size = attention.tokens * inputs.shape.out_width();
  inputs.dout =
      side.upload(dtype, {attention.tokens, inputs.shape.out_width()}, normal_values(out_size, 2 * seed));
  inputs.documents.starts = upload_starts(side, attention.starts);
  inputs.documents.count = static_cast<int64_t>(attention.starts.size()) - 1;
  for (size_t i = 0; i + 1 < attention.starts.size(); ++i) {
    inputs.documents.max_length =
        std::max<int64_t>(inputs.documents.max_length, attention.starts[i + 1] - attention.starts[i]);
  }
  return inputs;
}

inline AttentionResults run_attention(Side& side, const AttentionTestCase& attention, DType dtype,
                                      uint64_t seed = 1) {
  const AttentionInputs in = make_inputs(side, attention, dtype, seed);
  const Tensor out = side.tensor(dtype, {attention.tokens, in.shape.out_width()});
  const Tensor lse = side.tensor(DType::F32, {attention.heads, attention.tokens});
  const Tensor dqkv = side.tensor(dtype, {attention.tokens, in.shape.qkv_width()});
  side->ops().attention_forward({.dense = out}, lse, in.qkv, in.documents, in.shape);
  side->ops().attention_backward(dqkv, in.dout, in.qkv, out, lse, in.documents, in.shape);
  return {download(side, out), download(side, lse), download(side, dqkv)};
}

// In norms. Where the reference all but vanishes (the gradients of a single token), its rounding is not
// compared.
inline double relative_error(const std::vector<float>& x, const std::vector<float>& reference,
                             double least_square = 1e-2) {
  if (x.empty()) return 0;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    difference += (static_cast<double>(x[i]) - reference[i]) * (static_cast<double>(x[i]) - reference[i]);
    norm += static_cast<double>(reference[i]) * reference[i];
  }
  return std::sqrt(difference /
                   std::max(norm, least_square * static_cast<double>(x.size())));  // NaN fails comparisons
}

// The part of dqkv that belongs to queries, keys or values: columns [begin, end) of every row.
inline std::vector<float> columns(const std::vector<float>& x, int64_t width, int64_t begin, int64_t end) {
  std::vector<float> result;
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(width)) {
    result.insert(result.end(), x.begin() + static_cast<int64_t>(row) + begin,
                  x.begin() + static_cast<int64_t>(row) + end);
  }
  return result;
}

class CudaAttention : public testing::Test {
 protected:
  void SetUp() override {
    const CudaProbe probe = probe_cuda();
    if (!probe.usable) GTEST_SKIP() << "no GPU: " << probe.reason;
    cpu = std::make_unique<Side>(make_cpu_device(2));
  }
  void TearDown() override { unsetenv("OCTET_ATTENTION"); }

  // `engine` is read when the backend runs its first attention op.
  std::unique_ptr<Side> make_side(const char* engine, bool deterministic = false) {
    setenv("OCTET_ATTENTION", engine, 1);
    return std::make_unique<Side>(make_cuda_device({.deterministic = deterministic}));
  }

  // Empty, or why the engine does not take the case.
  static std::optional<std::string> refusal(const std::exception& error) {
    const std::string text = error.what();
    if (text.find("asks for cuDNN, but") == std::string::npos) return std::nullopt;
    return text;
  }

  void compare(const AttentionTestCase& attention, DType dtype, const AttentionResults& x,
               const AttentionResults& reference, double tolerance, bool with_lse) {
    SCOPED_TRACE(attention.name);
    const int64_t q_end = attention.heads * attention.depth,
                  k_end = q_end + attention.kv_heads * attention.depth;
    const int64_t width = k_end + attention.kv_heads * attention.depth;
    if (with_lse) {
      EXPECT_LE(relative_error(x.lse, reference.lse), 1e-4) << "lse, " << name_of(dtype);
    }
    const auto part = [&](const char* what, const std::vector<float>& all, const std::vector<float>& wanted,
                          int64_t row_width, int64_t begin, int64_t end) {
      const std::vector<float> a = columns(all, row_width, begin, end),
                               b = columns(wanted, row_width, begin, end);
      EXPECT_LE(relative_error(a, b), tolerance) << what << ", " << name_of(dtype);
      // Each document by itself too, so that a long one does not hide a short one.
      for (size_t i = 0; i + 1 < attention.starts.size(); ++i) {
        const auto from = attention.starts[i] * (end - begin), to = attention.starts[i + 1] * (end - begin);
        const double error =
            relative_error({a.begin() + from, a.begin() + to}, {b.begin() + from, b.begin() + to}, 1e-1);
        EXPECT_LE(error, 2 * tolerance)
            << what << ", " << name_of(dtype) << ", document " << i << " at " << attention.starts[i]
            << " of length " << attention.starts[i + 1] - attention.starts[i];
      }
    };
    part("out", x.out, reference.out, q_end, 0, q_end);
    part("dq", x.dqkv, reference.dqkv, width, 0, q_end);
    part("dk", x.dqkv, reference.dqkv, width, q_end, k_end);
    part("dv", x.dqkv, reference.dqkv, width, k_end, width);
  }

  std::unique_ptr<Side> cpu;
};

}  // namespace octet::test
