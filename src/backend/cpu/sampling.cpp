#include "ops/sampling.h"

#include <array>

#include "backend/cpu/cpu_ops.h"
#include "backend/op_checks.h"

namespace octet {
namespace {

using Logits = std::span<const float>;

// Where the sum of measure(logit) over the likeliest tokens reaches `target`, which is at most the sum over all. Digits of
// the key are found from the highest to the lowest; so nothing is sorted.
template <class Measure>
TokenCut find_cut(Logits logits, uint64_t target, const Measure& measure) {
  uint32_t key = 0;
  uint64_t above = 0;
  int left = 32;  // bits of the key that are still unknown
  for (const int bits : {11, 11, 10}) {
    std::array<uint64_t, 2048> sums{};
    const int shift = left - bits;
    const uint32_t last = (1u << bits) - 1;
    for (const float x : logits) {
      const uint32_t other = key_of_logit(x);
      if (uint64_t{other ^ key} >> left == 0) sums[(other >> shift) & last] += measure(x);
    }
    uint32_t digit = last;
    while (above + sums[digit] < target) above += sums[digit--];
    key |= digit << shift;
    left = shift;
  }
  return cut_at(key, above, measure(logit_of_key(key)), target);
}

// use(id, logit) for the kept tokens in the order of their ids, until it returns true.
template <class Use>
void for_kept(Logits logits, const TokenCut& cut, const Use& use) {
  uint32_t ties = cut.ties;
  for (size_t i = 0; i < logits.size(); ++i) {
    const uint32_t key = key_of_logit(logits[i]);
    if (key < cut.key || (key == cut.key && ties == 0)) continue;
    ties -= key == cut.key;
    if (use(static_cast<int32_t>(i), logits[i])) return;
  }
}

uint64_t total_weight(Logits logits, const TokenCut& cut, const TokenWeight& weight) {
  uint64_t total = 0;
  for_kept(logits, cut, [&](int32_t, float x) {
    total += weight(x);
    return false;
  });
  return total;
}

int32_t choose(Logits logits, const TokenChoice& choice) {
  size_t likeliest = 0;
  bool has_nan = false;
  for (size_t i = 0; i < logits.size(); ++i) {
    has_nan |= std::isnan(logits[i]);
    if (logits[i] > logits[likeliest]) likeliest = i;
  }
  if (has_nan) return kNanLogits;
  auto chosen = static_cast<int32_t>(likeliest);
  if (key_of_logit(logits[likeliest]) == kLowestKey) return kNoLogits;
  if (choice.temperature <= 0.0f) return chosen;

  const TokenWeight weight(logits[likeliest], choice.temperature);
  TokenCut cut;
  if (choice.top_k > 0 && choice.top_k < std::ssize(logits))
    cut = find_cut(logits, static_cast<uint64_t>(choice.top_k), [](float) { return uint64_t{1}; });
  if (choice.top_p < 1) {
    const uint64_t total = total_weight(logits, cut, weight);
    cut = find_cut(logits, top_p_target(total, choice.top_p), weight);
  }
  uint64_t rest = drawn_place(total_weight(logits, cut, weight), choice.uniform);
  for_kept(logits, cut, [&](int32_t id, float x) {
    const uint64_t own = weight(x);
    chosen = id;
    if (rest < own) return true;
    rest -= own;
    return false;
  });
  return chosen;
}

}  // namespace

void CpuOps::choose_tokens(Tensor ids, Tensor logits, int64_t vocab, Tensor choices) {
  const cpu::HostScope scope = timed({.kind = OpKind::Other, .op = "choose_tokens"});
  check_choose_tokens(ids, logits, vocab, choices);
  const auto* all = static_cast<const TokenChoice*>(choices.data);
  parallel_.for_each(logits.rows(), [&](int64_t row, int) {
    ids.as<int32_t>()[row] =
        choose({logits.as<float>() + row * logits.cols(), static_cast<size_t>(vocab)}, all[row]);
  });
}

}  // namespace octet
