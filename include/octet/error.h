#pragma once

#include <stdexcept>

namespace octet {

// A failure the user can act on. The message reads "[place] fact, value, what was expected".
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A wrong configuration, flag or argument: nothing was started. The program exits with 2.
class ConfigError : public Error {
 public:
  using Error::Error;
};

}  // namespace octet
