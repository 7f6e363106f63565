#include "backend/cuda/cublaslt.h"

#include <dlfcn.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/library_search.h"

namespace octet {
namespace {

#define OCTET_TEXT_OF(x) #x
#define OCTET_TEXT(x) OCTET_TEXT_OF(x)

void* open_library() {
  // The major version of the headers: the types of another one may differ.
  const std::string name = "libcublasLt.so." OCTET_TEXT(CUBLAS_VER_MAJOR);
  std::vector<std::string> places = {name};
#ifdef OCTET_CUBLASLT_FOLDER
  places.push_back(std::string(OCTET_CUBLASLT_FOLDER) + "/" + name);
#endif
  places.push_back("/usr/local/cuda/lib64/" + name);
  std::ranges::copy(wheel_libraries(name), std::back_inserter(places));
  std::string reason;
  for (const auto& place : places) {
    if (void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    if (reason.empty()) reason = dlerror();
  }
  fail(
      "[cuda] {} cannot be opened ({}); it comes with the CUDA toolkit, package libcublas, or "
      "nvidia-cublas of pip",
      name, reason);
}

CublasLt load() {
  void* library = open_library();  // stays open until the program ends
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
