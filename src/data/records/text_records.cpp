#include <algorithm>
#include <utility>

#include "data/records/record_reader.h"

namespace octet {
namespace {

constexpr std::string_view kMarker = "<|endoftext|>";

// A document ends at the end of the file or at the marker; one newline after the marker belongs to it.
class TextRecords final : public RecordReader {
 public:
  TextRecords(std::unique_ptr<ByteStream> stream, const RecordLimits& limits)
      : bytes_(std::move(stream), limits.window), limits_(limits) {
    if (bytes_.starts_with(kByteOrderMark)) drop(kByteOrderMark.size());
  }

  bool next(Record& record) override {
    while (true) {
      record.is_begin = is_begin_;
      const size_t size = find_end();
      if (size == 0 && rest().empty() && at_end_) return false;
      const size_t marker = has_marker_ ? kMarker.size() : 0;
      first_byte_ = offset_;
      std::string document(rest().substr(0, size));
      advance(size + marker);
      if (has_marker_) skip_newline();
      is_begin_ = has_marker_ || (rest().empty() && at_end_);
      record.is_end = is_begin_;
      // Only an empty document between two markers is skipped, not the empty last part of a long text.
      if (document.empty() && record.is_begin) continue;
      const size_t bad = find_invalid_utf8(document);
      if (first_byte_ == 0 && (document.starts_with("\xff\xfe") || document.starts_with("\xfe\xff"))) {
        fail_record(SkipReason::InvalidUtf8, "[{}] is UTF-16; convert it with 'iconv -f UTF-16 -t UTF-8'",
                    bytes_.stream().path());
      }
      if (bad != std::string_view::npos) {
        fail_record(SkipReason::InvalidUtf8, "[{}] invalid UTF-8 at byte {}", bytes_.stream().path(),
                    first_byte_ + static_cast<int64_t>(bad));
      }
      // A stray NUL does no harm. Many of them are binary data, or characters of two bytes.
      const auto nuls = std::count(document.begin(), document.end(), '\0');
      if (nuls >= 16 && 100 * nuls > std::ssize(document)) {
        const bool is_big_endian = document[0] == '\0';
        fail_record(
            SkipReason::InvalidUtf8,
            "[{}] {} of {} bytes from byte {} on are NUL: this is binary data, or UTF-16 (convert it with 'iconv -f {} "
            "-t UTF-8')",
            bytes_.stream().path(), nuls, document.size(), first_byte_,
            is_big_endian ? "UTF-16BE" : "UTF-16LE");
      }
      record.value = nlohmann::json::object();
      record.value["text"] = std::move(document);
      return true;
    }
  }

  std::string place() const override {
    return fmt::format("{}] byte {}", bytes_.stream().path(), first_byte_);
  }
  int64_t bytes_read() const override { return bytes_.stream().file_position(); }

 private:
  void drop(size_t count) {
    bytes_.consume(count);
    offset_ += static_cast<int64_t>(count);
  }

  std::string_view rest() const { return std::string_view(text_).substr(front_); }

  void advance(size_t count) {
    front_ += count;
    offset_ += static_cast<int64_t>(count);
  }

  bool read_more() {
    const std::string_view window = bytes_.window();
    if (window.empty()) {
      at_end_ = true;
      return false;
    }
    text_.erase(0, std::exchange(front_, 0));
    text_ += window;
    bytes_.consume(window.size());
    return true;
  }

  // The size of the document (or part) at the front of rest(); sets has_marker_.
  size_t find_end() {
    size_t searched = 0;
    while (true) {
      const size_t found = rest().find(kMarker, searched);
      has_marker_ = found != std::string_view::npos;
      if (has_marker_ && found <= limits_.max_text) return found;
      // A marker may begin before the limit and end after what is read.
      if (rest().size() > limits_.max_text + kMarker.size() ||
          (at_end_ && rest().size() > limits_.max_text)) {
        has_marker_ = false;
        return cut(rest());
      }
      searched = rest().size() - std::min(rest().size(), kMarker.size() - 1);
      if (!read_more() && rest().size() <= limits_.max_text) return rest().size();
    }
  }

  // Cut at the start of a line that does not begin with white space: there both parts give the tokens of the whole.
  size_t cut(std::string_view text) const {
    const size_t limit = limits_.max_text;
    for (size_t i = limit; i > limit / 2; --i) {
      const bool is_line_start = text[i - 1] == '\n';
      if (is_line_start && text[i] != '\n' && text[i] != '\r' && text[i] != ' ' && text[i] != '\t') return i;
    }
    size_t i = limit;  // no such line: cut between two characters
    while (i > limit - 4 && (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80) --i;
    return i;
  }

  void skip_newline() {
    if (rest().empty()) read_more();
    if (rest().starts_with('\n')) advance(1);
  }

  BufferedBytes bytes_;
  RecordLimits limits_;
  std::string text_;  // from front_ on: read but not given yet
  size_t front_ = 0;
  bool at_end_ = false, has_marker_ = false, is_begin_ = true;
  int64_t offset_ = 0;  // of rest() in the file
  int64_t first_byte_ = 0;
};

}  // namespace

std::unique_ptr<RecordReader> text_records(std::unique_ptr<ByteStream> stream, const RecordLimits& limits) {
  return std::make_unique<TextRecords>(std::move(stream), limits);
}

}  // namespace octet
