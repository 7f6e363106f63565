#include "base/start_thread.h"

#include <sys/resource.h>

#include <string>

#include "base/error.h"

namespace octet {

void fail_to_start_thread(std::string_view purpose, const std::system_error& error) {
  rlimit limit{};
  const bool has_limit = getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  fail(
      "[threads] a thread for {} cannot be started: {}. This user may have {} processes and threads (ulimit -u){}",
      purpose, error.code().message(), has_limit ? std::to_string(limit.rlim_cur) : "any number of",
      has_limit ? "" : "; a container may have a limit of its own");
}

}  // namespace octet
