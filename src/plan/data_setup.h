#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/datasets/dataset.h"
#include "data/loading/packed_loader.h"

namespace octet {

struct Setup;

// What a run trains and evaluates on. Tokens are there as one stream always; documents and their plans where
// sequences are packed from whole documents.
struct TrainingData {
  TokenSource train, eval;
  DocumentSource train_documents, eval_documents;
  std::shared_ptr<const PackingPlan> train_plan, eval_plan;  // null: a stream

  // Sequences of one pass over the training data.
  int64_t samples_per_epoch(int64_t length) const;
};

// Fills in config.tokenizer where the configuration names none: that of a prepared dataset, or `of_model`, which the
// model that training starts from came with (empty: none).
void choose_tokenizer(TrainConfig& config, const std::string& of_model);

// What keeps `dataset`, `eval_dataset` and `tokenizer` from being opened, one message each; nothing is read but the
// tokenizer, and nothing downloaded: what is on the hub counts as there.
std::vector<std::string> missing_data(const TrainConfig& config);

// Opens `dataset` and `eval_dataset` whatever they are; prepares what is neither tokens nor plain text. ids must be
// below `vocab_size`.
TrainingData open_training_data(const TrainConfig& config, int64_t vocab_size, const Tokenizer& tokenizer);

// Batches of the training data, prefetched.
std::unique_ptr<BatchSource> make_train_loader(const Setup& setup);

// Evaluation data from the front, always the same; null where there is none, or less than a sequence of a stream.
using EvalLoaderFactory = std::function<std::unique_ptr<SampleLoader>(int64_t rows, int64_t length)>;
EvalLoaderFactory make_eval_loader_factory(const Setup& setup);
// Of a stream of tokens; with `eos`, documents are kept apart after each.
EvalLoaderFactory stream_eval_loaders(TokenSource tokens, std::optional<int32_t> eos);
// The data of config.eval_dataset alone, whatever it is, in sequences of config.max_seq_length; for evaluation without a
// run.
EvalLoaderFactory open_evaluation_data(const TrainConfig& config, int64_t vocab_size,
                                       const Tokenizer& tokenizer);
// Why there is no evaluation; "" where there is one.
std::string no_evaluation_reason(const Setup& setup);

// "best_fit: 98.7 % of 1234 sequences are tokens, 43.2 % targets"; "" for a stream of targets only.
std::string utilisation_text(const Setup& setup);

}  // namespace octet
