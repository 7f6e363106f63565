#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/device.h"

namespace octet::test {
namespace {

// Runs with and without a GPU: the answer is a backend or a reason, never a crash.
TEST(CudaBackendTest, ProbeAndMakeAgree) {
  EXPECT_TRUE(cuda_backend_built());
  const CudaProbe probe = probe_cuda();
  if (probe.usable) {
    const auto device = make_cuda_device({});
    EXPECT_EQ(device->name(), "cuda");
    EXPECT_EQ(device->description(), probe.name);
    EXPECT_GT(device->memory_bytes(), 0);
  } else {
    EXPECT_FALSE(probe.reason.empty());
    EXPECT_THROW(make_cuda_device({}), Error);
  }
}

TEST(CudaBackendTest, DeviceThatIsNotThere) {
  const CudaProbe probe = probe_cuda(1000);
  EXPECT_FALSE(probe.usable);
  EXPECT_THROW(make_cuda_device({.device = 1000}), Error);
}

// Copies above a few megabytes go through pinned buffers in pieces; every size must come back whole.
TEST(CudaBackendTest, LargeCopiesComeBackWhole) {
  if (!probe_cuda().usable) GTEST_SKIP() << probe_cuda().reason;
  const auto device = make_cuda_device({});
  constexpr size_t kPiece = size_t{32} << 20;
  for (const size_t bytes : {size_t{100}, (size_t{4} << 20) - 1, size_t{4} << 20, kPiece, kPiece + 1,
                             2 * kPiece + 12345, 5 * kPiece - 7}) {
    std::vector<uint8_t> sent(bytes), received(bytes, 0xEE);
    for (size_t i = 0; i < bytes; ++i) sent[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
    const auto memory = device->allocate(static_cast<int64_t>(bytes));
    const Tensor tensor{memory.get(), DType::U8, {static_cast<int64_t>(bytes)}};
    device->copy_to_device(tensor, sent.data());
    device->copy_to_host(received.data(), tensor);
    EXPECT_TRUE(sent == received) << bytes;
  }
}

TEST(CudaBackendTest, ClearsManyTensorsAndNothingElse) {
  if (!probe_cuda().usable) GTEST_SKIP() << probe_cuda().reason;
  const auto device = make_cuda_device({});
  constexpr int64_t kBytes = int64_t{8} << 20;
  const auto memory = device->allocate(kBytes);
  std::vector<uint8_t> expected(kBytes, 0xA5), received(kBytes);
  const Tensor all{memory.get(), DType::U8, {kBytes}};
  device->copy_to_device(all, expected.data());
  std::vector<Tensor> tensors;
  int64_t begin = 0;
  const auto add = [&](int64_t size, int64_t gap) {
    ASSERT_LE(begin + size, kBytes);
    tensors.push_back({static_cast<uint8_t*>(memory.get()) + begin, DType::U8, {size}});
    std::fill_n(expected.begin() + begin, size, uint8_t{0});
    begin += size + gap;
  };
  for (int i = 0; i < 600; ++i)
    add(1 + 37 * i % 4001, i % 5 == 0 ? 3 : 16);  // more than one table, odd places
  begin = (begin + 255) / 256 * 256;
  add((1 << 20) - 5, 5);
  add((1 << 20) + 7, 9);
  add(0, 0);
  device->zero(tensors);
  device->copy_to_host(received.data(), all);
  EXPECT_TRUE(expected == received)
      << "first difference at "
      << std::mismatch(expected.begin(), expected.end(), received.begin()).first - expected.begin();
}

// Inputs travel ahead of the work that reads them, through two buffers: each piece of work must see its own, also when
// sizes grow on the way and the sources are changed at once.
TEST(CudaBackendTest, EveryMicroBatchSeesItsOwnInputs) {
  if (!probe_cuda().usable) GTEST_SKIP() << probe_cuda().reason;
  const auto device = make_cuda_device({});
  constexpr int64_t kMost = 300'000;
  constexpr int kRounds = 40;
  const auto memory_a = device->allocate(kMost * 4), memory_b = device->allocate(kMost * 4);
  const auto seen_memory = device->allocate(kRounds * kMost * 4);
  std::vector<int32_t> a(kMost), b(7);
  std::vector<int64_t> sizes;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t size = round % 3 == 2 ? 1 : std::min<int64_t>(kMost, 1000 + 20'000 * round);
    sizes.push_back(size);
    for (int64_t i = 0; i < size; ++i)
      a[static_cast<size_t>(i)] = static_cast<int32_t>(1000 * round + i % 991);
    b.assign(7, -round);
    const Tensor to_a{memory_a.get(), DType::I32, {size}}, to_b{memory_b.get(), DType::I32, {7}};
    const InputCopy inputs[] = {{to_a, a.data()}, {to_b, b.data()}};
    device->feed(inputs);
    auto* seen = static_cast<int32_t*>(seen_memory.get()) + round * kMost;
    device->copy({seen, DType::I32, {size}}, to_a);
    device->copy({seen + kMost - 7, DType::I32, {7}}, to_b);
  }
  std::vector<int32_t> received(kRounds * kMost);
  device->copy_to_host(received.data(), {seen_memory.get(), DType::I32, {kRounds * kMost}});
  for (int round = 0; round < kRounds; ++round) {
    const int32_t* seen = received.data() + round * kMost;
    const int64_t size = std::min(sizes[static_cast<size_t>(round)], kMost - 7);
    for (int64_t i = 0; i < size; ++i) {
      ASSERT_EQ(seen[i], static_cast<int32_t>(1000 * round + i % 991))
          << "round " << round << ", place " << i;
    }
    for (int64_t i = 0; i < 7; ++i) ASSERT_EQ(seen[kMost - 7 + i], -round) << "round " << round;
  }
}

}  // namespace
}  // namespace octet::test
