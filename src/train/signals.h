#pragma once

namespace octet {

// While it lives, SIGINT and SIGTERM ask the run to stop at the next step's end instead of ending the
// program. A second signal ends it at once with status 130 (SIGINT) or 143 (SIGTERM). Handlers
// that were there before are put back at destruction. One at a time.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool requested() const noexcept { return number() != 0; }
  int number() const noexcept;  // SIGINT or SIGTERM, 0 when none has come
};

}  // namespace octet
