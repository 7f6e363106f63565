#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/shards/token_source.h"

namespace octet {

struct DatasetOptions {
  // "demo" (built in), or a file, a folder or a glob. Files are read in the order of their names. A folder gives its
  // *.bin (token files) or its *.txt (text); a folder with both is an error.
  std::string dataset = "demo";
  // Like `dataset`. When empty: the demo's held-out stories; the files of a folder with a validation name (val.bin
  // next to train.bin, name_val_000000.bin); otherwise the last `eval_split` share of every piece of `dataset`.
  std::string eval_dataset = {};
  double eval_split = 0.01;
  uint64_t seed = 0;             // of the demo's stories
  bool skip_bad_text = false;    // skip texts with invalid UTF-8 instead of failing
  int64_t demo_stories = 20000;  // for training; a tenth as many for evaluation
};

struct Dataset {
  TokenSource train;
  TokenSource eval;  // empty when eval_split is 0 and nothing else was named
};

// Ids must be below `vocab_size`, the model's. Only text needs the tokenizer; it may be null for token files.
Dataset open_dataset(const DatasetOptions& options, int64_t vocab_size, const Tokenizer* tokenizer,
                     FileChecks& checks);

// The files of a path (file, folder or glob), in order. No file is an error.
std::vector<std::string> stream_files(const std::string& path);

// One path (file, folder or glob) as it is, without any split.
TokenSource open_tokens(const std::string& path, int64_t vocab_size, const Tokenizer* tokenizer,
                        FileChecks& checks, bool skip_bad_text = false);

}  // namespace octet
