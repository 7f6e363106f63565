#include "ops/sampling.h"

#include <cooperative_groups.h>

#include <algorithm>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/profiler.h"
#include "backend/op_checks.h"

// One kernel chooses the tokens. The blocks of a cluster share a row: a part of neighbouring tokens for each warp. What a
// part adds up to is exchanged through the shared memory of the blocks, so a row is in no other memory than its own. Sums
// are of whole numbers: their order does not matter.

namespace octet {
namespace device {
namespace {

namespace cg = cooperative_groups;

constexpr int kRowBlocks = 8;  // a cluster
constexpr int kChoiceThreads = 512;
constexpr int kBlockWarps = kChoiceThreads / 32;
constexpr int kRowWarps = kRowBlocks * kBlockWarps;
constexpr int kPivots = 7;  // the search for a key narrows it by three bits at a time
constexpr uint32_t kAllLanes = 0xFFFFFFFFu;
static_assert(kRowWarps % 32 == 0 && kPivots * kRowBlocks <= kChoiceThreads && kPivots <= 32);

struct ChoiceShared {
  uint64_t warps[kBlockWarps][kPivots];
  uint64_t blocks[2][kRowBlocks][kPivots];  // two, so that one can be written while the other is read
  // For each warp's part, in the first block: the sum of the weights above the cut, and the tokens at it.
  uint64_t above[kRowWarps];
  uint32_t ties[kRowWarps];
};

struct Plus {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};
struct Largest {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};

// The cluster that works on a row, as one of its threads sees it.
struct RowCluster {
  ChoiceShared& shared;
  const float* logits;
  int lane, warp;  // of the block
  int begin, end;  // the warp's part of the vocabulary
  int turn = 0;

  // use(id, logit) for the lane's share of the part.
  template <class Use>
  __device__ void for_part(const Use& use) const {
#pragma unroll 4
    for (int i = begin + lane; i < end; i += 32) use(i, logits[i]);
  }

  // Joins value j of all threads. Lane j of every warp gets the result; lanes behind the last one get the first. 0 must
  // not change what it is joined with.
  template <int count, class Join>
  __device__ uint64_t join_all(const uint64_t (&values)[count], const Join& join) {
    const cg::cluster_group cluster = cg::this_cluster();
    uint64_t any = 0;
#pragma unroll
    for (int j = 0; j < count; ++j) any |= values[j];
    const bool some = __any_sync(kAllLanes, any != 0);
#pragma unroll
    for (int j = 0; j < count; ++j) {
      uint64_t x = values[j];
      if (some) {
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) x = join(x, __shfl_xor_sync(kAllLanes, x, offset));
      }
      if (lane == 0) shared.warps[warp][j] = x;
    }
    __syncthreads();
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < count * kRowBlocks) {
      const int j = thread % count;
      uint64_t x = shared.warps[0][j];
      for (int w = 1; w < kBlockWarps; ++w) x = join(x, shared.warps[w][j]);
      *cluster.map_shared_rank(&shared.blocks[turn][cluster.block_rank()][j],
                               static_cast<unsigned>(thread / count)) = x;
    }
    cluster.sync();
    const int j = lane < count ? lane : 0;
    uint64_t result = shared.blocks[turn][0][j];
    for (int block = 1; block < kRowBlocks; ++block) result = join(result, shared.blocks[turn][block][j]);
    turn = 1 - turn;
    return result;
  }

