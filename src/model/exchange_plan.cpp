#include "model/exchange_plan.h"

#include <algorithm>

namespace octet {
namespace {

int64_t aligned(int64_t bytes) {
  return round_up(bytes, MemoryPlan::kAlignment);
}

int64_t wire_size(const Sharding& sharding) {
  return static_cast<int64_t>(size_of(sharding.wire));
}

void add_piece(ExchangeRound& round, Parameter& p, int64_t begin, int64_t rows, const Sharding& sharding) {
  ExchangePiece piece{.parameter = &p, .begin = begin, .rows = rows};
  const int64_t wire_bytes = piece.elements() * wire_size(sharding);
  const auto take = [](int64_t& total, int64_t bytes) {
    const int64_t offset = total;
    total += aligned(bytes);
    return offset;
  };
  piece.received = take(round.received_bytes, sharding.ranks * wire_bytes);
  if (p.parts->gradient_parts.dtype != sharding.wire)
    piece.sent = take(round.sent_bytes, sharding.ranks * wire_bytes);
  if (sharding.groups() > 1) {
    piece.sums = take(round.partial_bytes, sharding.groups() * piece.elements() * 4);
    piece.sums_sent = take(round.partial_bytes, sharding.groups() * wire_bytes);
    piece.sums_received = take(round.partial_bytes, sharding.groups() * wire_bytes);
  }
  round.pieces.push_back(piece);
}

}  // namespace

int64_t exchange_bytes(std::span<Parameter* const> parameters, const Sharding& sharding) {
  int64_t bytes = 0;
  for (const Parameter* p : parameters) {
    if (!p->storage.trainable) continue;
    bytes += aligned(sharding.ranks * p->storage.cut.part_rows * p->width() * wire_size(sharding));
  }
  return bytes;
}

std::vector<ExchangeRound> exchange_rounds(std::span<Parameter* const> parameters, const Sharding& sharding,
                                           int64_t capacity) {
  std::vector<ExchangeRound> rounds;
  for (Parameter* p : parameters) {
    if (!p->storage.trainable) continue;
    const int64_t row_bytes = sharding.ranks * p->width() * wire_size(sharding);
    for (int64_t begin = 0; begin < p->storage.cut.part_rows;) {
      if (rounds.empty() || rounds.back().received_bytes + aligned(row_bytes) > capacity) {
        if (rounds.empty() || !rounds.back().pieces.empty()) rounds.emplace_back();
      }
      const int64_t room = (capacity - rounds.back().received_bytes) / row_bytes;
      const int64_t left = p->storage.cut.part_rows - begin;
      // Alignment must not push the piece over the capacity.
      int64_t rows = std::clamp<int64_t>(room, 1, left);
      if (rows > 1 && rounds.back().received_bytes + aligned(rows * row_bytes) > capacity) --rows;
      add_piece(rounds.back(), *p, begin, rows, sharding);
      begin += rows;
    }
  }
  return rounds;
}

}  // namespace octet
