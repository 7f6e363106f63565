#include "model/sharding.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace octet {

std::string_view name_of(ShardingMode mode) {
  switch (mode) {
    case ShardingMode::None:
      return "none";
    case ShardingMode::Zero1:
      return "zero1";
    case ShardingMode::Zero2:
      return "zero2";
    case ShardingMode::FsdpFull:
      return "fsdp_full";
    case ShardingMode::Hsdp:
      return "hsdp";
  }
  return "?";
}

void Sharding::validate() const {
  require(ranks > 0 && rank >= 0 && rank < ranks, "[ranks] rank {} of {}, expected 0 <= rank < ranks", rank,
          ranks);
  require(group > 0 && ranks % group == 0, "[ranks] {} ranks in groups of {}, expected a multiple", ranks,
          group);
  require(group == ranks || mode == ShardingMode::Hsdp, "[ranks] groups of {} of {} ranks need hsdp, not {}",
          group, ranks, name_of(mode));
  require(wire == DType::BF16 || wire == DType::F32, "[ranks] gradients travel as {}, expected bf16 or fp32",
          name_of(wire));
}

RowShare row_share(int64_t rows, int64_t part, int64_t parts, int64_t unit) {
  require(parts > 0 && part >= 0 && part < parts, "[ranks] part {} of {}, expected 0 <= part < parts", part,
          parts);
  require(unit > 0 && unit % 2 == 0, "[ranks] a unit of {} rows, expected an even number", unit);
  RowShare share;
  share.size = round_up(div_up(rows, parts), unit);
  share.first = std::min(part * share.size, round_up(rows, unit));
  share.rows = std::clamp<int64_t>(rows - share.first, 0, share.size);
  return share;
}

}  // namespace octet
