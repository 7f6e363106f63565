#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <thread>
#include <vector>

namespace octet {

// Brings mapped files into memory on threads of its own, in the order of `parts`, while the caller works. A caller that
// goes through the same bytes then rarely waits for the disk or for a page fault. It only saves time: nothing fails
// here. A few MB are not worth a thread: then it does nothing. The destructor stops the threads; the bytes must stay
// mapped until then.
class ReadAhead {
 public:
  explicit ReadAhead(std::vector<std::span<const std::byte>> parts);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

 private:
  void work();

  std::vector<std::span<const std::byte>> pieces_;  // whole pages, several MB each
  std::atomic<size_t> next_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace octet
