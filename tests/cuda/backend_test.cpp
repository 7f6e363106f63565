#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/backend.h"

namespace octet::test {
namespace {

// Runs with and without a GPU: the answer is a backend or a reason, never a crash.
TEST(CudaBackendTest, ProbeAndMakeAgree) {
  EXPECT_TRUE(cuda_backend_built());
  const CudaProbe probe = probe_cuda();
  if (probe.usable) {
    const auto backend = make_cuda_backend({});
    EXPECT_EQ(backend->name(), "cuda");
    EXPECT_EQ(backend->description(), probe.name);
    EXPECT_GT(backend->memory_bytes(), 0);
  } else {
    EXPECT_FALSE(probe.reason.empty());
    EXPECT_THROW(make_cuda_backend({}), Error);
  }
}

TEST(CudaBackendTest, DeviceThatIsNotThere) {
  const CudaProbe probe = probe_cuda(1000);
  EXPECT_FALSE(probe.usable);
  EXPECT_THROW(make_cuda_backend({.device = 1000}), Error);
}

// Copies above a few megabytes go through pinned buffers in pieces; every size must come back whole.
TEST(CudaBackendTest, LargeCopiesComeBackWhole) {
  if (!probe_cuda().usable) GTEST_SKIP() << probe_cuda().reason;
  const auto backend = make_cuda_backend({});
  constexpr size_t kPiece = size_t{32} << 20;
  for (const size_t bytes : {size_t{100}, (size_t{4} << 20) - 1, size_t{4} << 20, kPiece, kPiece + 1,
                             2 * kPiece + 12345, 5 * kPiece - 7}) {
    std::vector<uint8_t> sent(bytes), received(bytes, 0xEE);
    for (size_t i = 0; i < bytes; ++i) sent[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
    const auto memory = backend->allocate(static_cast<int64_t>(bytes));
    const Tensor tensor{memory.get(), DType::U8, {static_cast<int64_t>(bytes)}};
    backend->copy_to_device(tensor, sent.data());
    backend->copy_to_host(received.data(), tensor);
    EXPECT_TRUE(sent == received) << bytes;
  }
}

}  // namespace
}  // namespace octet::test
