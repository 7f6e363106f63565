#pragma once

#include <cuda_runtime.h>

#include <climits>
#include <cstddef>
#include <string>

namespace octet {

struct NcclComm;  // opaque, NCCL's own
using NcclHandle = NcclComm*;

// The results that octet tells apart; all others are failures.
constexpr int kNcclSuccess = 0;
constexpr int kNcclInProgress = 7;
constexpr int kNcclUint8 = 1;  // the data type

struct NcclUniqueId {
  char bytes[128];
};

// The first fields of ncclConfig_t as of 2.17. A newer library reads `size` and `version` and takes its defaults for the
// fields that came later.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 2 * 10000 + 17 * 100 + 1;
  int blocking = INT_MIN;  // INT_MIN: NCCL's default
  int cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
};
static_assert(sizeof(NcclConfig) == 32);

// The functions of NCCL that octet calls, from libnccl.so.2, which is opened at run time like cuDNN: the program starts
// without it, and is built without its header. Names, types and order of the arguments are those of nccl.h.
struct Nccl {
  int (*GetVersion)(int* version) = nullptr;
  int (*GetUniqueId)(NcclUniqueId*) = nullptr;
  int (*CommInitRankConfig)(NcclHandle*, int ranks, NcclUniqueId, int rank, NcclConfig*) = nullptr;
  int (*CommGetAsyncError)(NcclHandle, int* result) = nullptr;
  int (*CommFinalize)(NcclHandle) = nullptr;
  int (*CommDestroy)(NcclHandle) = nullptr;
  int (*CommAbort)(NcclHandle) = nullptr;
  int (*GroupStart)() = nullptr;
  int (*GroupEnd)() = nullptr;
  int (*AllGather)(const void* send, void* receive, size_t count, int type, NcclHandle,
                   cudaStream_t) = nullptr;
  int (*Send)(const void* send, size_t count, int type, int peer, NcclHandle, cudaStream_t) = nullptr;
  int (*Recv)(void* receive, size_t count, int type, int peer, NcclHandle, cudaStream_t) = nullptr;
  const char* (*GetErrorString)(int result) = nullptr;
  const char* (*GetLastError)(NcclHandle) = nullptr;
  // Since 2.19; null in older libraries.
  int (*CommRegister)(NcclHandle, void* memory, size_t bytes, void** registration) = nullptr;
  int (*CommDeregister)(NcclHandle, void* registration) = nullptr;

  std::string version;  // "2.28.3"

  // Opens the library with the first call. Error that names the package if there is none.
  static const Nccl& get();
};

}  // namespace octet
