#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace octet {

// The bytes of a file from front to back.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // The next bytes; 0 only at the end (for a `into` that is not empty).
  virtual size_t read(std::span<char> into) = 0;
  virtual const std::string& path() const = 0;
  virtual int64_t file_size() const = 0;
  virtual int64_t file_position() const = 0;  // bytes of the file itself read so far, compressed ones as such
};

// Decompresses gzip (all members) and Zstandard (all frames), recognised by their first bytes whatever the file's
// name. Throws Error for a file named .gz, .zst or .zstd that is neither, for damaged or truncated data, for other
// compressions (bzip2, xz, zip), and when octet was built without the library.
std::unique_ptr<ByteStream> open_byte_stream(const std::string& path);

// Text in memory as a stream, for tests.
std::unique_ptr<ByteStream> memory_byte_stream(std::string text, std::string name);

// A stream with a window over it, to search for a byte and consume up to it.
class BufferedBytes {
 public:
  explicit BufferedBytes(std::unique_ptr<ByteStream> stream, size_t window = size_t{1} << 18);

  // The bytes read ahead; empty only at the end of the stream.
  std::string_view window();
  void consume(size_t count);                 // of the window
  bool starts_with(std::string_view prefix);  // prefix is short; looks ahead as far as it needs

  int64_t position() const { return position_; }  // of the window's first byte, uncompressed
  const ByteStream& stream() const { return *stream_; }

 private:
  bool fill();  // more bytes after the window

  std::unique_ptr<ByteStream> stream_;
  std::string buffer_;
  size_t begin_ = 0, end_ = 0;
  int64_t position_ = 0;
};

}  // namespace octet