  // Where the sum of measure(logit) over the likeliest tokens reaches `target`: at a key from `low` on, below `high`. The
  // sum over all keys from `low` on reaches it.
  template <class Measure>
  __device__ TokenCut find_cut(uint32_t low, uint32_t high, uint64_t target, const Measure& measure) {
    uint64_t above = 0;  // the sum over the keys from `high` on
    while (high - low > 1) {
      const uint32_t range = high - low, step = (range + kPivots) / (kPivots + 1);
      uint64_t sums[kPivots] = {};
      for_part([&](int, float x) {
        const uint32_t place = key_of_logit(x) - low;  // keys below `low` become large
        if (place < step || place >= range) return;
        const uint64_t own = measure(x);
#pragma unroll
        for (int j = 0; j < kPivots; ++j) sums[j] += place >= static_cast<uint32_t>(j + 1) * step ? own : 0;
      });
      const uint64_t reached =
          above + join_all(sums, Plus());  // lane j: over the keys from low + (j + 1) * step on
      const auto count =
          static_cast<uint32_t>(__popc(__ballot_sync(kAllLanes, lane < kPivots && reached >= target)));
      if (count < kPivots) {
        above = __shfl_sync(kAllLanes, reached, static_cast<int>(count));
        high = min(high, low + (count + 1) * step);
      }
      low += count * step;
    }
    return cut_at(low, above, measure(logit_of_key(low)), target);
  }
};

__device__ __forceinline__ uint64_t warp_total(uint64_t x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

// Including the own value.
template <class T>
__device__ __forceinline__ T sum_up_to_lane(T x, int lane) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const T before = __shfl_up_sync(kAllLanes, x, offset);
    if (lane >= offset) x += before;
  }
  return x;
}

// One warp looks for the token that is drawn. Each lane has a piece of the vocabulary, one behind the other.
struct Draw {
  int lane;
  uint64_t rest;  // how far the token is from here, see drawn_place
  uint32_t ties;  // tokens at the cut's key that are kept from here on
  uint64_t tie_weight;

  // The lane with the token in its piece, which weighs `above` without the tokens at the cut. Skips the pieces before.
  __device__ int find_lane(uint64_t above, uint32_t own_ties) {
    const uint32_t ties_before = min(sum_up_to_lane(own_ties, lane) - own_ties, ties);
    const uint64_t own = above + min(own_ties, ties - ties_before) * tie_weight;
    const uint64_t up_to = sum_up_to_lane(own, lane);
    const int found = __ffs(static_cast<int>(__ballot_sync(kAllLanes, rest < up_to))) - 1;
    rest -= __shfl_sync(kAllLanes, up_to - own, found);
    ties -= __shfl_sync(kAllLanes, ties_before, found);
    return found;
  }
};

// The first warp of the first block, when the other warps have left their sums.
__device__ int draw_token(const ChoiceShared& shared, const float* logits, int vocab, int span, int lane,
                          const TokenCut& cut, const TokenWeight& weight, float uniform) {
  constexpr int kEach = kRowWarps / 32;
  uint64_t above = 0;
  uint32_t ties = 0;
  for (int w = kEach * lane; w < kEach * (lane + 1); ++w) {
    above += shared.above[w];
    ties += shared.ties[w];
  }
  Draw draw{.lane = lane, .ties = cut.ties, .tie_weight = weight(logit_of_key(cut.key))};
  draw.rest = drawn_place(warp_total(above) + cut.ties * draw.tie_weight, uniform);
  int part = kEach * draw.find_lane(above, ties);
  const int own = part + min(lane, kEach - 1);
  part += draw.find_lane(lane < kEach ? shared.above[own] : 0, lane < kEach ? shared.ties[own] : 0);

  int begin = part * span, end = min(vocab, begin + span);
  while (end - begin > 1) {
    const int piece = (end - begin + 31) / 32;
    const int first = begin + lane * piece, last = min(end, first + piece);
    above = 0;
    ties = 0;
    for (int i = first; i < last; ++i) {
      const uint32_t key = key_of_logit(logits[i]);
      if (key > cut.key) above += weight(logits[i]);
      ties += key == cut.key;
    }
    begin += piece * draw.find_lane(above, ties);
    end = min(end, begin + piece);
  }
  return begin;
}

