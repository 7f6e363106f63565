#include "io/byte_stream.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "io/env.h"

#if OCTET_WITH_ZLIB
#include <zlib.h>
#endif
#if OCTET_WITH_ZSTD
#include <zstd.h>
#endif

namespace octet {
namespace {

[[maybe_unused]] constexpr size_t kBufferBytes = size_t{1} << 18;  // of compressed files

class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(const std::string& path) : file_(posix_env().open_read(path)), size_(file_.size()) {}

  size_t read(std::span<char> into) override {
    const size_t count = file_.read(std::as_writable_bytes(into));
    position_ += static_cast<int64_t>(count);
    return count;
  }
  const std::string& path() const override { return file_.path(); }
  int64_t file_size() const override { return size_; }
  int64_t file_position() const override { return position_; }

 private:
  ReadableFile file_;
  int64_t size_;
  int64_t position_ = 0;
};

class MemoryStream final : public ByteStream {
 public:
  MemoryStream(std::string text, std::string name) : text_(std::move(text)), name_(std::move(name)) {}

  size_t read(std::span<char> into) override {
    const size_t count = std::min(into.size(), text_.size() - position_);
    std::memcpy(into.data(), text_.data() + position_, count);
    position_ += count;
    return count;
  }
  const std::string& path() const override { return name_; }
  int64_t file_size() const override { return static_cast<int64_t>(text_.size()); }
  int64_t file_position() const override { return static_cast<int64_t>(position_); }

 private:
  std::string text_, name_;
  size_t position_ = 0;
};

#if OCTET_WITH_ZLIB || OCTET_WITH_ZSTD

class CompressedStream : public ByteStream {
 public:
  explicit CompressedStream(std::unique_ptr<ByteStream> file)
      : file_(std::move(file)), buffer_(kBufferBytes) {}
  const std::string& path() const override { return file_->path(); }
  int64_t file_size() const override { return file_->file_size(); }
  int64_t file_position() const override { return file_->file_position() - static_cast<int64_t>(left_); }

 protected:
  bool refill() {  // false at the end of the file
    if (left_ > 0) return true;
    left_ = file_->read(buffer_);
    next_ = buffer_.data();
    return left_ > 0;
  }

  std::unique_ptr<ByteStream> file_;
  const char* next_ = nullptr;  // compressed bytes not yet taken
  size_t left_ = 0;

 private:
  std::vector<char> buffer_;
};

#endif

#if OCTET_WITH_ZLIB

class GzipStream final : public CompressedStream {
 public:
  explicit GzipStream(std::unique_ptr<ByteStream> file) : CompressedStream(std::move(file)) {
    require(inflateInit2(&state_, 16 + MAX_WBITS) == Z_OK, "[{}] no memory to decompress gzip", path());
  }
  ~GzipStream() override { inflateEnd(&state_); }
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;

  size_t read(std::span<char> into) override {
    state_.next_out = reinterpret_cast<Bytef*>(into.data());
    state_.avail_out = static_cast<uInt>(into.size());
    while (state_.avail_out == into.size()) {
      if (!refill()) {
        require(!inside_, "[{}] truncated gzip: the file ends at byte {} inside a member", path(),
                file_size());
        return 0;
      }
      if (!inside_) {  // another member; zeros between members are padding, as for gzip itself
        if (*next_ == 0 && members_ > 0) {
          ++next_, --left_;
          continue;
        }
        inflateReset(&state_);
        inside_ = true;
      }
      state_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(next_));
      state_.avail_in = static_cast<uInt>(left_);
      const int result = inflate(&state_, Z_NO_FLUSH);
      next_ += left_ - state_.avail_in;
      left_ = state_.avail_in;
      if (result == Z_STREAM_END) {
        inside_ = false;
        ++members_;
      } else {
        require(result == Z_OK || result == Z_BUF_ERROR, "[{}] damaged gzip near byte {}: {}", path(),
                file_position(), state_.msg ? state_.msg : "data error");
      }
    }
    return into.size() - state_.avail_out;
  }

 private:
  z_stream state_{};
  bool inside_ = false;
  int64_t members_ = 0;
};

#endif
#if OCTET_WITH_ZSTD

constexpr int kMaxWindowLog = 30;

