#include <chrono>
#include <cmath>

#include "cuda/fixture.h"
#include "support/tolerance.h"

// Work on a second queue next to the default one, ordered by events, and ops on the host's memory.

namespace octet::test {
namespace {

class CudaQueues : public CudaTest {
 protected:
  std::vector<double> values(const Tensor& x) {
    std::vector<double> result;
    std::vector<float> host(static_cast<size_t>(x.numel()));
    (*cuda)->copy_to_host(host.data(), x);
    result.assign(host.begin(), host.end());
    return result;
  }
};

// Both queues change one matrix in turn, many times: y = x W on the default queue, x = y W on the second, with W a
// permutation times 2 or 1/2, so that every product is exact and one that came too early shows.
TEST_F(CudaQueues, EventsOrderThem) {
  constexpr int64_t kSize = 512;
  constexpr int kRounds = 50;
  const std::unique_ptr<Queue> queue = (*cuda)->make_queue();
  const std::unique_ptr<Ops> ops = (*cuda)->make_ops(*queue);
  EXPECT_EQ(&ops->device(), cuda->operator->());
  Tensor workspace{nullptr, DType::U8, {int64_t{128} << 20}};
  workspace.data = cuda->memory(workspace.bytes());
  ops->set_workspace(workspace);
  std::vector<float> twice(kSize * kSize), half(kSize * kSize);
  for (int64_t i = 0; i < kSize; ++i) {
    const int64_t to = (i + 1) % kSize;
    twice[static_cast<size_t>(i * kSize + to)] = 2.0f;
    half[static_cast<size_t>(i * kSize + to)] = 0.5f;
  }
  const auto start = normal_values(kSize * kSize, 1);
  const Tensor x = cuda->upload(DType::F32, {kSize, kSize}, start),
               y = cuda->tensor(DType::F32, {kSize, kSize});
  const Tensor up = cuda->upload(DType::F32, {kSize, kSize}, twice),
               down = cuda->upload(DType::F32, {kSize, kSize}, half);
  const std::unique_ptr<Event> first = (*cuda)->make_event(), second = (*cuda)->make_event();
  (*cuda)->wait((*cuda)->queue(), *second);  // never recorded: nothing to wait for
  for (int i = 0; i < kRounds; ++i) {
    (*cuda)->ops().gemm(y, x, up, {});
    (*cuda)->record(*first, (*cuda)->queue());
    (*cuda)->wait(*queue, *first);
    ops->gemm(x, y, down, {});
    (*cuda)->record(*second, *queue);
    (*cuda)->wait((*cuda)->queue(), *second);
  }
  (*cuda)->synchronize(*second);
  // Columns moved on by two in each round.
  std::vector<double> expected(start.size());
  for (int64_t r = 0; r < kSize; ++r) {
    for (int64_t c = 0; c < kSize; ++c) {
      expected[static_cast<size_t>(r * kSize + (c + 2 * kRounds) % kSize)] =
          static_cast<double>(start[static_cast<size_t>(r * kSize + c)]);
    }
  }
  EXPECT_EQ(mismatch(values(x), expected, {0, 0}), "");
}

// All kinds of ops on a second queue give the bits of the default one.
TEST_F(CudaQueues, HaveTheSameOps) {
  const std::unique_ptr<Queue> queue = (*cuda)->make_queue();
  const std::unique_ptr<Ops> ops = (*cuda)->make_ops(*queue);  // makes a workspace of its own
  const int64_t rows = 192, cols = 256;
  const Tensor x = cuda->upload(DType::BF16, {rows, cols}, normal_values(rows * cols, 1));
  const Tensor w = cuda->upload(DType::BF16, {rows, cols}, normal_values(rows * cols, 2, 0.1f));
  const QuantizeRule rule{};
  std::vector<std::vector<std::vector<uint8_t>>> results;
  const std::unique_ptr<Event> uploaded = (*cuda)->make_event(), done = (*cuda)->make_event();
  for (Ops* side : {&(*cuda)->ops(), ops.get()}) {
    Quantized x8 = make_quantized(*cuda, rows, cols, rule), w8 = make_quantized(*cuda, rows, cols, rule);
    const Tensor h = cuda->tensor(DType::BF16, {rows, cols}), y = cuda->tensor(DType::BF16, {rows, rows});
    const Tensor total = cuda->tensor(DType::F32, {1});
    (*cuda)->record(*uploaded, (*cuda)->queue());
    (*cuda)->wait(*queue, *uploaded);
    side->activation_forward(Activation::Gelu, {.dense = h}, x);
    side->quantize({.dense = h, .fp8 = &x8});
    side->quantize({.dense = w, .fp8 = &w8});
    side->gemm_fp8(y, x8.rowwise, w8.rowwise, {});
    side->sum(total, y);
    (*cuda)->record(*done, side == ops.get() ? *queue : (*cuda)->queue());
    (*cuda)->synchronize(*done);
    results.push_back({cuda->bytes(h), cuda->bytes(x8.rowwise.codes), cuda->bytes(y), cuda->bytes(total)});
  }
  EXPECT_TRUE(results[0] == results[1]);
}

// Copies and zeros take a queue, too.
TEST_F(CudaQueues, CopyAndClear) {
  const std::unique_ptr<Queue> queue = (*cuda)->make_queue();
  const std::unique_ptr<Event> done = (*cuda)->make_event();
  const auto data = normal_values(1 << 20, 3);
  const Tensor from = cuda->upload(DType::F32, {1 << 20}, data), to = cuda->tensor(DType::F32, {1 << 20});
  (*cuda)->record(*done, (*cuda)->queue());
  (*cuda)->wait(*queue, *done);
  (*cuda)->copy(*queue, to, from);
  (*cuda)->zero(*queue, from);
  (*cuda)->record(*done, *queue);
  (*cuda)->synchronize(*done);
  EXPECT_EQ(values(to), std::vector<double>(data.begin(), data.end()));
  EXPECT_EQ(values(from), std::vector<double>(data.size()));
}

// Memory at Place::Host is read and written by the host and by ops alike.
TEST_F(CudaQueues, OpsReachTheHostsMemory) {
  constexpr int64_t kRows = 64, kCols = 96;
  const auto data = normal_values(kRows * kCols, 4);
  const auto memory = (*cuda)->allocate(kRows * kCols * 4, Place::Host);
  const auto sums = (*cuda)->allocate(kCols * 4, Place::Host);
  auto* host = static_cast<float*>(memory.get());
  std::copy(data.begin(), data.end(), host);
  const Tensor x{memory.get(), DType::F32, {kRows, kCols}}, column_sum{sums.get(), DType::F32, {kCols}};
  const Tensor y = cuda->tensor(DType::F32, {kRows, kCols});
  (*cuda)->zero(column_sum);
  (*cuda)->ops().activation_forward(Activation::Gelu, {.dense = y}, x);
  (*cuda)->ops().add_column_sum(column_sum, x, {}, 1.0f);
  (*cuda)->copy(x, y);
  (*cuda)->synchronize();
  std::vector<double> expected_sums(kCols), got_sums(kCols), gelu, got;
  for (int64_t i = 0; i < kRows * kCols; ++i) {
    const auto value = static_cast<double>(data[static_cast<size_t>(i)]);
    expected_sums[static_cast<size_t>(i % kCols)] += value;
    gelu.push_back(0.5 * value *
                   (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (value + 0.044715 * value * value * value))));
    got.push_back(static_cast<double>(host[i]));
  }
  for (int64_t c = 0; c < kCols; ++c)
    got_sums[static_cast<size_t>(c)] = static_cast<double>(static_cast<float*>(sums.get())[c]);
  EXPECT_EQ(mismatch(got, gelu, kFp32), "");
  EXPECT_EQ(mismatch(got_sums, expected_sums, kFp32), "");
}

// The clock of a queue starts with delay 0. Work between counts as part of the wait.
TEST_F(CudaQueues, DelayHoldsAQueueBack) {
  using Clock = std::chrono::steady_clock;
  const std::unique_ptr<Queue> queue = (*cuda)->make_queue();
  const std::unique_ptr<Event> event = (*cuda)->make_event();
  const auto time = [&](std::initializer_list<double> delays) {
    const auto begin = Clock::now();
    for (const double delay : delays) (*cuda)->delay(*queue, delay);
    (*cuda)->record(*event, *queue);
    (*cuda)->synchronize(*event);
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  };
  time({0});  // loads the kernels
  EXPECT_GE(time({0, 200'000}), 199'000);
  // Two waits until the same time take it once: they end together, not one after the other (600 ms).
  EXPECT_LT(time({0, 200'000, 200'000, 200'000}), 590'000);
}

}  // namespace
}  // namespace octet::test
