#include "data/loading/packing_plan.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "base/checked.h"
#include "base/error.h"

namespace octet {
namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

// A set of numbers below `size` that finds its smallest number >= x in log64(size) steps. It is a tree of bit words:
// a set bit means that the word below it is not empty.
class NumberSet {
 public:
  explicit NumberSet(size_t size) {
    do {
      size = (size + 63) / 64;
      levels_.emplace_back(size, 0);
    } while (size > 1);
  }
  void insert(size_t x) {
    for (auto& level : levels_) {
      level[x / 64] |= uint64_t{1} << (x % 64);
      x /= 64;
    }
  }
  void erase(size_t x) {
    for (auto& level : levels_) {
      level[x / 64] &= ~(uint64_t{1} << (x % 64));
      if (level[x / 64] != 0) return;
      x /= 64;
    }
  }
  // `none` if there is no such number.
  size_t at_least(size_t x, size_t none) const {
    for (size_t up = 0; up < levels_.size(); ++up) {
      if (x / 64 >= levels_[up].size()) return none;
      const uint64_t rest = levels_[up][x / 64] & ~uint64_t{0} << (x % 64);
      if (rest == 0) {
        x = x / 64 + 1;  // the words after this one, by their bits one level up
        continue;
      }
      x = x / 64 * 64 + static_cast<size_t>(std::countr_zero(rest));
      for (size_t down = up; down > 0; --down) {
        x = x * 64 + static_cast<size_t>(std::countr_zero(levels_[down - 1][x]));
      }
      return x;
    }
    return none;
  }

 private:
  std::vector<std::vector<uint64_t>> levels_;
};

}  // namespace

// Makes the arrays of a plan.
class PackingPlanBuilder {
 public:
  PackingPlanBuilder(PackingPlan& plan, const DocumentSource& source, Packing packing)
      : length_(plan.length_), totals_(plan.totals_) {
    collect(source);
    if (packing == Packing::BestFit) {
      pack_best_fit();
    } else {
      pack_one_each();
    }
    order_rows();
  }

  // Hands the arrays over.
  static void finish(PackingPlan& plan, PackingPlanBuilder&& builder) {
    struct Owner {
      std::vector<Fragment> fragments;
      std::vector<int64_t> length_starts;
      std::vector<uint32_t> places;
      std::vector<int64_t> row_starts;
    };
    auto owner =
        std::make_shared<const Owner>(Owner{std::move(builder.fragments_), std::move(builder.length_starts_),
                                            std::move(builder.places_), std::move(builder.row_starts_)});
    plan.arrays_ = {owner->fragments, owner->length_starts, owner->places, owner->row_starts};
    plan.owner_ = std::move(owner);
  }

 private:
  std::span<const uint32_t> row(size_t number) const {
    return std::span(places_).subspan(static_cast<size_t>(row_starts_[number]),
                                      static_cast<size_t>(row_starts_[number + 1] - row_starts_[number]));
  }

  void collect(const DocumentSource& source) {
    // Calls visit(document, window, length of the window) for every fragment with a target in it.
    const auto for_each_fragment = [&](auto&& visit) {
      totals_ = {};
      source.for_each_length([&](int64_t document, int64_t tokens) {
        const int64_t inputs = tokens - 1;
        totals_.single_tokens += inputs == 0;
        totals_.split_documents += inputs > length_;
        for (int64_t window = 0, first = 0; first < inputs; ++window, first += length_) {
          const int64_t count = std::min(length_, inputs - first);
          if (inputs > length_ && !source.any_target(document, first + 1, count)) {
            ++totals_.dropped_windows;
            continue;
          }
          totals_.inputs += count;
          visit(static_cast<uint32_t>(document), static_cast<uint32_t>(window), count);
        }
      });
    };
    length_starts_.assign(static_cast<size_t>(length_) + 1, 0);
    int64_t fragments = 0;
    for_each_fragment([&](uint32_t, uint32_t, int64_t count) {
      ++length_starts_[static_cast<size_t>(length_ - count) + 1];
      ++fragments;
    });
    require(fragments < kNone, "[packing] {} parts of documents, expected fewer than {}", fragments, kNone);
    std::partial_sum(length_starts_.begin(), length_starts_.end(), length_starts_.begin());
    fragments_.resize(static_cast<size_t>(fragments));
    sequence_.resize(fragments_.size());
    std::vector<int64_t> next = length_starts_;
    uint32_t number = 0;
    for_each_fragment([&](uint32_t document, uint32_t window, int64_t count) {
      const auto place = static_cast<size_t>(next[static_cast<size_t>(length_ - count)]++);
      fragments_[place] = {document, window};
      sequence_[place] = number++;
    });
  }

