#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "plan/data_stage.h"

// Batches from the data of a run.

namespace octet {

// Micro-batches of `rows` sequences of the training data, prefetched.
std::unique_ptr<BatchSource> make_train_loader(const TrainConfig& keys, const DataChoice& data, int64_t rows,
                                               int rank = 0, int ranks = 1);

// Evaluation data from the front, always the same; null where there is none, or less than a sequence of a stream.
using EvalLoaderFactory = std::function<std::unique_ptr<SampleLoader>(int64_t rows, int64_t length)>;
EvalLoaderFactory make_eval_loader_factory(const TrainConfig& keys, const DataChoice& data);
// The same for a stream of tokens. With `eos`, every eos ends a document, and documents are kept apart.
EvalLoaderFactory stream_eval_loaders(TokenSource tokens, std::optional<int32_t> eos);
// The data of keys.eval_dataset alone, whatever it is, in sequences of keys.max_seq_length; for evaluation without a run.
EvalLoaderFactory open_evaluation_data(const TrainConfig& keys, int64_t vocab_size,
                                       const Tokenizer& tokenizer);
// Why there is no evaluation; "" where there is one.
std::string no_evaluation_reason(const TrainConfig& keys, const TrainingData& data);

// "best_fit: 12 documents in 3 sequences; packing efficiency 98.7 %; loss is taken on 43.2 % of positions"; "" for
// a stream.
std::string packing_text(const TrainConfig& keys, const TrainingData& data);

}  // namespace octet
