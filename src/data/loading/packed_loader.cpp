#include "data/loading/packed_loader.h"

#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "data/loading/permutation.h"

namespace octet {
namespace {

constexpr uint64_t kRowStream = 0x7061636b65720001;
constexpr uint64_t kFragmentStream = 0x7061636b65720002;

// A hash of everything that the numbering of samples depends on.
uint64_t hash_of(const DocumentSource& source, const PackedLoaderOptions& options) {
  Hash64 hash;
  hash.add(options.length).add(static_cast<int>(options.packing)).add(options.shuffle);
  for (const Shard& shard : source.shards()) {
    hash.add(shard.kind().tokenizer_hash).add(shard.counts().documents).add(shard.checksum());
  }
  return hash.value();
}

}  // namespace

PackedLoader::PackedLoader(DocumentSource source, const PackedLoaderOptions& options,
                           std::shared_ptr<const PackingPlan> plan)
    : SampleLoader({options.rows, options.length, options.seed, options.rank, options.ranks}),
      source_(std::move(source)),
      options_(options),
      plan_(plan ? std::move(plan)
                 : std::make_shared<PackingPlan>(source_, options.length, options.packing)) {
  require(plan_->length() == options.length, "[loader] a packing plan of {} tokens per row, expected {}",
          plan_->length(), options.length);
  require(plan_->rows() > 0 && source_.counts().targets > 0,
          "[dataset] nothing to train on: {} documents with {} tokens and {} targets",
          source_.counts().documents, source_.counts().tokens, source_.counts().targets);
  tokens_.resize(static_cast<size_t>(options.length) + 1);
  is_target_.resize(tokens_.size());
  set_data_hash(hash_of(source_, options));
}

void PackedLoader::add_row(Batch& batch, int64_t row, int64_t sample) {
  const int64_t rows = plan_->rows(), epoch = sample / rows, place_in_epoch = sample % rows;
  const int64_t planned = options_.shuffle
                              ? permuted(place_in_epoch, rows, epoch_random(seed(), kRowStream, epoch))
                              : place_in_epoch;
  const Philox fragment_random = epoch_random(seed(), kFragmentStream, epoch);
  const auto row_end = static_cast<size_t>((row + 1) * options_.length);
  size_t at = row_end - static_cast<size_t>(options_.length);
  for (const uint32_t place : plan_->row(planned)) {
    int64_t chosen = place;
    if (options_.shuffle) {
      const auto [first, count] = plan_->same_length(place);
      chosen = first + permuted(place - first, count, fragment_random);
    }
    const Fragment& fragment = plan_->fragment(chosen);
    const auto count = static_cast<size_t>(plan_->fragment_length(place));
    source_.read(fragment.document, int64_t{fragment.window} * options_.length,
                 std::span(tokens_).first(count + 1), std::span(is_target_).first(count + 1));
    batch.document_starts.push_back(static_cast<int32_t>(at));
    for (size_t i = 0; i < count; ++i) {
      const bool counts = is_target_[i + 1] != 0;
      batch.tokens[at + i] = tokens_[i];
      batch.targets[at + i] = counts ? tokens_[i + 1] : kIgnoreTarget;
      batch.positions[at + i] = static_cast<int32_t>(i);
      batch.target_count += counts;
    }
    batch.token_count += static_cast<int64_t>(count);
    at += count;
  }
  if (at == row_end) return;
  batch.document_starts.push_back(static_cast<int32_t>(at));
  for (int32_t position = 0; at < row_end; ++at, ++position) {
    batch.tokens[at] = options_.padding_id;
    batch.targets[at] = kIgnoreTarget;
    batch.positions[at] = position;
  }
}

}  // namespace octet
