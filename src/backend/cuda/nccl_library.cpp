#include "backend/cuda/nccl_library.h"

#include <dlfcn.h>

#include "base/error.h"
#include "base/library_search.h"

namespace octet {
namespace {

#ifndef OCTET_NCCL_FOLDER
#define OCTET_NCCL_FOLDER nullptr
#endif

Nccl load() {
  const char* file = "libnccl.so.2";
  std::string reason;
  void* library = open_library(file, {OCTET_NCCL_FOLDER}, reason);
  require(library,
          "[nccl] {} cannot be opened ({}); it comes with the package libnccl2, or nvidia-nccl-cu13 of pip",
          file, reason);
  Nccl api;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  const auto load = [&](auto& function, const char* name) {
    require(find(function, name),
            "[nccl] {} is missing in the installed NCCL, expected version 2.18 or later", name);
  };
  load(api.GetVersion, "ncclGetVersion");
  load(api.GetUniqueId, "ncclGetUniqueId");
  load(api.CommInitRankConfig, "ncclCommInitRankConfig");
  load(api.CommGetAsyncError, "ncclCommGetAsyncError");
  load(api.CommFinalize, "ncclCommFinalize");
  load(api.CommDestroy, "ncclCommDestroy");
  load(api.CommAbort, "ncclCommAbort");
  load(api.GroupStart, "ncclGroupStart");
  load(api.GroupEnd, "ncclGroupEnd");
  load(api.AllGather, "ncclAllGather");
  load(api.Send, "ncclSend");
  load(api.Recv, "ncclRecv");
  load(api.GetErrorString, "ncclGetErrorString");
  load(api.GetLastError, "ncclGetLastError");
  // Only together.
  if (!find(api.CommRegister, "ncclCommRegister") || !find(api.CommDeregister, "ncclCommDeregister")) {
    api.CommRegister = nullptr;
    api.CommDeregister = nullptr;
  }
  int version = 0;
  require(api.GetVersion(&version) == kNcclSuccess, "[nccl] the library does not tell its version");
  api.version = fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  return api;
}

}  // namespace

const Nccl& Nccl::get() {
  static const Nccl api = load();
  return api;
}

}  // namespace octet
