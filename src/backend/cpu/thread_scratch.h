#pragma once

#include <memory>

namespace octet::cpu {

// Working memory of this thread, one of each type, not initialised. On the heap, because a stack may be small
// (ulimit -s).
template <class T>
T& thread_scratch() {
  thread_local const std::unique_ptr<T> scratch = std::make_unique_for_overwrite<T>();
  return *scratch;
}

}  // namespace octet::cpu
