#include "plan/run_spec.h"

#include "base/checked.h"

namespace octet {

RankSpec rank_spec(const RankKeys& keys, DeviceKey device) {
  return {.check_steps = keys.check_ranks_steps,
          .pretended = narrow<int>(keys.pretend_ranks),
          .pretended_gb = keys.pretend_bandwidth_gb,
          .comm_timeout = keys.comm_timeout,
          .rendezvous_timeout = keys.rendezvous_timeout,
          .device = device};
}

DeviceSpec device_spec(const CommonKeys& keys, bool deterministic) {
  return {.key = keys.device, .deterministic = deterministic, .threads = static_cast<int>(keys.num_threads)};
}

}  // namespace octet
