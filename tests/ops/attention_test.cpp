// Attention on the CPU compared with sums in double, where scores are so large that exponentials overflow or vanish.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/philox.h"
#include "ops/device.h"

namespace octet {
namespace {

struct Case {
  AttentionShape shape;
  std::vector<int32_t> starts;
  float spread;  // of queries and keys
};

struct Result {
  std::vector<double> out, lse, dqkv;
};

// One document after the other, with all scores of a query at hand.
Result expected(const Case& given, const std::vector<float>& qkv, const std::vector<float>& dout) {
  const AttentionShape& shape = given.shape;
  const int64_t tokens = given.starts.back(), width = shape.qkv_width(), depth = shape.head_dim;
  const auto at = [](const auto& x, int64_t i) { return static_cast<double>(x[static_cast<size_t>(i)]); };
  Result result{std::vector<double>(static_cast<size_t>(tokens * shape.out_width())),
                std::vector<double>(static_cast<size_t>(tokens * shape.heads)),
                std::vector<double>(static_cast<size_t>(tokens * width))};
  for (size_t document = 0; document + 1 < given.starts.size(); ++document) {
    const int64_t start = given.starts[document];
    for (int64_t head = 0; head < shape.heads; ++head) {
      const int64_t kv_head = head / (shape.heads / shape.kv_heads);
      const int64_t k_col = (shape.heads + kv_head) * depth, v_col = k_col + shape.kv_heads * depth;
      for (int64_t query = start; query < given.starts[document + 1]; ++query) {
        const int64_t first = start + shape.first_key(query - start);
        std::vector<double> p;
        double largest = -INFINITY, total = 0;
        for (int64_t key = first; key <= query; ++key) {
          double score = 0;
          for (int64_t c = 0; c < depth; ++c)
            score += at(qkv, query * width + head * depth + c) * at(qkv, key * width + k_col + c);
          p.push_back(score * static_cast<double>(shape.scale));
          largest = std::max(largest, p.back());
        }
        for (double& x : p) total += x = std::exp(x - largest);
        for (double& x : p) x /= total;
        result.lse[static_cast<size_t>(head * tokens + query)] = largest + std::log(total);
        double delta = 0;
        for (int64_t c = 0; c < depth; ++c) {
          double& out = result.out[static_cast<size_t>(query * shape.out_width() + head * depth + c)];
          for (int64_t key = first; key <= query; ++key)
            out += p[static_cast<size_t>(key - first)] * at(qkv, key * width + v_col + c);
          delta += out * at(dout, query * shape.out_width() + head * depth + c);
        }
        for (int64_t key = first; key <= query; ++key) {
          double dp = 0;
          for (int64_t c = 0; c < depth; ++c)
            dp += at(dout, query * shape.out_width() + head * depth + c) * at(qkv, key * width + v_col + c);
          const double own = p[static_cast<size_t>(key - first)];
          const double ds = own * (dp - delta) * static_cast<double>(shape.scale);
          for (int64_t c = 0; c < depth; ++c) {
            auto& d = result.dqkv;
            d[static_cast<size_t>(query * width + head * depth + c)] += ds * at(qkv, key * width + k_col + c);
            d[static_cast<size_t>(key * width + k_col + c)] += ds * at(qkv, query * width + head * depth + c);
            d[static_cast<size_t>(key * width + v_col + c)] +=
                own * at(dout, query * shape.out_width() + head * depth + c);
          }
        }
      }
    }
  }
  return result;
}

std::vector<float> random_values(int64_t count, uint64_t stream, float spread) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = spread * (2.0f * Philox(1, stream).uniform(static_cast<uint64_t>(i)) - 1.0f);
  return values;
}

// The largest difference in the columns [begin, end) of rows of `width`, as a share of the largest number there,
// or of 1 if all are smaller.
double error(const std::vector<float>& got, const std::vector<double>& wanted, int64_t width = 1,
             int64_t begin = 0, int64_t end = 1) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const auto col = static_cast<int64_t>(i) % width;
    if (col < begin || col >= end) continue;
    if (!std::isfinite(got[i])) return INFINITY;
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - wanted[i]));
    largest = std::max(largest, std::abs(wanted[i]));
  }
  return worst / std::max(largest, 1.0);
}

TEST(CpuAttention, LargeScoresLongDocumentsAndWindows) {
  for (const float spread : {1.0f, 12.0f}) {  // scores up to about 4 and 600
    for (const int64_t window : {int64_t{0}, int64_t{1}, int64_t{20}, int64_t{100}}) {
      const Case given{{.heads = 4, .kv_heads = 2, .head_dim = 16, .scale = 0.25f, .window = window},
                       {0, 1, 300, 300, 370, 433},
                       spread};
      for (const int threads : {1, 6, 8}) {
        SCOPED_TRACE(testing::Message()
                     << "spread " << spread << ", window " << window << ", " << threads << " threads");
        const int64_t tokens = given.starts.back();
        std::vector<float> qkv = random_values(tokens * given.shape.qkv_width(), 1, spread);
        std::vector<float> dout = random_values(tokens * given.shape.out_width(), 2, 1.0f);
        std::vector<float> out(dout.size()), lse(static_cast<size_t>(tokens * given.shape.heads)),
            dqkv(qkv.size());
        std::vector<int32_t> starts = given.starts;
        const auto device = make_cpu_device(threads);
        const WorkspaceNeeds needs{
            .dtype = DType::F32, .tokens = tokens, .attention = given.shape, .max_length = 299};
        std::vector<uint8_t> workspace(static_cast<size_t>(device->workspace_bytes(needs)));
        Ops& ops = device->ops();
        ops.set_workspace({workspace.data(), DType::U8, {std::ssize(workspace)}});
        const Tensor x{qkv.data(), DType::F32, {tokens, given.shape.qkv_width()}};
        const Tensor y{out.data(), DType::F32, {tokens, given.shape.out_width()}};
        const Tensor sums{lse.data(), DType::F32, {given.shape.heads, tokens}};
        const Documents documents{
            {starts.data(), DType::I32, {std::ssize(starts)}}, std::ssize(starts) - 1, 299};
        ops.attention_forward({.dense = y}, sums, x, documents, given.shape);
        const Tensor dx{dqkv.data(), DType::F32, {tokens, given.shape.qkv_width()}};
        ops.attention_backward(dx, {dout.data(), DType::F32, y.shape}, x, y, sums, documents, given.shape);
        const Result wanted = expected(given, qkv, dout);
        // Scores of some hundreds are known to 3e-5; so are their exponentials, relatively.
        const double tolerance = spread > 1.0f ? 2e-4 : 2e-6;
        EXPECT_LE(error(out, wanted.out), tolerance);
        EXPECT_LE(error(lse, wanted.lse), 1e-6);
        const int64_t width = given.shape.qkv_width(), keys = given.shape.out_width();
        const int64_t values = keys + given.shape.kv_heads * given.shape.head_dim;
        EXPECT_LE(error(dqkv, wanted.dqkv, width, 0, keys), tolerance);
        EXPECT_LE(error(dqkv, wanted.dqkv, width, keys, values), tolerance);
        EXPECT_LE(error(dqkv, wanted.dqkv, width, values, width), tolerance);
      }
    }
  }
}

}  // namespace
}  // namespace octet
