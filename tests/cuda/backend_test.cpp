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

}  // namespace
}  // namespace octet::test
