#include "data/loading/loader.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/philox.h"
#include "data/loading/permutation.h"

namespace octet {
namespace {

// Separate streams of random numbers, so that the rest of a run can use the same seed.
constexpr uint64_t kCropStream = 0x6c6f616465720001;
constexpr uint64_t kShuffleStream = 0x6c6f616465720002;

void check(const LoaderOptions& options, const TokenSource& source) {
  require(options.eos.has_value() || !(options.respect_documents || options.align_to_documents),
          "[loader] document borders are requested, but the tokenizer has no end-of-text token");
  require(source.size() > options.length,
          "[loader] the dataset has {} tokens ({}), expected at least max_seq_length + 1 = {}", source.size(),
          source.describe(), options.length + 1);
}

}  // namespace

Loader::Loader(TokenSource source, const LoaderOptions& options)
    : SampleLoader({options.rows, options.length, options.seed, options.rank, options.ranks}),
      source_(std::move(source)),
      options_(options) {
  check(options_, source_);
  windows_ = (source_.size() - 1) / options_.length;
  row_.resize(static_cast<size_t>(options_.length) + 1);
  set_data_hash(
      Hash64().add(source_.hash()).add(options_.length).add(static_cast<int>(options_.order)).value());
}

int64_t Loader::sample_start(int64_t sample) const {
  const int64_t epoch = sample / windows_, window = sample % windows_;
  switch (options_.order) {
    case SampleOrder::Sequential:
      return window * options_.length;
    case SampleOrder::Shuffled:
      return permuted(window, windows_, epoch_random(seed(), kShuffleStream, epoch)) * options_.length;
    case SampleOrder::RandomCrops:
      break;
  }
  const uint64_t places = static_cast<uint64_t>(source_.size() - options_.length);
  const Philox random(seed(), kCropStream);
  return static_cast<int64_t>(random.below(static_cast<uint64_t>(sample), places));
}

int64_t Loader::aligned(int64_t start) {
  if (start == 0) return start;
  // A document starts after an eos.
  const int64_t last = std::min(start + options_.length - 1, source_.size() - options_.length - 1);
  const std::span<int32_t> before(row_.data(), static_cast<size_t>(last - start + 1));
  source_.read(start - 1, before);
  const auto found = std::find(before.begin(), before.end(), *options_.eos);
  return found == before.end() ? start : start + (found - before.begin());
}

void Loader::add_row(Batch& batch, int64_t row, int64_t sample) {
  int64_t start = sample_start(sample);
  if (options_.align_to_documents && options_.order == SampleOrder::RandomCrops) start = aligned(start);
  source_.read(start, row_);
  if (source_.has_mask()) {
    is_target_.resize(row_.size());
    source_.read_targets(start, is_target_);
  }
  const size_t length = static_cast<size_t>(options_.length), base = static_cast<size_t>(row) * length;
  std::copy_n(row_.begin(), length, batch.tokens.begin() + static_cast<std::ptrdiff_t>(base));
  batch.token_count += options_.length;
  batch.document_starts.push_back(static_cast<int32_t>(base));
  int32_t position = 0;
  for (size_t i = 0; i < length; ++i) {
    const bool ends_document = options_.respect_documents && row_[i] == *options_.eos;
    batch.positions[base + i] = position++;
    const bool counts = !ends_document && (is_target_.empty() || is_target_[i + 1] != 0);
    batch.targets[base + i] = counts ? row_[i + 1] : kIgnoreTarget;
    batch.target_count += counts;
    if (ends_document && i + 1 < length) {
      position = 0;
      batch.document_starts.push_back(static_cast<int32_t>(base + i + 1));
    }
  }
}

}  // namespace octet
