#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
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

  int64_t rows() const { return static_cast<int64_t>(arrays_.row_starts.size()) - 1; }
  // The places of a row; each is an index into the fragments sorted by length, longest first.
  std::span<const uint32_t> row(int64_t row) const;

  const Fragment& fragment(int64_t place) const { return arrays_.fragments[static_cast<size_t>(place)]; }
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
  int64_t fragments() const { return static_cast<int64_t>(arrays_.fragments.size()); }

  // A plan as a file (docs/formats.md), which is mapped when it is loaded. `identity` stands for everything that the plan
  // follows from. Writing is not synced: load() finds out whether the file is whole. It returns nothing for a file of
  // another plan, and throws Error for a damaged one.
  void save(Env& env, const std::string& path, uint64_t identity) const;
  static std::optional<PackingPlan> load(Env& env, const std::string& path, uint64_t identity);

 private:
  friend class PackingPlanBuilder;
  struct Arrays {
    std::span<const Fragment> fragments;     // by length, longest first; equal ones in the order of the data
    std::span<const int64_t> length_starts;  // (length + 1): entry i is where fragments of length - i begin
    std::span<const uint32_t> places;        // of all rows
    std::span<const int64_t> row_starts;     // (rows + 1) into places
  };

  PackingPlan() = default;

  int64_t length_ = 0;
  Arrays arrays_;
  std::shared_ptr<const void> owner_;  // of the arrays
  Totals totals_;
};

// A hash of everything that a plan follows from. Plans of two versions of the algorithm differ, too.
uint64_t packing_identity(const DocumentSource& source, int64_t length, Packing packing);

// The plan from `folder`, where earlier calls have stored it. Otherwise it is made, and stored if it is large. A failure
// to store it is not an error. Plans that were not used for a month are removed. "": nothing is stored.
std::shared_ptr<const PackingPlan> stored_packing_plan(Env& env, const std::string& folder,
                                                       const DocumentSource& source, int64_t length,
                                                       Packing packing, int64_t large = int64_t{1} << 20);

}  // namespace octet
