#pragma once

#include <span>

#include "dist/rendezvous.h"

namespace octet {

Meeting meet_as_first(const RendezvousOptions& options);  // rank 0

// The first message of this process about itself, without the proof.
HelloMessage hello_of(const RendezvousOptions& options);

std::string clean_text(std::string text);            // another process's words, without control characters
std::string ranks_text(std::span<const int> ranks);  // "rank 2", "ranks 1, 2 and 5"

}  // namespace octet
