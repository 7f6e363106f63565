#pragma once

#include <functional>
#include <string>

#include "base/error.h"

namespace octet {

// The message of the Error that `action` ends with.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace octet
