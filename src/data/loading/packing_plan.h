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

// A part of a document in one row: its inputs [first, first + count), whose targets are the next tokens. A document
// of n tokens has n - 1 inputs. If they do not fit a row, the document is cut into windows.
struct Fragment {
  uint32_t document;
  uint32_t window;
};

// Which fragments share a row, decided once from the documents' lengths alone: best-fit decreasing in O(n). Epochs
// differ only in the order of the rows and in which fragment of a length takes which place of that length. So row i
// of epoch e is found directly, without a plan per epoch.
class PackingPlan {
 public:
  PackingPlan(const DocumentSource& source, int64_t length, Packing packing);

  int64_t rows() const { return static_cast<int64_t>(row_starts_.size()) - 1; }
  // The places of a row; each is an index into the fragments sorted by length, longest first.
  std::span<const uint32_t> row(int64_t row) const;

  const Fragment& fragment(int64_t place) const { return fragments_[static_cast<size_t>(place)]; }
  // Places of the same length as `place`: .second places from .first on.
  std::pair<int64_t, int64_t> same_length(int64_t place) const;
  int64_t fragment_length(int64_t place) const;
  int64_t length() const { return length_; }  // of a row

  struct Totals {
    int64_t inputs = 0;           // row places that hold a token of a document
    int64_t dropped_windows = 0;  // windows of long documents without a target
    int64_t split_documents = 0;  // longer than a row
    int64_t single_tokens = 0;    // documents of one token, which predict nothing
  };
  const Totals& totals() const { return totals_; }
  // Share of row places that hold a token, not padding.
  double utilisation() const;

 private:
  void collect(const DocumentSource& source);
  void pack_best_fit();
  void pack_one_each();
  // Sorts rows by their first document, so that `row` walks through the data from front to back.
  void order_rows();

  int64_t length_;
  std::vector<Fragment> fragments_;     // by length, longest first; equal ones in the order of the data
  std::vector<int64_t> length_starts_;  // (length + 1): entry i is where fragments of length_ - i begin
  std::vector<uint32_t> places_;        // of all rows
  std::vector<int64_t> row_starts_;     // (rows + 1) into places_
  Totals totals_;
};

}  // namespace octet
