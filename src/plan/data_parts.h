#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/data_keys.h"
#include "data/loading/packing_plan.h"
#include "data/shards/token_source.h"
#include "plan/data_note.h"

// The data of a run comes in parts: one per item of `dataset`. Each part is prepared and cached on its own.

namespace octet {

// Sequences of one part. The tokens are always there as one stream. Documents and their plan are set if sequences are
// packed from documents.
struct DataPart {
  std::string path;    // as the user gave it
  std::string name;    // short, and different for each part: for metrics
  double weight = 0;   // of the sequences; 0: no part has a weight
  int64_t passes = 1;  // in one epoch, if no part has a weight
  TokenSource tokens = {};
  DocumentSource documents = {};
  std::shared_ptr<const PackingPlan> plan = nullptr;  // null: a stream
  // The token that ends a document of a stream whose documents are kept apart. Only the demo has one.
  std::optional<int32_t> document_end = std::nullopt;
  std::optional<DatasetNote> note = std::nullopt;  // of records to train on

  // In one pass.
  int64_t sequences(int64_t length) const;
  // Places of the sequences that hold a token, not padding.
  double utilisation() const { return plan ? plan->utilisation() : 1; }
};

struct TrainingData {
  std::vector<DataPart> train;
  std::vector<DataPart> eval;  // only parts that have at least one sequence or document

  // How the first part with conversations writes them.
  std::optional<ChatStyle> chat() const;
  int64_t train_tokens() const;
  int64_t eval_tokens() const;
};

// Opens all parts; prepares what is neither tokens nor plain text, into the cache. `tokenizer_name` is for messages and
// manifests.
TrainingData open_parts(const DataKeys& keys, int64_t vocab_size, const std::string& tokenizer_name,
                        const Tokenizer& tokenizer);
// The parts of keys.eval_dataset alone. `tokenizer` may be null unless has_eval_text().
std::vector<DataPart> open_eval_parts(const DataKeys& keys, int64_t vocab_size,
                                      const std::string& tokenizer_name, const Tokenizer* tokenizer);
// Whether keys.eval_dataset has text that must be tokenized: anything but token files and prepared folders.
bool has_eval_text(const DataKeys& keys);

// Says what --verify has read; nothing without it. `folder` may be empty.
void log_verified(const FileChecks& checks, const std::string& folder = "");

// Why an item of `dataset` or `eval_dataset` cannot be opened, one message each. Nothing is downloaded or prepared: what
// may be on the hub counts as available.
std::vector<std::string> missing_parts(const DataKeys& keys);

}  // namespace octet
