#pragma once

#include "base/error.h"

namespace octet {

// Runs a stage that only reads what the user gave: models, tokenizers, data, checkpoints. Whatever is wrong there is a
// ConfigError, because nothing was started.
template <class Function>
auto reading_input(const Function& function) {
  try {
    return function();
  } catch (const ConfigError&) {
    throw;
  } catch (const StoppedError&) {
    throw;
  } catch (const Error& error) {
    throw ConfigError(error.what());
  }
}

}  // namespace octet