__global__ void __cluster_dims__(kRowBlocks, 1, 1) __launch_bounds__(kChoiceThreads)
    choose_tokens_kernel(int32_t* ids, const float* logits, int64_t width, int vocab,
                         const TokenChoice* choices) {
  __shared__ ChoiceShared shared;
  const cg::cluster_group cluster = cg::this_cluster();
  const int64_t row = blockIdx.x / kRowBlocks;
  const int block = static_cast<int>(cluster.block_rank()), thread = static_cast<int>(threadIdx.x);
  const int place = block * kBlockWarps + thread / 32;
  const int span = (vocab + 32 * kRowWarps - 1) / (32 * kRowWarps) * 32;
  RowCluster part{.shared = shared,
                  .logits = logits + row * width,
                  .lane = thread % 32,
                  .warp = thread / 32,
                  .begin = min(vocab, place * span),
                  .end = min(vocab, (place + 1) * span)};
  const bool first_thread = block == 0 && thread == 0;
  cluster.sync();  // the other blocks run: they have shared memory

  // The largest key and the smallest id with it. NaN is greater than all.
  uint64_t best[1] = {0};
  part.for_part([&](int id, float x) {
    const uint64_t own = uint64_t{key_of_logit(x)} << 32 | ~static_cast<uint32_t>(id);
    best[0] = max(best[0], isnan(x) ? ~uint64_t{0} : own);
  });
  const uint64_t likeliest = part.join_all(best, Largest());
  const auto largest_key = static_cast<uint32_t>(likeliest >> 32);
  const auto id = static_cast<int32_t>(~static_cast<uint32_t>(likeliest));
  const TokenChoice choice = choices[row];
  const bool has_nan = likeliest == ~uint64_t{0}, has_none = largest_key == kLowestKey;
  if (has_nan || has_none || !(choice.temperature > 0.0f)) {
    if (first_thread) ids[row] = has_nan ? kNanLogits : has_none ? kNoLogits : id;
    return;
  }

  const TokenWeight weight(logit_of_key(largest_key), choice.temperature);
  TokenCut cut;
  if (choice.top_k > 0 && choice.top_k < vocab) {
    cut = part.find_cut(kLowestKey, largest_key + 1, static_cast<uint64_t>(choice.top_k),
                        [](float) { return uint64_t{1}; });
  }
  if (choice.top_p < 1.0) {
    uint64_t sum[1] = {0};
    part.for_part([&](int, float x) {
      if (key_of_logit(x) > cut.key) sum[0] += weight(x);
    });
    const uint64_t total = part.join_all(sum, Plus()) + cut.ties * weight(logit_of_key(cut.key));
    cut = part.find_cut(max(cut.key, kLowestKey), largest_key + 1, top_p_target(total, choice.top_p), weight);
  }

  uint64_t above = 0;
  uint32_t ties = 0;
  part.for_part([&](int, float x) {
    const uint32_t key = key_of_logit(x);
    if (key > cut.key) above += weight(x);
    ties += key == cut.key;
  });
  above = warp_total(above);
  ties = __reduce_add_sync(kAllLanes, ties);
  if (part.lane == 0) {
    *cluster.map_shared_rank(&shared.above[place], 0) = above;
    *cluster.map_shared_rank(&shared.ties[place], 0) = ties;
  }
  cluster.sync();
  if (block != 0 || thread >= 32) return;
  const int drawn = draw_token(shared, part.logits, vocab, span, part.lane, cut, weight, choice.uniform);
  if (first_thread) ids[row] = drawn;
}

}  // namespace
}  // namespace device

void CudaOps::choose_tokens(Tensor ids, Tensor logits, int64_t vocab, Tensor choices) {
  constexpr const char* op = "choose_tokens";
  check_choose_tokens(ids, logits, vocab, choices);
  const OpScope scope(profiler_, OpKind::Other, op, bytes_of(logits));
  const int64_t rows = logits.rows();
  if (rows == 0) return;
  device::choose_tokens_kernel<<<narrow<unsigned>(rows * device::kRowBlocks), device::kChoiceThreads, 0,
                                 stream()>>>(
      static_cast<int32_t*>(ids.data), static_cast<const float*>(logits.data), logits.cols(),
      narrow<int>(vocab), static_cast<const TokenChoice*>(choices.data));
  check_launch(op);
}

}  // namespace octet
