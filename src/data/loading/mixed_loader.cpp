#include "data/loading/mixed_loader.h"

#include "base/hash.h"

namespace octet {
namespace {

std::vector<int64_t> sequences_of(const std::vector<std::unique_ptr<SampleLoader>>& parts) {
  std::vector<int64_t> sequences;
  for (const auto& part : parts) sequences.push_back(part->samples_per_epoch());
  return sequences;
}

}  // namespace

MixedLoader::MixedLoader(std::vector<std::unique_ptr<SampleLoader>> parts, std::span<const double> weights,
                         bool shuffle, const BatchShape& shape)
    : SampleLoader(shape), parts_(std::move(parts)), schedule_(sequences_of(parts_), weights, shuffle) {
  Hash64 hash;
  hash.add(shuffle);
  for (size_t i = 0; i < parts_.size(); ++i) {
    hash.add(static_cast<int64_t>(parts_[i]->state().data_hash));
    if (!weights.empty()) hash.add(static_cast<int64_t>(schedule_.share(i) * (1 << 16)));
  }
  set_data_hash(hash.value());
  set_state(state());
}

void MixedLoader::set_state(const LoaderState& state) {
  SampleLoader::set_state(state);
  // The parts are asked for single rows: of their state, only the seed matters.
  for (const auto& part : parts_) part->set_state({.seed = seed(), .next_sample = 0, .data_hash = 0});
}

void MixedLoader::add_row(Batch& batch, int64_t row, int64_t sample) {
  const MixSchedule::Place place = schedule_.find(sample, seed());
  parts_[place.part]->add_row(batch, row, place.sample);
}

}  // namespace octet
