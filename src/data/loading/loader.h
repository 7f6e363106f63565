#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/loading/batch.h"
#include "data/shards/token_source.h"

namespace octet {

// The position of training in its data: all that a restart needs. Sample indices are global over all ranks. So the
// state is the same on every rank and stays valid when the number of ranks or rows changes.
struct LoaderState {
  uint64_t seed = 0;
  int64_t next_sample = 0;  // the first sample that no rank has been handed yet
  uint64_t data_hash = 0;   // hash of what the sample numbers depend on, to detect other data; 0: not known
  bool operator==(const LoaderState&) const = default;
};

nlohmann::ordered_json loader_state_json(const LoaderState& state);
// `place` names the file in errors.
LoaderState parse_loader_state(const nlohmann::json& json, const std::string& place);

class BatchSource {
 public:
  virtual ~BatchSource() = default;

  // Fills `batch`, reusing its memory.
  virtual void next(Batch& batch) = 0;
  // Describes the batches handed out by next(), not those prepared ahead.
  virtual LoaderState state() const = 0;
  virtual void set_state(const LoaderState& state) = 0;
  // Passes over the data so far: 0 at the start, 1.5 in the middle of the second.
  virtual double epoch() const = 0;
};

// The batches of a loader with numbered samples, and who gets them.
struct BatchShape {
  int64_t rows = 1;    // per batch of this rank
  int64_t length = 0;  // tokens per row (max_seq_length)
  uint64_t seed = 0;
  int rank = 0;  // rank r of n is handed the samples r, r + n, r + 2n, ...
  int ranks = 1;
};

// A source with numbered samples: `samples_per_epoch` per pass over the data, over all ranks. A sample is a row. Sample i
// is a pure function of (data, options, seed, i): it depends on no other call, thread or rank.
class SampleLoader : public BatchSource {
 public:
  void next(Batch& batch) override;
  LoaderState state() const override { return state_; }
  // Warns when the state comes from other data. Throws Error for an impossible position.
  void set_state(const LoaderState& state) override;
  double epoch() const override;

  virtual int64_t samples_per_epoch() const = 0;
  // Writes a sample into a row of the batch and adds its documents. Rows must be added in order.
  virtual void add_row(Batch& batch, int64_t row, int64_t sample) = 0;

 protected:
  // Throws Error for a shape that is impossible.
  explicit SampleLoader(const BatchShape& shape);
  // Sets a hash of what the numbering of samples depends on; to be called by the constructor.
  void set_data_hash(uint64_t hash) { state_.data_hash = hash; }
  int64_t length() const { return shape_.length; }
  uint64_t seed() const { return state_.seed; }

 private:
  BatchShape shape_;
  LoaderState state_;
};

enum class SampleOrder {
  // Sample i starts at a place drawn for i; an epoch is as many samples as would cover the data once.
  RandomCrops,
  Sequential,  // adjacent windows of `length`, in order; the next epoch starts again at the front
  Shuffled,    // the same windows, each once per epoch, in a random order per epoch
};

struct LoaderOptions {
  int64_t rows = 1;  // as in BatchShape, like length, seed, rank and ranks
  int64_t length = 0;
  SampleOrder order = SampleOrder::RandomCrops;
  uint64_t seed = 0;
  int rank = 0;
  int ranks = 1;

  // With respect_documents a row is cut after each eos: positions restart at 0, attention does not cross the cut, and
  // the eos has no target (the next token belongs to another document). Needs eos. Otherwise a row is one document.
  std::optional<int32_t> eos = std::nullopt;
  bool respect_documents = false;
  // RandomCrops only: moves a crop to the first document start within `length` places, if there is one, so that rows
  // do not begin in the middle of a short document. Needs eos.
  bool align_to_documents = false;
};

// Batches from a token source. Throws Error when the source has fewer than length + 1 tokens.
class Loader final : public SampleLoader {
 public:
  Loader(TokenSource source, const LoaderOptions& options);

  // Windows of the source: what Sequential and Shuffled hand out per epoch, over all ranks.
  int64_t samples_per_epoch() const override { return windows_; }
  void add_row(Batch& batch, int64_t row, int64_t sample) override;

 private:
  int64_t sample_start(int64_t sample) const;
  int64_t aligned(int64_t start);

  TokenSource source_;
  LoaderOptions options_;
  int64_t windows_ = 0;
  std::vector<int32_t> row_;        // (length + 1) scratch
  std::vector<uint8_t> is_target_;  // likewise; empty when all are targets
};

}  // namespace octet
