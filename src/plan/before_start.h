#pragma once

#include "base/error.h"
#include "dist/host_channel.h"
#include "plan/data_prepare.h"

namespace octet {

// Whatever is wrong before the start: nothing was done, so the user gets the exit code of a wrong configuration.
template <class Function>
auto before_start(const Function& function) {
  try {
    return function();
  } catch (const ConfigError&) {
    throw;
  } catch (const RankError&) {
    throw;
  } catch (const Interrupted&) {
    throw;
  } catch (const Error& error) {
    throw ConfigError(error.what());
  }
}

}  // namespace octet
