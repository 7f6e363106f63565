#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>

#include "cuda/fixture.h"
#include "support/op_case.h"

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
  std::vector<double> out, lse, dqkv;
};

inline std::vector<double> download(Side& side, const Tensor& x) {
  return to_doubles(x.dtype, side.bytes(x));
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

// The part of dqkv that belongs to queries, keys or values: columns [begin, end) of every row.
inline std::vector<double> columns(const std::vector<double>& x, int64_t width, int64_t begin, int64_t end) {
  std::vector<double> result;
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(width)) {
    result.insert(result.end(), x.begin() + static_cast<int64_t>(row) + begin,
                  x.begin() + static_cast<int64_t>(row) + end);
  }
  return result;
}

class CudaAttention : public CudaTest {
 protected:
  void TearDown() override {
    unsetenv("OCTET_ATTENTION");
    CudaTest::TearDown();
  }

  // A device that runs attention on this engine, shared by the tests: making plans takes seconds.
  Side* make_side(const char* engine, bool deterministic = false) {
    static std::map<std::pair<std::string, bool>, Side*> sides;
    Side*& side = sides[{engine, deterministic}];
    if (!side) {
      setenv("OCTET_ATTENTION", engine, 1);  // read when the device runs its first attention op
      side = new Side(make_cuda_device({.deterministic = deterministic}));
      try {
        run_attention(*side, packed_case("first", 1, 1, 16, {1}), DType::BF16);
      } catch (const Error& error) {
        if (!refusal(error)) throw;
      }
    }
    release_after_test(*side);
    return side;
  }

  // Empty, or why the engine does not take the case.
  static std::optional<std::string> refusal(const std::exception& error) {
    const std::string text = error.what();
    if (text.find("asks for cuDNN, but") == std::string::npos) return std::nullopt;
    return text;
  }

  // `part` of a result, all of it and each document by itself, so that a long one does not hide a short one. Where the
  // reference all but vanishes (the gradients of a single token), its rounding is not compared.
  static void compare_part(const AttentionTestCase& attention, const std::string& what,
                           const std::vector<double>& got, const std::vector<double>& expected,
                           Tolerance tolerance) {
    const auto width = static_cast<int64_t>(got.size()) / std::max<int64_t>(attention.tokens, 1);
    EXPECT_EQ(mismatch(got, expected, tolerance, 0.1, static_cast<size_t>(width)), "") << what;
    const Tolerance of_document{2 * tolerance.norm, 2 * tolerance.largest};
    for (size_t i = 0; i + 1 < attention.starts.size(); ++i) {
      const auto from = attention.starts[i] * width, to = attention.starts[i + 1] * width;
      EXPECT_EQ(mismatch({got.begin() + from, got.begin() + to},
                         {expected.begin() + from, expected.begin() + to}, of_document, 0.3),
                "")
          << what << ", document " << i << " at " << attention.starts[i] << " of length "
          << attention.starts[i + 1] - attention.starts[i];
    }
  }

  void compare(const AttentionTestCase& attention, DType dtype, const AttentionResults& x,
               const AttentionResults& reference, bool with_lse) {
    SCOPED_TRACE(fmt::format("{}, {}", attention.name, name_of(dtype)));
    const Tolerance tolerance = dtype == DType::BF16 ? kAttentionBf16 : kAttentionFp32;
    const int64_t q_end = attention.heads * attention.depth,
                  k_end = q_end + attention.kv_heads * attention.depth;
    const int64_t width = k_end + attention.kv_heads * attention.depth;
    if (with_lse) {
      EXPECT_EQ(mismatch(x.lse, reference.lse, kSums), "") << "lse";
    }
    const auto part = [&](const char* what, const std::vector<double>& all, const std::vector<double>& wanted,
                          int64_t row_width, int64_t begin, int64_t end) {
      compare_part(attention, what, columns(all, row_width, begin, end),
                   columns(wanted, row_width, begin, end), tolerance);
    };
    part("out", x.out, reference.out, q_end, 0, q_end);
    part("dq", x.dqkv, reference.dqkv, width, 0, q_end);
    part("dk", x.dqkv, reference.dqkv, width, q_end, k_end);
    part("dv", x.dqkv, reference.dqkv, width, k_end, width);
  }
};

}  // namespace octet::test
