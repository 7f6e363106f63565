#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "data/loading/loader.h"
#include "plan/data_stage.h"

// Batches from the data of a run.

namespace octet {

// How sequences are made of the data.
struct LoadingOptions {
  int64_t length = 0;  // of a sequence
  SampleOrder order = SampleOrder::Shuffled;
  Packing packing = Packing::BestFit;  // of documents
  uint64_t seed = 0;
};
LoadingOptions loading_options(const DataKeys& keys);

// Micro-batches of `rows` sequences of the training data, prefetched.
std::unique_ptr<BatchSource> make_train_loader(const LoadingOptions& options, const DataChoice& data,
                                               int64_t rows, int rank = 0, int ranks = 1);

// Hashes of what a run reads, the same on two machines only if both have the same files. 0: there is no such data.
struct DataHashes {
  uint64_t training = 0, evaluation = 0, tokenizer = 0;
};
DataHashes data_hashes(const LoadingOptions& options, const DataChoice& data);

// Evaluation data from the front, always the same; null where there is none, or less than a sequence of a stream.
using EvalLoaderFactory = std::function<std::unique_ptr<SampleLoader>(int64_t rows, int64_t length)>;
// The same for a stream of tokens. With `eos`, every eos ends a document, and documents are kept apart.
EvalLoaderFactory stream_eval_loaders(TokenSource tokens, std::optional<int32_t> eos);

// The evaluation data of one part.
struct EvalSet {
  std::string name;
  double weight = 0;  // of the part in the training data; 0: none
  EvalLoaderFactory make_loader = nullptr;
};
// `tokenizer` may be null: any id pads.
std::vector<EvalSet> make_eval_sets(const LoadingOptions& options, const std::vector<DataPart>& parts,
                                    const Tokenizer* tokenizer);
// Why there is no evaluation; "" where there is one.
std::string no_evaluation_reason(const LoadingOptions& options, const TrainingData& data);

// "best_fit: 12 documents in 3 sequences; packing efficiency 98.7 %; loss is taken on 43.2 % of positions"; "" for
// streams.
std::string packing_text(const LoadingOptions& options, const TrainingData& data);

// What a run reads of each part, by the order of its loader.
struct MixShare {
  double sequences = 0;  // share of the sequences, 0 to 1
  double tokens = 0;     // share of the tokens, without padding
};
std::vector<MixShare> mix_shares(const LoadingOptions& options, const TrainingData& data);
// Share of the places of a batch that hold a token, not padding, on average.
double utilisation(const LoadingOptions& options, const TrainingData& data);

}  // namespace octet