  void pack_best_fit() {
    // Rows with the same free space form a list, as do the places of a row.
    const auto size = static_cast<size_t>(length_);
    NumberSet rooms(size + 1);
    std::vector<uint32_t> first_row(size + 1, kNone), next_row, last_place,
        previous_place(fragments_.size(), kNone);
    for (size_t k = 0; k < size; ++k) {
      const size_t length = size - k;
      for (int64_t i = length_starts_[k]; i < length_starts_[k + 1]; ++i) {
        const auto place = static_cast<uint32_t>(i);
        const size_t room = rooms.at_least(length, 0);
        uint32_t row = 0;
        if (room == 0) {
          row = static_cast<uint32_t>(last_place.size());
          last_place.push_back(kNone);
          next_row.push_back(kNone);
        } else {
          row = first_row[room];
          first_row[room] = next_row[row];
          if (first_row[room] == kNone) rooms.erase(room);
        }
        previous_place[place] = last_place[row];
        last_place[row] = place;
        const size_t left = (room == 0 ? size : room) - length;
        if (left == 0) continue;
        next_row[row] = first_row[left];
        if (first_row[left] == kNone) rooms.insert(left);
        first_row[left] = row;
      }
    }
    row_starts_.reserve(last_place.size() + 1);
    row_starts_.push_back(0);
    places_.reserve(fragments_.size());
    for (uint32_t place : last_place) {
      const auto begin = static_cast<std::ptrdiff_t>(places_.size());
      for (; place != kNone; place = previous_place[place]) places_.push_back(place);
      std::reverse(places_.begin() + begin, places_.end());
      row_starts_.push_back(static_cast<int64_t>(places_.size()));
    }
  }

  void pack_one_each() {
    places_.resize(fragments_.size());
    std::iota(places_.begin(), places_.end(), 0u);
    row_starts_.resize(fragments_.size() + 1);
    std::iota(row_starts_.begin(), row_starts_.end(), int64_t{0});
  }

  // Sorts rows by their first fragment, so that row after row walks through the data from front to back.
  void order_rows() {
    std::vector<uint32_t> row_of_first(fragments_.size(), kNone);  // by the fragment's number in the data
    const size_t rows = row_starts_.size() - 1;
    for (size_t i = 0; i < rows; ++i) {
      uint32_t first = kNone;
      for (const uint32_t place : row(i)) first = std::min(first, sequence_[place]);
      row_of_first[first] = static_cast<uint32_t>(i);
    }
    std::vector<uint32_t> places;
    places.reserve(places_.size());
    std::vector<int64_t> starts = {0};
    starts.reserve(row_starts_.size());
    for (const uint32_t from : row_of_first) {
      if (from == kNone) continue;
      const auto part = row(from);
      places.insert(places.end(), part.begin(), part.end());
      starts.push_back(static_cast<int64_t>(places.size()));
    }
    places_ = std::move(places);
    row_starts_ = std::move(starts);
  }

  const int64_t length_;
  PackingPlan::Totals& totals_;
  std::vector<Fragment> fragments_;
  std::vector<uint32_t> sequence_;  // of each fragment: its number in the order of the data
  std::vector<int64_t> length_starts_;
  std::vector<uint32_t> places_;
  std::vector<int64_t> row_starts_;
};

PackingPlan::PackingPlan(const DocumentSource& source, int64_t length, Packing packing) : length_(length) {
  require(length > 0, "[packing] max_seq_length {}, expected at least 1", length);
  require(source.counts().documents < kNone, "[packing] {} documents, expected fewer than {}",
          source.counts().documents, kNone);
  PackingPlanBuilder::finish(*this, PackingPlanBuilder(*this, source, packing));
}

std::span<const uint32_t> PackingPlan::row(int64_t row) const {
  const auto index = static_cast<size_t>(row);
  return arrays_.places.subspan(
      static_cast<size_t>(arrays_.row_starts[index]),
      static_cast<size_t>(arrays_.row_starts[index + 1] - arrays_.row_starts[index]));
}

std::pair<int64_t, int64_t> PackingPlan::same_length(int64_t place) const {
  const auto after = std::upper_bound(arrays_.length_starts.begin(), arrays_.length_starts.end(), place);
  return {*(after - 1), *after - *(after - 1)};
}

int64_t PackingPlan::fragment_length(int64_t place) const {
  const auto after = std::upper_bound(arrays_.length_starts.begin(), arrays_.length_starts.end(), place);
  return length_ - (after - 1 - arrays_.length_starts.begin());
}

double PackingPlan::utilisation() const {
  return rows() == 0
             ? 0
             : static_cast<double>(totals_.inputs) / static_cast<double>(checked_mul(rows(), length_));
}

}  // namespace octet
