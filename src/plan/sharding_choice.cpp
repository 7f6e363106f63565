#include "plan/sharding_choice.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "report/text.h"

namespace octet {
namespace {

ShardingMode mode_of(ShardingKey key, int ranks) {
  using Key = ShardingKey;
  if (ranks == 1) return ShardingMode::None;  // there is nobody to share with: all modes are the same
  switch (key) {
    case Key::None:
      return ShardingMode::None;
    case Key::Auto:
    case Key::Zero1:
      return ShardingMode::Zero1;
    case Key::Zero2:
      return ShardingMode::Zero2;
    case Key::FsdpFull:
      return ShardingMode::FsdpFull;
    case Key::Hsdp:
      return ShardingMode::Hsdp;
  }
  return ShardingMode::None;
}

}  // namespace

Sharding sharding_of(const StepKeys& config, const RankPlace& place) {
  Sharding sharding{
      .mode = mode_of(config.sharding_mode, place.ranks),
      .rank = place.rank,
      .ranks = place.ranks,
      .group = place.ranks,
      .wire = config.gradient_reduce_dtype == GradientReduceDtype::Fp32 ? DType::F32 : DType::BF16};
  if (sharding.mode == ShardingMode::Hsdp) {
    if (place.local_ranks < 1 || place.ranks % place.local_ranks != 0) {
      fail_config(
          "sharding_mode hsdp needs the same number of ranks on every node; {} ranks are not a multiple of {}",
          place.ranks, place.local_ranks);
    }
    sharding.group = place.local_ranks;
    if (place.nodes() == 1 && place.is_first())
      log_info("sharding_mode hsdp on one node is the same as fsdp_full");
  }
  sharding.validate();
  return sharding;
}

std::string sharding_text(const Sharding& s) {
  const std::string state = fmt::format("1/{} of the optimizer state", s.ranks);
  switch (s.mode) {
    case ShardingMode::None:
      return "none: each rank keeps everything";
    case ShardingMode::Zero1:
      return fmt::format("zero1: each rank keeps the weights, the gradients and {}", state);
    case ShardingMode::Zero2:
      return fmt::format("zero2: each rank keeps the weights, 1/{} of the gradients and {}", s.ranks, state);
    case ShardingMode::FsdpFull:
      return fmt::format("fsdp_full: each rank keeps 1/{} of the layers' weights and gradients and {}",
                         s.ranks, state);
    case ShardingMode::Hsdp:
      return fmt::format("hsdp: each rank keeps 1/{} of the layers' weights, 1/{} of the gradients and {}",
                         s.group, s.ranks, state);
  }
  return "?";
}

}  // namespace octet