class ZstdStream final : public CompressedStream {
 public:
  explicit ZstdStream(std::unique_ptr<ByteStream> file)
      : CompressedStream(std::move(file)), context_(ZSTD_createDCtx()) {
    require(context_ != nullptr, "[{}] no memory to decompress zstd", path());
    // --long gives windows of 128 MiB, --long=30 of 1 GiB. A damaged header must not cause more.
    ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, kMaxWindowLog);
  }

  size_t read(std::span<char> into) override {
    ZSTD_outBuffer out{into.data(), into.size(), 0};
    while (out.pos == 0) {
      // Bytes that do not fit into `out` stay inside the decoder. So it is called again, even without new bytes.
      const bool has_input = refill();
      if (!has_input && !inside_) return 0;
      ZSTD_inBuffer in{next_, left_, 0};
      const size_t result = ZSTD_decompressStream(context_.get(), &out, &in);
      next_ += in.pos;
      left_ -= in.pos;
      require(!ZSTD_isError(result), "[{}] damaged zstd near byte {}: {}", path(), file_position(),
              ZSTD_getErrorName(result));
      inside_ = result != 0;
      require(has_input || out.pos > 0, "[{}] truncated zstd: the file ends at byte {} inside a frame",
              path(), file_size());
    }
    return out.pos;
  }

 private:
  struct Free {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };
  std::unique_ptr<ZSTD_DCtx, Free> context_;
  bool inside_ = false;
};

#endif

struct Magic {
  std::string_view bytes;
  std::string_view name;
};
constexpr Magic kGzip = {"\x1f\x8b", "gzip"};
constexpr Magic kZstd = {"\x28\xb5\x2f\xfd", "zstd"};
constexpr std::array kOthers = {Magic{"BZh", "bzip2"},
                                Magic{std::string_view("\xfd"
                                                       "7zXZ\0",
                                                       6),
                                      "xz"},
                                Magic{"PK\x03\x04", "zip"}};

// zstd's skippable frames have sixteen magic numbers and may come before the first frame of data.
bool is_skippable_frame(std::string_view head) {
  return head.size() >= 4 && (static_cast<unsigned char>(head[0]) & 0xf0) == 0x50 &&
         head.substr(1, 3) == "\x2a\x4d\x18";
}

// A file that is truncated in its first bytes must not be taken for an empty or uncompressed one.
void check_not_named_as_compressed(const std::string& path, int64_t bytes) {
  const auto named = [&](std::string_view ending) {
    return path.size() > ending.size() &&
           std::equal(ending.rbegin(), ending.rend(), path.rbegin(),
                      [](char a, char b) { return a == std::tolower(static_cast<unsigned char>(b)); });
  };
  const char* kind = named(".gz") ? "gzip" : named(".zst") || named(".zstd") ? "zstd" : nullptr;
  if (kind) fail("[{}] truncated or not {}: {} bytes that do not begin like it", path, kind, bytes);
}

}  // namespace

std::unique_ptr<ByteStream> open_byte_stream(const std::string& path) {
  std::array<char, 6> first{};
  const size_t count = PlainStream(path).read(first);
  const std::string_view head(first.data(), count);
  auto file = std::make_unique<PlainStream>(path);
  if (head.starts_with(kGzip.bytes)) {
#if OCTET_WITH_ZLIB
    return std::make_unique<GzipStream>(std::move(file));
#else
    fail("[{}] compressed with gzip, but octet was built without zlib (Debian: zlib1g-dev)", path);
#endif
  }
  if (head.starts_with(kZstd.bytes) || is_skippable_frame(head)) {
#if OCTET_WITH_ZSTD
    return std::make_unique<ZstdStream>(std::move(file));
#else
    fail("[{}] compressed with zstd, but octet was built without it (Debian: libzstd-dev)", path);
#endif
  }
  for (const Magic& other : kOthers) {
    require(!head.starts_with(other.bytes), "[{}] compressed with {}, expected gzip, zstd or none", path,
            other.name);
  }
  check_not_named_as_compressed(path, file->file_size());
  return file;
}

std::unique_ptr<ByteStream> memory_byte_stream(std::string text, std::string name) {
  return std::make_unique<MemoryStream>(std::move(text), std::move(name));
}

BufferedBytes::BufferedBytes(std::unique_ptr<ByteStream> stream, size_t window)
    : stream_(std::move(stream)), buffer_(window, '\0') {}

bool BufferedBytes::fill() {
  if (begin_ > 0) std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  if (end_ == buffer_.size()) return false;
  const size_t count = stream_->read(std::span(buffer_).subspan(end_));
  end_ += count;
  return count > 0;
}

std::string_view BufferedBytes::window() {
  if (begin_ == end_) fill();
  return std::string_view(buffer_).substr(begin_, end_ - begin_);
}

void BufferedBytes::consume(size_t count) {
  begin_ += count;
  position_ += static_cast<int64_t>(count);
}

bool BufferedBytes::starts_with(std::string_view prefix) {
  while (end_ - begin_ < prefix.size() && fill()) {
  }
  return std::string_view(buffer_).substr(begin_, end_ - begin_).starts_with(prefix);
}

}  // namespace octet
