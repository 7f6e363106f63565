#include "data/shards/token_source.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/error.h"
#include "base/for_all.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/records/record_reader.h"
#include "data/shards/token_bytes.h"
#include "io/env.h"

namespace octet {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token files are read in place and are little-endian");

// Header of an llm.c file: 256 words, of which all but the first few are 0.
constexpr int64_t kHeaderBytes = 256 * 4;
using Header = std::array<uint32_t, 256>;

struct Format {
  uint32_t magic, version;
  int width;
};
constexpr std::array kShardFormats = {Format{20240520, 1, 2}, Format{20240801, 7, 4}};
constexpr uint32_t kLlmcEvalMagic = 20240522;  // multiple-choice questions, not a token stream

// A raw file has no header to recognise. If words 4 to 255 are all 0, they would be 504 tokens of id 0 in a row,
// which no tokenizer produces. So that is a header (words 0 to 3 hold magic, version, count, longest example).
bool looks_like_header(std::span<const std::byte> bytes) {
  if (static_cast<int64_t>(bytes.size()) < kHeaderBytes) return false;
  return std::all_of(bytes.begin() + 16, bytes.begin() + kHeaderBytes,
                     [](std::byte b) { return b == std::byte{0}; });
}

struct Layout {
  int64_t offset;  // of the first id
  int width;
  int64_t count;
};

Layout shard_layout(const std::string& path, std::span<const std::byte> bytes, const Format& format) {
  const int64_t size = static_cast<int64_t>(bytes.size());
  require(size >= kHeaderBytes, "[dataset] {}: truncated, {} bytes, expected a header of {} bytes", path,
          size, kHeaderBytes);
  Header header;
  std::memcpy(header.data(), bytes.data(), kHeaderBytes);
  require(header[1] == format.version, "[dataset] {}: token shard of version {}, expected {} with magic {}",
          path, header[1], format.version, format.magic);
  const int64_t count = static_cast<int32_t>(header[2]);
  require(count >= 0, "[dataset] {}: header says {} tokens, expected 0 or more", path, count);
  const int64_t expected = kHeaderBytes + count * format.width;
  require(size == expected,
          "[dataset] {}: {}, {} bytes, expected {} ({} tokens of {} bytes after a header of {})", path,
          size < expected ? "truncated" : "too long", size, expected, count, format.width, kHeaderBytes);
  return {kHeaderBytes, format.width, count};
}

Layout layout_of(const std::string& path, std::span<const std::byte> bytes) {
  const int64_t size = static_cast<int64_t>(bytes.size());
  require(size > 0, "[dataset] {}: empty file, expected tokens", path);
  uint32_t magic = 0;
  if (size >= 4) std::memcpy(&magic, bytes.data(), 4);
  for (const Format& format : kShardFormats) {
    if (magic == format.magic) return shard_layout(path, bytes, format);
  }
  require(magic != kLlmcEvalMagic,
          "[dataset] {}: magic {} is an llm.c evaluation file, expected a token shard", path, magic);
  require(!looks_like_header(bytes),
          "[dataset] {}: bad magic {}, expected {} or {} (llm.c shard) or ids of 2 bytes", path, magic,
          kShardFormats[0].magic, kShardFormats[1].magic);
  require(size % 2 == 0, "[dataset] {}: {} bytes, an odd number; expected ids of 2 bytes", path, size);
  return {0, 2, size / 2};
}

// Smaller files of a folder are read again in a few milliseconds.
constexpr int64_t kWorthRemembering = int64_t{64} << 20;

uint64_t checksum_of(const std::byte* data, int64_t bytes) {
  const auto half = static_cast<size_t>(bytes / 2);
  return uint64_t{crc32c(data, half)} << 32 | crc32c(data + half, static_cast<size_t>(bytes) - half);
}

// Enough to distinguish files without reading all of them: of more than 1 MiB, 64 blocks of 4 KiB between the first byte
// and the last.
uint64_t checksum_of_file(const std::byte* data, int64_t bytes) {
  constexpr int64_t kWhole = int64_t{1} << 20, kBlocks = 64, kBlock = 4096;
  if (bytes <= kWhole) return checksum_of(data, bytes);
  uint64_t sum = 0;
  for (int64_t i = 0; i < kBlocks; ++i) {
    const int64_t at = (bytes - kBlock) * i / (kBlocks - 1);
    sum = sum * 0x9e3779b97f4a7c15u + crc32c(data + at, static_cast<size_t>(kBlock));
  }
  return sum;
}

}  // namespace

void TokenSource::append(Piece piece) {
  if (piece.count == 0) return;
  has_mask_ = has_mask_ || piece.mask || !piece.document_starts.empty();
  starts_.push_back(size_);
  size_ += piece.count;
  pieces_.push_back(std::move(piece));
}

void TokenSource::append(const TokenSource& other) {
  const std::vector<Piece> pieces = other.pieces_;  // other may be *this
  for (const Piece& piece : pieces) append(piece);
}

