#include "base/json.h"

#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace octet {
namespace {

using nlohmann::json;

// The parser's callbacks do not know the position in the text; the iterator it reads through does.
struct PlacedIterator {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  const char** furthest;

  reference operator*() const { return *at; }
  PlacedIterator& operator++() {
    *furthest = ++at;
    return *this;
  }
  PlacedIterator operator++(int) {
    PlacedIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const PlacedIterator& other) const { return at == other.at; }
  bool operator!=(const PlacedIterator& other) const { return at != other.at; }
};

class Builder {
 public:
  Builder(std::string_view text, std::string_view place, const JsonOptions& options)
      : text_(text), place_(place), options_(options), furthest_(text.data()) {}

  json build() {
    // The lexer takes a NUL byte for the end of its input, and would let anything follow it.
    if (const size_t nul = text_.find('\0'); nul != text_.npos) fail_at(nul, "NUL byte, expected text");
    json::sax_parse(PlacedIterator{text_.data(), &furthest_},
                    PlacedIterator{text_.data() + text_.size(), &furthest_}, this);
    return std::move(root_);
  }

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(json::number_integer_t value) { return add(value); }
  bool number_unsigned(json::number_unsigned_t value) { return add(value); }
  bool number_float(json::number_float_t value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(json::binary_t&) { return false; }
  bool start_object(size_t) { return open(json::object()); }
  bool start_array(size_t) { return open(json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    auto& object = open_.back()->get_ref<json::object_t&>();
    const auto [slot, inserted] = object.try_emplace(std::move(name));
    if (!inserted && options_.refuse_duplicate_keys) {
      fail_at(here(), fmt::format("key \"{}\" appears twice", slot->first));
    }
    slot_ = &slot->second;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const json::exception& error) {
    fail_at(position > 0 ? position - 1 : 0, plain_json_error(error.what()));
  }

 private:
  template <class T>
  json* place_value(T&& value) {
    if (++values_ > options_.max_values)
      fail_at(here(), fmt::format("more than {} values", options_.max_values));
    if (open_.empty()) {
      root_ = std::forward<T>(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      auto& array = open_.back()->get_ref<json::array_t&>();
      array.emplace_back(std::forward<T>(value));
      return &array.back();
    }
    *slot_ = std::forward<T>(value);
    return slot_;
  }

  template <class T>
  bool add(T&& value) {
    place_value(std::forward<T>(value));
    return true;
  }

  bool open(json&& container) {
    if (std::cmp_greater_equal(open_.size(), options_.max_depth)) {
      fail_at(here(), fmt::format("nested deeper than {} levels", options_.max_depth));
    }
    open_.push_back(place_value(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  // The last byte the parser took.
  size_t here() const {
    const auto read = static_cast<size_t>(furthest_ - text_.data());
    return read > 0 ? read - 1 : 0;
  }

  [[noreturn]] void fail_at(size_t position, std::string_view what) const {
    const std::string_view before = text_.substr(0, position);
    int64_t line = options_.first_line, column = options_.first_column;
    for (const char c : before) {
      ++column;
      if (c == '\n') ++line, column = 1;
    }
    fail("[{}] line {}, column {}: {}", place_, line, column, what);
  }

  std::string_view text_;
  std::string_view place_;
  JsonOptions options_;
  const char* furthest_;
  int64_t values_ = 0;
  json root_;
  std::vector<json*>
      open_;  // containers from the root to the parser's position; stable, because only the last one grows
  json* slot_ = nullptr;  // where the value of the last key goes
};

}  // namespace

json parse_json(std::string_view text, std::string_view place, const JsonOptions& options) {
  return Builder(text, place, options).build();
}

std::string plain_json_error(std::string_view what) {
  // "[json.exception...] parse error at line 1, column 2: what went wrong"; numbers out of range have no place.
  if (const size_t after = what.find("] "); after != what.npos) what.remove_prefix(after + 2);
  if (what.starts_with("parse error at ")) {
    if (const size_t after = what.find(": "); after != what.npos) what.remove_prefix(after + 2);
  }
  std::string text(what.substr(0, 200));
  for (char& c : text) c = c < 0x20 || c > 0x7e ? '?' : c;  // for signed and unsigned char
  return text;
}

}  // namespace octet
