#include "backend/cuda/nccl_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/error.h"
#include "base/library_search.h"

namespace octet {
namespace {

void* open_library() {
  const std::string name = "libnccl.so.2";
  std::vector<std::string> places = {name};
#ifdef OCTET_NCCL_FOLDER
  places.push_back(std::string(OCTET_NCCL_FOLDER) + "/" + name);
#endif
  std::ranges::copy(wheel_libraries(name), std::back_inserter(places));
  std::string reason;
  for (const auto& place : places) {
    if (void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    if (reason.empty()) reason = dlerror();
  }
  fail("[nccl] {} cannot be opened ({}); it comes with the package libnccl2, or nvidia-nccl-cu13 of pip",
       name, reason);
}

Nccl load() {
  void* library = open_library();  // stays open until the program ends
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
