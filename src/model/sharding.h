#pragma once

#include <cstdint>
#include <string_view>

#include "tensor/dtype.h"

namespace octet {

// The data that ranks share instead of keeping a copy each. Every mode includes the one before it, except None.
enum class ShardingMode : uint8_t {
  None,      // nothing: every rank has everything, and updates all weights
  Zero1,     // the optimizer's state and the exact weights
  Zero2,     // and gradients
  FsdpFull,  // and the weights of the layers, which are gathered layer by layer
  Hsdp,  // as FsdpFull inside a node; between nodes, only the optimizer's state and the exact weights are shared
};
std::string_view name_of(ShardingMode mode);  // as users write it

// The place of a rank, and how the ranks share. All that a plan needs to know about ranks.
//
// The unit of sharing is a row of a parameter. Every parameter is cut into `ranks` equal parts of consecutive rows, and
// each rank computes the new weights, moments and FP8 codes of its part. The others receive them. Whole rows suit
// AdamW's blocks of moments, the blocks of FP8 and stochastic rounding; nothing is computed on two ranks.
struct Sharding {
  ShardingMode mode = ShardingMode::None;
  int64_t rank = 0, ranks = 1;
  // Ranks among which whole weights and gradients travel: all of them, or with Hsdp the ranks of a node. Groups are
  // consecutive ranks.
  int64_t group = 1;
  DType wire = DType::BF16;  // of gradients on their way; they are always added in fp32

  // Also true for a single rank that was asked to run as one of several.
  bool is_active() const { return ranks > 1 || mode != ShardingMode::None; }
  bool shares_state() const { return is_active() && mode != ShardingMode::None; }
  bool shares_gradients() const { return mode >= ShardingMode::Zero2; }
  bool shares_weights() const { return mode >= ShardingMode::FsdpFull; }

  int64_t groups() const { return ranks / group; }
  int64_t rank_in_group() const { return rank % group; }
  int64_t group_index() const { return rank / group; }
  // Which part of every parameter this rank has. Parts of one rank_in_group follow each other, so that the parts of a
  // group are consecutive, too.
  int64_t part() const { return rank_in_group() * groups() + group_index(); }

  void validate() const;  // throws Error
};

// The rows of a parameter that a rank has.
struct RowShare {
  int64_t first = 0;
  int64_t rows = 0;  // at most `size`; fewer or none in the last parts
  int64_t size = 0;  // rows of every part; parts * size is at least all rows
};
// `rows` rows in `parts` equal parts of a multiple of `unit` rows, which is even.
RowShare row_share(int64_t rows, int64_t part, int64_t parts, int64_t unit = 2);

}  // namespace octet
