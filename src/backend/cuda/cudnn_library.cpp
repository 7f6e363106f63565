#ifdef OCTET_WITH_CUDNN

#include "backend/cuda/cudnn_library.h"

#include <cudnn.h>
#include <dlfcn.h>

#include "base/error.h"
#include "base/library_search.h"

namespace octet {
namespace {

#define OCTET_TEXT_OF(x) #x
#define OCTET_TEXT(x) OCTET_TEXT_OF(x)

#ifndef OCTET_CUDNN_FOLDER
#define OCTET_CUDNN_FOLDER nullptr
#endif

void* library = nullptr;

template <class Function>
Function* find(const char* name) {
  void* address = library ? dlsym(library, name) : nullptr;
  require(address != nullptr, "[cuda] {} is missing in the installed cuDNN", name);
  return reinterpret_cast<Function*>(address);
}

}  // namespace

std::string open_cudnn() {
  static const std::string problem = [] {
    std::string reason;
    // The major version of the headers: the types of another one may differ.
    library = open_library("libcudnn.so." OCTET_TEXT(CUDNN_MAJOR), {OCTET_CUDNN_FOLDER}, reason);
    return library ? "" : "cuDNN cannot be opened: " + reason;
  }();
  return problem;
}

size_t cudnn_version() {
  return cudnnGetVersion();
}

}  // namespace octet

// The functions that cudnn-frontend calls by name, forwarded to the library. The frontend has its own loader. But
// that also opens the CUDA runtime and driver by names that are often absent, and it refuses to work next to another
// loader.
#define OCTET_FORWARD(result, name, parameters, arguments)                          \
  result CUDNNWINAPI name parameters {                                              \
    static auto* const function = octet::find<result parameters>(OCTET_TEXT(name)); \
    return function arguments;                                                      \
  }

extern "C" {
OCTET_FORWARD(size_t, cudnnGetVersion, (void), ())
OCTET_FORWARD(const char*, cudnnGetErrorString, (cudnnStatus_t status), (status))
OCTET_FORWARD(void, cudnnGetLastErrorString, (char* message, size_t size), (message, size))
OCTET_FORWARD(cudnnStatus_t, cudnnCreate, (cudnnHandle_t * handle), (handle))
OCTET_FORWARD(cudnnStatus_t, cudnnDestroy, (cudnnHandle_t handle), (handle))
OCTET_FORWARD(cudnnStatus_t, cudnnSetStream, (cudnnHandle_t handle, cudaStream_t stream), (handle, stream))
OCTET_FORWARD(cudnnStatus_t, cudnnGetStream, (cudnnHandle_t handle, cudaStream_t* stream), (handle, stream))
OCTET_FORWARD(cudnnStatus_t, cudnnBackendCreateDescriptor,
              (cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor), (type, descriptor))
OCTET_FORWARD(cudnnStatus_t, cudnnBackendDestroyDescriptor, (cudnnBackendDescriptor_t descriptor),
              (descriptor))
OCTET_FORWARD(cudnnStatus_t, cudnnBackendFinalize, (cudnnBackendDescriptor_t descriptor), (descriptor))
OCTET_FORWARD(cudnnStatus_t, cudnnBackendSetAttribute,
              (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
               cudnnBackendAttributeType_t type, int64_t count, const void* elements),
              (descriptor, name, type, count, elements))
OCTET_FORWARD(cudnnStatus_t, cudnnBackendGetAttribute,
              (const cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
               cudnnBackendAttributeType_t type, int64_t wanted, int64_t* count, void* elements),
              (descriptor, name, type, wanted, count, elements))
OCTET_FORWARD(cudnnStatus_t, cudnnBackendExecute,
              (cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack),
              (handle, plan, pack))
// Used by parts of the frontend that never run, but needed for linking if the compiler does not drop them.
OCTET_FORWARD(cudnnStatus_t, cudnnCreateFilterDescriptor, (cudnnFilterDescriptor_t * filter), (filter))
OCTET_FORWARD(cudnnStatus_t, cudnnDestroyFilterDescriptor, (cudnnFilterDescriptor_t filter), (filter))
OCTET_FORWARD(cudnnStatus_t, cudnnSetFilterNdDescriptor,
              (cudnnFilterDescriptor_t filter, cudnnDataType_t type, cudnnTensorFormat_t format, int rank,
               const int dims[]),
              (filter, type, format, rank, dims))
OCTET_FORWARD(cudnnStatus_t, cudnnReorderFilterAndBias,
              (cudnnHandle_t handle, const cudnnFilterDescriptor_t filter, cudnnReorderType_t reorder,
               const void* from, void* to, int with_bias, const void* bias_from, void* bias_to),
              (handle, filter, reorder, from, to, with_bias, bias_from, bias_to))
}

#endif  // OCTET_WITH_CUDNN
