#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/data_keys.h"
#include "plan/data_parts.h"
#include "plan/model_stage.h"

// The second stage of a run: its tokenizer and its data.

namespace octet {

struct DataChoice {
  std::string tokenizer_name;  // for the key `tokenizer`: bytes, a hub id or an absolute path
  // What it is read from: the same, or a checkpoint's copy of it. "": it is not at hand, and the data do not need it.
  std::string tokenizer_source;
  std::unique_ptr<const Tokenizer> tokenizer;
  bool is_plain_text = false;  // whose tokenizer is known: the model can show what it has learnt
  TrainingData data;
  int64_t sequences = 0;  // of one pass over the training data
};

// Opens `dataset` and `eval_dataset` whatever they are; prepares what is neither tokens nor plain text, into the cache.
// ConfigError or Error for what is missing, is empty or does not fit the model's vocabulary.
DataChoice open_data(const DataKeys& keys, const ModelChoice& model);

// The tokenizer that the keys name. Otherwise that of a prepared dataset, or `of_model`, the tokenizer of the model
// (empty: none).
std::string choose_tokenizer(const DataKeys& keys, const std::string& of_model);

// The tokenizer `name`, read from `source`, which becomes a path. If nobody chose it and it cannot be had: with a preset
// that was named, and if `in_need` allows it, `name` becomes bytes; ConfigError otherwise.
enum class InNeed { Bytes, Error };
std::unique_ptr<const Tokenizer> read_tokenizer(const DataKeys& keys, std::string& name, std::string& source,
                                                InNeed in_need = InNeed::Bytes);

// Why `dataset`, `eval_dataset` or `tokenizer` cannot be opened, one message each. Only tokenizers and manifests are
// read. Nothing is downloaded: what may be on the hub counts as available.
std::vector<std::string> missing_data(const DataKeys& keys, const ModelChoice& model);

}  // namespace octet
