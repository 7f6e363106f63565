#pragma once

#include <cstdint>
#include <memory>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/gemm_plan.h"

namespace octet {

// Operands of a product whose every element is known exactly, to prove an algorithm of cuBLASLt before it is used. They
// hold 1 and -1, so sums are small whole numbers: every order of adding, also that of fast FP8 sums, gives the same
// bits. If one row of K is left out or added twice, nearly all elements of C are wrong. What lies between the columns of a
// matrix is NaN, and so is C before the product.
class GemmCheck {
 public:
  // Null if the device has no memory for the operands.
  static std::unique_ptr<GemmCheck> make(const GemmKey& key, cudaStream_t stream);

  const GemmCall& call() const { return call_; }
  // Before every product: C becomes what the product may find there.
  void prepare();
  // After a product: how many elements of C are not what they must be. Waits for the stream.
  int64_t wrong_elements();

 private:
  GemmCheck(const GemmKey& key, cudaStream_t stream) : key_(key), stream_(stream) {}

  const GemmKey key_;
  const cudaStream_t stream_;
  DeviceMemory memory_;
  GemmCall call_;
  int* sums_ = nullptr;                  // (kLinesA, kLinesB): the elements of the product, which repeat
  unsigned long long* wrong_ = nullptr;  // the count
};

}  // namespace octet
