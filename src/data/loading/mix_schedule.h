#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace octet {

// Which part of a mix gives sample i, and which of that part's samples it is. A pure function of the parts, the seed and
// i, so any place of a run is found directly. An epoch has as many samples as all parts have together.
//
// Without weights, the parts are one dataset: every sample of every part once per epoch, shuffled together or one part
// after another.
//
// With weights, part p gives the share weight(p) / (sum of all weights) of the samples, rounded to 1/65536. The order is
// fixed: after n samples, every part has given its share of n, to within about one sample. A part that runs out starts
// its next pass.
class MixSchedule {
 public:
  // `sequences`: samples of one pass over each part. `weights`: one per part, all above 0; or none.
  MixSchedule(std::vector<int64_t> sequences, std::span<const double> weights, bool shuffle);

  struct Place {
    size_t part;
    int64_t sample;  // of the part: it counts on from pass to pass
  };
  Place find(int64_t sample, uint64_t seed) const;

  int64_t samples_per_epoch() const { return starts_.back(); }
  double share(size_t part) const;  // of all samples

 private:
  void make_cycle(std::span<const double> weights);

  std::vector<int64_t> sequences_;
  std::vector<int64_t> starts_;  // (parts + 1) where each part begins, one after another
  bool shuffle_;
  // With weights: the order of a cycle, which repeats.
  std::vector<uint16_t> cycle_;        // the part of each sample
  std::vector<uint32_t> given_;        // samples that this part has given before it in the cycle
  std::vector<int64_t> cycle_counts_;  // of each part
};

}  // namespace octet
