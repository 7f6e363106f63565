#include "data/datasets/hold_out.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/philox.h"
#include "data/shards/split_writer.h"

namespace octet {
namespace {

constexpr uint64_t kSplitStream = 0x7072657061726501;
constexpr double kTolerance = 0.0025;  // of all tokens

int64_t length_of(const TokenizePipeline::Item& item) {
  return std::ssize(item.document.tokens);
}

}  // namespace

Document part_of(const Document& document, int64_t begin, int64_t end) {
  return {{document.tokens.begin() + begin, document.tokens.begin() + end},
          {document.is_target.begin() + begin, document.is_target.begin() + end}};
}

bool can_cut(const Document& document, int64_t tail) {
  const int64_t tokens = std::ssize(document.tokens);
  if (tail < 2 || tokens - tail < 2) return false;
  return SplitWriter::predicts(part_of(document, 0, tokens - tail)) &&
         SplitWriter::predicts(part_of(document, tokens - tail, tokens));
}

std::vector<int64_t> HoldOut::choose(std::span<const TokenizePipeline::Item> block, bool is_last,
                                     bool are_texts) {
  std::vector<int64_t> tails(block.size(), 0);
  if (share_ == 0 || block.empty()) return tails;
  const bool trains_before = seen_ > held_out_, held_before = held_out_ > 0;
  for (const TokenizePipeline::Item& item : block) seen_ += length_of(item);
  const auto goal = static_cast<int64_t>(std::llround(share_ * static_cast<double>(seen_)));
  size_t held = 0;
  const auto may_hold = [&] { return trains_before || held + 1 < block.size(); };
  const auto hold = [&](size_t i) {
    tails[i] = length_of(block[i]);
    held_out_ += tails[i];
    ++held;
  };

  // In random order: what still fits.
  std::vector<size_t> order(block.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const Philox random(seed_, kSplitStream);
  const auto draw = [&](size_t i) { return random.bits(static_cast<uint64_t>(block[i].example)); };
  std::ranges::sort(order, [&](size_t a, size_t b) { return draw(a) < draw(b); });
  for (const size_t i : order) {
    if (held_out_ + length_of(block[i]) <= goal && may_hold()) hold(i);
  }
  // Then the document that comes nearest to the goal, if it comes nearer than none.
  const auto best_if = [&](auto&& allowed, auto&& cost) {
    size_t best = block.size();
    for (const size_t i : order) {
      if (tails[i] == 0 && allowed(i) && (best == block.size() || cost(i) < cost(best))) best = i;
    }
    return best;
  };
  const auto any = [](size_t) { return true; };
  const auto distance = [&](size_t i) { return std::abs(goal - held_out_ - length_of(block[i])); };
  if (const size_t nearest = best_if(any, distance);
      nearest < block.size() && distance(nearest) < goal - held_out_ && may_hold()) {
    hold(nearest);
  }
  if (!is_last) return tails;

  const int64_t missing = goal - held_out_;
  const auto shortest = [&](size_t i) { return length_of(block[i]); };
  if (are_texts && static_cast<double>(missing) > kTolerance * static_cast<double>(seen_)) {
    const auto is_cuttable = [&](size_t i) { return can_cut(block[i].document, missing); };
    if (const size_t longest = best_if(is_cuttable, [&](size_t i) { return -length_of(block[i]); });
        longest < block.size()) {
      tails[longest] = missing;
      held_out_ += missing;
    }
  }
  if (held_before || std::ranges::any_of(tails, [](int64_t tail) { return tail > 0; })) return tails;
  if (may_hold()) {
    hold(best_if(any, shortest));
  } else if (const int64_t tail = std::max<int64_t>(2, goal); can_cut(block[0].document, tail)) {
    tails[0] = tail;
    held_out_ += tail;
  }
  return tails;
}

}  // namespace octet