TokenSource TokenSource::from_ids(std::vector<int32_t> ids, std::string name, int64_t vocab_size) {
  auto owner = std::make_shared<const std::vector<int32_t>>(std::move(ids));
  Piece piece{owner,
              reinterpret_cast<const std::byte*>(owner->data()),
              4,
              static_cast<int64_t>(owner->size()),
              std::move(name),
              0,
              0,
              vocab_size};
  piece.checksum = checksum_of(piece.data, piece.count * piece.width);
  check_token_bytes(piece.data, piece.width, piece.count, vocab_size, piece.name, piece.data_offset);
  TokenSource source;
  source.append(std::move(piece));
  return source;
}

TokenSource::Piece TokenSource::map_token_file(const std::string& path, int64_t vocab_size) {
  auto file = std::make_shared<const MappedFile>(posix_env().map(path));
  const Layout layout = layout_of(path, file->bytes());
  Piece piece{
      file,      file->bytes().data() + layout.offset, layout.width, layout.count, path, layout.offset, 0,
      vocab_size};
  piece.checksum = checksum_of_file(piece.data, piece.count * piece.width);
  return piece;
}

void TokenSource::check_ids(const Piece& piece) {
  check_token_bytes(piece.data, piece.width, piece.count, piece.vocab_size, piece.name, piece.data_offset);
}

TokenSource TokenSource::from_token_file(const std::string& path, int64_t vocab_size) {
  Piece piece = map_token_file(path, vocab_size);
  check_ids(piece);
  TokenSource source;
  source.append(std::move(piece));
  return source;
}

TokenSource TokenSource::from_token_files(std::span<const std::string> paths, int64_t vocab_size,
                                          FileChecks& checks) {
  std::vector<Piece> pieces;
  std::vector<FileStamp> stamps;
  std::map<std::string, std::vector<size_t>> folders;
  for (const std::string& path : paths) {
    stamps.push_back(file_stamp(path));
    pieces.push_back(map_token_file(path, vocab_size));
    folders[parent_path(path)].push_back(pieces.size() - 1);
  }
  const auto name_of = [&](size_t i) { return std::filesystem::path(paths[i]).filename().string(); };
  for (auto& [folder, files] : folders) {
    CheckedFiles& memory = checks.memory(folder, CheckedFiles::Place::Cache);
    // A file's largest id is remembered, because models have different vocabularies.
    const auto drop_known = [&] {
      if (checks.verify()) return;
      std::erase_if(files, [&](size_t i) {
        const std::optional<uint64_t> largest = memory.find(name_of(i), stamps[i]);
        return largest && std::cmp_less(*largest, vocab_size);
      });
    };
    drop_known();
    if (files.empty()) continue;
    int64_t bytes = 0;
    for (const size_t i : files) bytes += stamps[i].size;
    const bool remembers = bytes >= kWorthRemembering;
    if (remembers) memory.begin_checks();
    drop_known();
    const Clock::time_point start = Clock::now();
    std::vector<uint32_t> largest(files.size());
    for_all(files.size(), [&](size_t i) {
      const Piece& piece = pieces[files[i]];
      largest[i] = largest_token(piece.data, piece.width, piece.count);
    });
    FileChecks::Amount read{.files = std::ssize(files), .seconds = seconds_since(start)};
    for (const size_t i : files) read.bytes += stamps[i].size;
    checks.add(read);
    for (size_t i = 0; i < files.size() && remembers; ++i)
      memory.remember(name_of(files[i]), stamps[files[i]], largest[i]);
    if (remembers) memory.save();
    for (size_t i = 0; i < files.size(); ++i) {
      if (std::cmp_greater_equal(largest[i], vocab_size)) check_ids(pieces[files[i]]);  // says where
    }
  }
  TokenSource source;
  for (Piece& piece : pieces) source.append(std::move(piece));
  return source;
}

TokenSource TokenSource::from_shard(const Shard& shard, int64_t vocab_size) {
  const ShardKind& kind = shard.kind();
  if (kind.vocab_size > vocab_size) {
    check_token_bytes(shard.token_bytes(), kind.token_width(), shard.counts().tokens, vocab_size,
                      shard.name(), shard.token_bytes_offset());
  }
  Piece piece{
      shard.owner(), shard.token_bytes(),        kind.token_width(), shard.counts().tokens,
      shard.name(),  shard.token_bytes_offset(), shard.checksum(),   std::min(kind.vocab_size, vocab_size)};
  piece.mask = shard.mask_bytes();
  if (!piece.mask) piece.document_starts = shard.document_starts();
  TokenSource source;
  source.append(std::move(piece));
  return source;
}

