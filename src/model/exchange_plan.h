#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/parameters.h"

namespace octet {

// How the gradients of a group of parameters travel to the ranks that own their parts: in rounds of bounded size, each
// one collective. A piece is rows [begin, begin + rows) of every part of a parameter.
//
// With groups of ranks (hsdp) there are two levels. Ranks of a group first exchange the parts that belong to the same
// place in all groups; then the same places of all groups exchange their sums. Offsets are bytes in RankBuffers.
struct ExchangePiece {
  Parameter* parameter = nullptr;
  int64_t begin = 0, rows = 0;
  int64_t received = 0;  // (group size, elements) per group of ranks
  int64_t sent = 0;      // (ranks, elements) in the dtype of the wire, if the gradient has another
  // With several groups: sums (groups, elements) in fp32, then the same as sent and as received between groups.
  int64_t sums = 0, sums_sent = 0, sums_received = 0;
  int64_t elements() const { return rows * parameter->width(); }
};

struct ExchangeRound {
  std::vector<ExchangePiece> pieces;
  int64_t received_bytes = 0, sent_bytes = 0, partial_bytes = 0;
};

// Bytes that all gradients of `parameters` take when they travel.
int64_t exchange_bytes(std::span<Parameter* const> parameters, const Sharding& sharding);

// The rounds of these parameters; frozen ones are skipped. A round takes at most `capacity` bytes of received gradients,
// or one row per part if that is more.
std::vector<ExchangeRound> exchange_rounds(std::span<Parameter* const> parameters, const Sharding& sharding,
                                           int64_t capacity);

}  // namespace octet
