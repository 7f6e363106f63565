#pragma once

#include <string>

#include "config/data_keys.h"
#include "data/datasets/prepare.h"

namespace octet {

// SIGINT or SIGTERM while a dataset was being prepared: the program ends with 128 + the signal's number.
class Interrupted : public StoppedError {
 public:
  Interrupted(const std::string& message, int signal) : StoppedError(message), signal_(signal) {}
  int signal() const { return signal_; }

 private:
  int signal_;
};

// How an item of `dataset` or `eval_dataset` is read: its own keys, else those of the run. The run's keys that choose
// files (split, subset, revision, folder) hold only for `dataset`, and for an item of eval_dataset that is also an item
// of dataset; other ones have only eval_dataset_split. Columns, format and chat template hold for both.
ExampleOptions train_examples(const DataKeys& config, const DatasetPart& part);
ExampleOptions eval_examples(const DataKeys& config, const DatasetPart& part);

// Where octet keeps what it has made from data: cache_dir, octet's cache folder, or a folder in output_dir.
std::string cache_folder(const DataKeys& config);

struct PrepareRequest {
  ExampleOptions examples;
  std::string tokenizer;    // its name, for the manifest
  int64_t max_samples = 0;  // 0: all
  double eval_split = 0;
  uint64_t seed = 0;
  // The folder to write; "": one in the cache, named by the input and all options, so that the same call finds it again.
  std::string output;
};

struct PreparedFolder {
  std::string folder;
  PrepareResult result;
};

// Reads, tokenizes and writes `request.examples` with a progress bar and says what it does; throws Interrupted when a
// signal stops it. A folder of the cache that is there already is only named.
PreparedFolder prepare_with_progress(const DataKeys& config, const PrepareRequest& request,
                                     const Tokenizer& tokenizer);

// Documents, tokens, share of targets, lengths and skipped records, as tables.
std::string statistics_text(const DatasetManifest& manifest);

}  // namespace octet
