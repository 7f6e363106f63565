#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/shards/document_source.h"

namespace octet {

enum class Packing {
  BestFit,  // each row holds as many whole documents as fit
  None,     // each row holds one document; the rest of it is padding
};

// A part of a document that stands in one row: inputs [first, first + count) of it, whose targets are the tokens that
// follow. A document of n tokens has n - 1 inputs; where those are more than a row holds, it is cut into windows.
struct Fragment {
  uint32_t document;
  uint32_t window;
};

// Which fragments share a row, decided once from the documents' lengths alone: best-fit decreasing in O(n). What
// differs between epochs is only which of the fragments of one length takes which of the places of that length (and
// the order of the rows), so row i of epoch e is found directly, without a plan per epoch.
class PackingPlan {
 public:
  PackingPlan(const DocumentSource& source, int64_t length, Packing packing);

  int64_t rows() const { return static_cast<int64_t>(row_starts_.size()) - 1; }
  // The places of a row; each is a number into the fragments sorted by length, longest first.
  std::span<const uint32_t> row(int64_t row) const;

  const Fragment& fragment(int64_t place) const { return fragments_[static_cast<size_t>(place)]; }
  // Places of the same length as `place`: from .first, .second of them.
  std::pair<int64_t, int64_t> same_length(int64_t place) const;
  int64_t fragment_length(int64_t place) const;
  int64_t length() const { return length_; }  // of a row

  struct Totals {
    int64_t inputs = 0;           // places of rows that hold a token of a document
    int64_t dropped_windows = 0;  // of long documents, without a target in them
    int64_t split_documents = 0;  // longer than a row
    int64_t single_tokens = 0;    // documents of one token, which predict nothing
  };
  const Totals& totals() const { return totals_; }
  // Share of the rows' places that hold a token rather than padding.
  double utilisation() const;

 private:
  void collect(const DocumentSource& source);
  void pack_best_fit();
  void pack_one_each();
  // By the first of their documents, so that `row` goes through the data from front to back.
  void order_rows();

  int64_t length_;
  std::vector<Fragment> fragments_;     // by length, longest first; equal ones in the order of the data
  std::vector<int64_t> length_starts_;  // (length + 1): i is where those of length_ - i begin
  std::vector<uint32_t> places_;        // of all rows
  std::vector<int64_t> row_starts_;     // (rows + 1) into places_
  Totals totals_;
};

}  // namespace octet
