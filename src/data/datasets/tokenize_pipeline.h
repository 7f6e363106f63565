#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "data/records/example_reader.h"

namespace octet {

// Examples read on one thread, encoded on `threads` others, and handed out in the order of the input: what comes out
// does not depend on the threads. At most a few batches per thread are in memory.
class TokenizePipeline {
 public:
  struct Options {
    int threads = 0;           // 0: one for each core
    int64_t max_examples = 0;  // 0: all
    // Examples for which this says no are counted but not encoded; null: all are.
    std::function<bool(int64_t example)> wanted;
  };
  struct Item {
    int64_t example = 0;  // its number in the input
    Document document;
  };

  // The reader and the tokenizer must outlive the pipeline.
  TokenizePipeline(ExampleReader& reader, const Tokenizer& tokenizer, Options options);
  ~TokenizePipeline();  // stops early
  TokenizePipeline(const TokenizePipeline&) = delete;
  TokenizePipeline& operator=(const TokenizePipeline&) = delete;

  // The next batch, which may be empty; false at the end, once everything was handed out. What the reader or the
  // tokenizer throws comes in the place of the batch it struck, after all that stands before it.
  bool next(std::vector<Item>& items);

  int64_t examples() const;  // read from the input up to the batch handed out last
  double progress() const;   // share of the input read, at the same place

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace octet
