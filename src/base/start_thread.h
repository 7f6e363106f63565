#pragma once

#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace octet {

// Error that says for what the thread was wanted, and the limit.
[[noreturn]] void fail_to_start_thread(std::string_view purpose, const std::system_error& error);

// A thread that octet cannot do without. `purpose`: "reading batches ahead".
template <class Work>
std::thread start_thread(std::string_view purpose, Work&& work) {
  try {
    return std::thread(std::forward<Work>(work));
  } catch (const std::system_error& error) {
    fail_to_start_thread(purpose, error);
  }
}

}  // namespace octet