TokenSource TokenSource::from_documents(std::span<const std::string_view> documents, std::string name,
                                        const Tokenizer& tokenizer, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (std::string_view document : documents) {
    const std::vector<int32_t> encoded = tokenizer.encode(document);
    ids.insert(ids.end(), encoded.begin(), encoded.end());
    if (tokenizer.eos()) ids.push_back(*tokenizer.eos());
  }
  return from_ids(std::move(ids), std::move(name), vocab_size);
}

TokenSource TokenSource::from_text_files(std::span<const std::string> paths, const Tokenizer& tokenizer,
                                         int64_t vocab_size, bool skip_bad) {
  std::vector<int32_t> ids;
  int64_t skipped = 0;
  std::string first_error;
  for (const std::string& path : paths) {
    const std::unique_ptr<RecordReader> records = text_records(open_byte_stream(path));
    Record record;
    Before before = Before::Nothing;  // a long text comes in several records
    while (true) {
      try {
        if (!records->next(record)) break;
      } catch (const RecordError& error) {
        if (!skip_bad) throw;
        if (skipped++ == 0) first_error = error.what();
        continue;
      }
      const std::vector<int32_t> encoded =
          tokenizer.encode_after(before, record.value["text"].get_ref<const std::string&>());
      before = record.is_end ? Before::Nothing : Before::Text;
      ids.insert(ids.end(), encoded.begin(), encoded.end());
      if (record.is_end && tokenizer.eos()) ids.push_back(*tokenizer.eos());
    }
  }
  if (skipped > 0) log_warning("data: {} texts were skipped; the first: {}", skipped, first_error);
  std::string name = paths.empty() ? "no files" : paths[0];
  if (paths.size() > 1) name += fmt::format(" and {} more", paths.size() - 1);
  return from_ids(std::move(ids), std::move(name), vocab_size);
}

template <class Out, class Function>
void TokenSource::for_each_part(int64_t first, std::span<Out> out, Function&& part) const {
  assert(first >= 0 && first + static_cast<int64_t>(out.size()) <= size_);
  if (out.empty()) return;
  auto index =
      static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), first) - starts_.begin() - 1);
  for (; !out.empty(); ++index) {
    const Piece& piece = pieces_[index];
    const int64_t place = first - starts_[index];
    const auto count = std::min(out.size(), static_cast<size_t>(piece.count - place));
    part(piece, place, out.first(count));
    out = out.subspan(count);
    first += static_cast<int64_t>(count);
  }
}

void TokenSource::read(int64_t first, std::span<int32_t> out) const {
  for_each_part(first, out, [](const Piece& piece, int64_t place, std::span<int32_t> ids) {
    const int64_t offset = place * piece.width;
    check_tokens_again(piece.data + offset, piece.width, std::ssize(ids), piece.vocab_size, piece.name,
                       piece.data_offset + offset, piece.first + place);
    widen_token_bytes(piece.data, piece.width, place, ids);
  });
}

void TokenSource::read_targets(int64_t first, std::span<uint8_t> out) const {
  for_each_part(first, out, [](const Piece& piece, int64_t place, std::span<uint8_t> bits) {
    const int64_t begin = piece.first + place, end = begin + static_cast<int64_t>(bits.size());
    read_mask_bits(piece.mask, begin, bits);
    const auto starts = piece.document_starts;
    for (auto at = std::lower_bound(starts.begin(), starts.end(), static_cast<uint64_t>(begin));
         at != starts.end() && std::cmp_less(*at, end); ++at) {
      require(
          std::cmp_greater_equal(*at, begin),
          "[shard] {}: a document starts at token {}, after one that starts at {} or later; the index of documents is "
          "damaged, restore the file",
          piece.name, *at, begin);
      bits[static_cast<size_t>(static_cast<int64_t>(*at) - begin)] = 0;
    }
  });
}

std::pair<TokenSource, TokenSource> TokenSource::split_tail(double share) const {
  require(share >= 0 && share <= 1, "[dataset] share {} to hold out, expected 0 to 1", share);
  TokenSource front, tail;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    // Makes up for what was lost by rounding in earlier pieces.
    const auto so_far = static_cast<int64_t>(static_cast<double>(starts_[i] + piece.count) * share);
    const int64_t held_out = std::min(so_far - tail.size(), piece.count);
    Piece first = piece, last = piece;
    first.count = piece.count - held_out;
    last.count = held_out;
    last.data += first.count * piece.width;
    last.data_offset += first.count * piece.width;
    last.first += first.count;
    front.append(std::move(first));
    tail.append(std::move(last));
  }
  return {front, tail};
}

uint64_t TokenSource::hash() const {
  Hash64 hash;
  for (const Piece& piece : pieces_) hash.add(piece.first).add(piece.count).add(piece.checksum);
  return hash.value();
}

std::string TokenSource::describe() const {
  if (pieces_.empty()) return "nothing";
  if (pieces_.size() == 1) return pieces_[0].name;
  return fmt::format("{} and {} more", pieces_[0].name, pieces_.size() - 1);
}

}  // namespace octet
