#pragma once

#include <string>
#include <vector>

namespace octet {

// A library that a run on a GPU opens when it needs it.
struct CudaLibrary {
  std::string name;     // "cuBLASLt"
  std::string version;  // "13.0.2"; empty: it cannot be opened
  std::string problem;  // why not
};

// cuBLASLt, cuDNN and NCCL, opened as a run would open them. Never throws. Empty in a build without CUDA.
std::vector<CudaLibrary> cuda_libraries();

}  // namespace octet
