#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "data/records/example_reader.h"

namespace octet {

// Examples are read on one thread, encoded on `threads` others, and handed out in the order of the input. The result
// does not depend on the threads. At most a few batches per thread are in memory.
class TokenizePipeline {
 public:
  struct Options {
    int threads = 0;           // 0: one per core
    int64_t max_examples = 0;  // 0: all
    // Examples for which this returns false are counted but not encoded; null: all are encoded.
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

  // The next batch, which may be empty; false at the end. What the reader or the tokenizer throws is thrown here
  // instead of the batch it concerns, after all earlier batches.
  bool next(std::vector<Item>& items);

  int64_t examples() const;  // read from the input up to the batch handed out last
  double progress() const;   // share of the input read, at the same place

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace octet
