#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/cpu_threads.h"

namespace octet {

// Calls work(i) for 0 to count - 1 on several threads, each i once: as many as there are cores, or more for work that
// waits for a disk. All calls are made even if some throw. Of several errors the one with the smallest i is thrown at the
// end, so that the message does not depend on the threads.
template <class Work>
void for_all(size_t count, const Work& work, size_t threads_at_most = 0) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  size_t error_index = count;
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < error_index) {
          error = std::current_exception();
          error_index = i;
        }
      }
    }
  };
  std::vector<std::thread> threads;
  const size_t most = threads_at_most > 0 ? threads_at_most : static_cast<size_t>(default_threads().count);
  try {
    for (size_t i = 1; i < std::min(most, count); ++i) threads.emplace_back(run);
  } catch (const std::system_error&) {
    // There may be no more threads; those that run do all the work.
  }
  run();
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace octet
