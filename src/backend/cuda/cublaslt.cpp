#include "backend/cuda/cublaslt.h"

#include <dlfcn.h>

#include <string>

#include "base/error.h"
#include "base/library_search.h"

namespace octet {
namespace {

#define OCTET_TEXT_OF(x) #x
#define OCTET_TEXT(x) OCTET_TEXT_OF(x)

#ifndef OCTET_CUBLASLT_FOLDER
#define OCTET_CUBLASLT_FOLDER nullptr
#endif

CublasLt load() {
  // The major version of the headers: the types of another one may differ.
  const char* name = "libcublasLt.so." OCTET_TEXT(CUBLAS_VER_MAJOR);
  std::string reason;
  void* library = open_library(name, {OCTET_CUBLASLT_FOLDER, "/usr/local/cuda/lib64"}, reason);
  require(
      library,
      "[cuda] {} cannot be opened ({}); it comes with the CUDA toolkit, package libcublas, or nvidia-cublas of pip",
      name, reason);
  CublasLt api;
#define OCTET_LOAD(function)                                                                     \
  api.function = reinterpret_cast<decltype(api.function)>(dlsym(library, "cublasLt" #function)); \
  require(api.function != nullptr, "[cuda] cublasLt" #function " is missing in the installed cuBLASLt");
  OCTET_CUBLASLT_FUNCTIONS(OCTET_LOAD)
#undef OCTET_LOAD
  return api;
}

}  // namespace

const CublasLt& CublasLt::get() {
  static const CublasLt api = load();
  return api;
}

void CublasLt::check(cublasStatus_t status, const char* what) const {
  if (status != CUBLAS_STATUS_SUCCESS) {
    fail("[cuda] {}: cuBLASLt says {} ({})", what, GetStatusString(status), static_cast<int>(status));
  }
}

}  // namespace octet
