#include "io/read_ahead.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <system_error>

#include "base/cpu_threads.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // since Linux 5.14
#endif

namespace octet {
namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;
constexpr int kMostThreads = 8;  // enough to keep a fast disk busy

}  // namespace

ReadAhead::ReadAhead(std::vector<std::span<const std::byte>> parts) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (const std::span<const std::byte> part : parts) {
    if (part.empty()) continue;
    const auto begin = reinterpret_cast<uintptr_t>(part.data()) / page * page;
    const auto end = reinterpret_cast<uintptr_t>(part.data() + part.size());
    for (uintptr_t at = begin; at < end; at += kPieceBytes)
      pieces_.emplace_back(reinterpret_cast<const std::byte*>(at), std::min<size_t>(end - at, kPieceBytes));
  }
  if (pieces_.size() < 2) return;
  const int threads = std::clamp(default_threads().count, 2, kMostThreads);
  try {
    for (int i = 0; i < threads && static_cast<size_t>(i) < pieces_.size(); ++i)
      threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    // There may be no more threads. Reading ahead only saves time.
  }
}

ReadAhead::~ReadAhead() {
  next_ = pieces_.size();
  for (std::thread& thread : threads_) thread.join();
}

void ReadAhead::work() {
  for (size_t i = next_++; i < pieces_.size(); i = next_++) {
    void* const at = const_cast<std::byte*>(pieces_[i].data());
    // An older kernel at least begins to read. Other failures concern the caller, who touches the same bytes.
    if (::madvise(at, pieces_[i].size(), MADV_POPULATE_READ) != 0)
      ::madvise(at, pieces_[i].size(), MADV_WILLNEED);
  }
}

}  // namespace octet
