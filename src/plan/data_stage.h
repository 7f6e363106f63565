#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/datasets/dataset.h"
#include "data/loading/packed_loader.h"
#include "plan/model_stage.h"

// The second stage of a run: its tokenizer and its data.

namespace octet {

// Tokens are there as one stream always; documents and their plans where sequences are packed from whole documents.
struct TrainingData {
  TokenSource train, eval;
  DocumentSource train_documents, eval_documents;
  std::shared_ptr<const PackingPlan> train_plan, eval_plan;  // null: a stream

  // Sequences of one pass over the training data.
  int64_t samples_per_epoch(int64_t length) const;
};

struct DataChoice {
  std::string tokenizer_name;    // for the key `tokenizer`: bytes or an absolute path
  std::string tokenizer_source;  // what it is read from: the same, or a checkpoint's copy of it
  std::unique_ptr<const Tokenizer> tokenizer;
  TrainingData data;
  int64_t sequences = 0;  // of one pass over the training data
};

// Opens `dataset` and `eval_dataset` whatever they are; prepares what is neither tokens nor plain text, into the cache.
// ConfigError or Error for what is missing, is empty or does not fit the model's vocabulary.
DataChoice open_data(const TrainConfig& keys, const ModelChoice& model);

// The data of keys.eval_dataset alone, which keys.tokenizer has read; for evaluation without a run.
TrainingData open_eval_data(const TrainConfig& keys, int64_t vocab_size, const Tokenizer& tokenizer);

// The tokenizer that the keys name. Where they name none: that of a prepared dataset, or `of_model`, which the model came
// with (empty: none).
std::string choose_tokenizer(const TrainConfig& keys, const std::string& of_model);

// What keeps `dataset`, `eval_dataset` and `tokenizer` from being opened, one message each; nothing is read but the
// tokenizer, and nothing downloaded: what is on the hub counts as there.
std::vector<std::string> missing_data(const TrainConfig& keys);

}  // namespace octet
