#pragma once

namespace octet {

// Exit codes of the program; README.md has the same list for users.
constexpr int kExitDone = 0;
constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;       // wrong usage or configuration: nothing was started
constexpr int kExitNotFinite = 3;   // several steps in a row had no finite gradient
constexpr int kExitSaveFailed = 4;  // several checkpoints in a row could not be saved, or the last one
constexpr int kExitRequeue = 75;    // stopped by a signal, state saved: the same command continues the run

}  // namespace octet
