#include "data/shards/shard.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>

#include "base/checked.h"
#include "base/crc32c.h"
#include "base/hash.h"
#include "data/shards/token_bytes.h"

namespace octet {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are read in place and are little-endian");

constexpr std::array<char, 8> kMagic = {'O', 'C', 'T', 'E', 'T', 'S', 'H', 'D'};
constexpr std::array<char, 8> kEndMagic = {'O', 'C', 'T', 'E', 'T', 'E', 'N', 'D'};
constexpr uint32_t kVersion = 1;
constexpr int64_t kMaxVocab = int64_t{1} << 31;  // ids are int32 in a batch
constexpr size_t kWriteSize = size_t{1} << 20;

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t token_width = 0;
  uint64_t tokenizer_hash = 0;
  uint64_t vocab_size = 0;
  std::array<uint8_t, 28> zero{};
  uint32_t crc = 0;  // of the bytes before it
};
struct Trailer {
  uint64_t tokens = 0;
  uint64_t documents = 0;
  uint64_t targets = 0;
  uint32_t has_mask = 0;
  uint32_t tokens_crc = 0;  // of the sections with their padding
  uint32_t index_crc = 0;
  uint32_t mask_crc = 0;  // 0 without a mask
  std::array<uint8_t, 12> zero{};
  uint32_t crc = 0;  // of the bytes before it
  std::array<char, 8> magic = kEndMagic;
};
static_assert(sizeof(Header) == 64 && sizeof(Trailer) == 64);

template <class T>
uint32_t crc_of(const T& record) {
  return crc32c(&record, offsetof(T, crc));
}

template <class T>
T load(std::span<const std::byte> bytes, int64_t offset) {
  T record;
  std::memcpy(&record, bytes.data() + offset, sizeof(T));
  return record;
}

// Sizes come from the file, but each was compared with the file's size, so nothing overflows.
struct Layout {
  int64_t tokens, index, mask, trailer;  // where they begin

  Layout(const Trailer& t, int width) {
    tokens = sizeof(Header);
    index = tokens + round_up(static_cast<int64_t>(t.tokens) * width, 8);
    mask = index + (static_cast<int64_t>(t.documents) + 1) * 8;
    trailer = mask + (t.has_mask != 0 ? round_up(div_up(static_cast<int64_t>(t.tokens), 8), 8) : 0);
  }
};

void check_header(const Header& header, const std::string& name) {
  require(header.magic == kMagic,
          "[shard] {}: bad magic at byte offset 0, expected \"OCTETSHD\"; not an octet shard", name);
  require(header.crc == crc_of(header),
          "[shard] {}: the header (byte offset 0) does not match its checksum at {}", name,
          offsetof(Header, crc));
  require(header.version == kVersion, "[shard] {}: version {} at byte offset 8, expected {}", name,
          header.version, kVersion);
  require(header.vocab_size > 0 && header.vocab_size <= static_cast<uint64_t>(kMaxVocab),
          "[shard] {}: vocabulary of {} at byte offset 24, expected 1 to {}", name, header.vocab_size,
          kMaxVocab);
  const ShardKind kind{static_cast<int64_t>(header.vocab_size), 0};
  require(header.token_width == static_cast<uint32_t>(kind.token_width()),
          "[shard] {}: ids of {} bytes at byte offset 12, expected {} for a vocabulary of {}", name,
          header.token_width, kind.token_width(), header.vocab_size);
}

Trailer check_trailer(std::span<const std::byte> bytes, const std::string& name, int width) {
  const auto size = static_cast<int64_t>(bytes.size());
  const int64_t offset = size - static_cast<int64_t>(sizeof(Trailer));
  const auto trailer = load<Trailer>(bytes, offset);
  require(trailer.magic == kEndMagic,
          "[shard] {}: truncated or damaged: no \"OCTETEND\" at byte offset {}, the end of {} bytes", name,
          size - 8, size);
  require(trailer.crc == crc_of(trailer),
          "[shard] {}: the trailer (byte offset {}) does not match its checksum", name, offset);
  require(trailer.has_mask <= 1, "[shard] {}: mask kind {} at byte offset {}, expected 0 or 1", name,
          trailer.has_mask, offset + static_cast<int64_t>(offsetof(Trailer, has_mask)));
  const auto limit = static_cast<uint64_t>(size);
  const bool sane = trailer.tokens <= limit && trailer.documents <= limit;
  require(sane && Layout(trailer, width).trailer == offset,
          "[shard] {}: size mismatch: {} tokens of {} bytes and {} documents{} (trailer at byte offset {}) "
          "do not make {} bytes",
          name, trailer.tokens, width, trailer.documents, trailer.has_mask != 0 ? " with a mask" : "", offset,
          size);
  return trailer;
}

void check_index(const uint64_t* starts, const Trailer& trailer, const std::string& name, int64_t offset) {
  const auto place = [&](uint64_t i) { return static_cast<uint64_t>(offset) + 8 * i; };
  require(starts[0] == 0, "[shard] {}: the first document starts at token {} (byte offset {}), expected 0",
          name, starts[0], place(0));
  for (uint64_t i = 0; i < trailer.documents; ++i) {
    if (starts[i + 1] > starts[i] && starts[i + 1] <= trailer.tokens) continue;
    fail(
        "[shard] {}: document {} goes from token {} to {} (byte offset {}), expected an end after its start "
        "and within {} tokens",
        name, i, starts[i], starts[i + 1], place(i + 1), trailer.tokens);
  }
  require(starts[trailer.documents] == trailer.tokens,
          "[shard] {}: the last document ends at token {} (byte offset {}), expected {}", name,
          starts[trailer.documents], place(trailer.documents), trailer.tokens);
}

bool bit(const std::byte* mask, int64_t place) {
  return (std::to_integer<unsigned>(mask[place / 8]) >> (place % 8) & 1u) != 0;
}

uint64_t count_bits(std::span<const std::byte> bytes) {
  uint64_t count = 0;
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    count += static_cast<uint64_t>(std::popcount(word));
  }
  return count;
}

void check_mask(std::span<const std::byte> mask, const uint64_t* starts, const Trailer& trailer,
                const std::string& name, int64_t offset) {
  for (uint64_t i = 0; i < trailer.documents; ++i) {
    if (!bit(mask.data(), static_cast<int64_t>(starts[i]))) continue;
    fail("[shard] {}: the first token of document {} is a target (byte offset {}), expected none", name, i,
         static_cast<uint64_t>(offset) + starts[i] / 8);
  }
  for (int64_t i = static_cast<int64_t>(trailer.tokens); i < static_cast<int64_t>(mask.size()) * 8; ++i) {
    require(!bit(mask.data(), i), "[shard] {}: a target after the last token (byte offset {})", name,
            offset + i / 8);
  }
  const uint64_t targets = count_bits(mask);
  require(targets == trailer.targets,
          "[shard] {}: {} targets in the mask (byte offset {}), the trailer says {}", name, targets, offset,
          trailer.targets);
}

}  // namespace

ShardCounts& ShardCounts::operator+=(const ShardCounts& other) {
  documents = checked_add(documents, other.documents);  // a manifest may say anything
  tokens = checked_add(tokens, other.tokens);
  targets = checked_add(targets, other.targets);
  return *this;
}

ShardWriter::ShardWriter(Sink& sink, const ShardKind& kind) : sink_(sink), kind_(kind), starts_{0} {
  require(kind.vocab_size > 0 && kind.vocab_size <= kMaxVocab, "[shard] vocabulary of {}, expected 1 to {}",
          kind.vocab_size, kMaxVocab);
  Header header;
  header.token_width = static_cast<uint32_t>(kind.token_width());
  header.tokenizer_hash = kind.tokenizer_hash;
  header.vocab_size = static_cast<uint64_t>(kind.vocab_size);
  header.crc = crc_of(header);
  write(std::as_bytes(std::span(&header, 1)));
}

void ShardWriter::write(std::span<const std::byte> bytes) {
  sink_.append(bytes);
  crc_ = crc32c(bytes.data(), bytes.size(), crc_);
  bytes_ += static_cast<int64_t>(bytes.size());
}

void ShardWriter::flush_tokens() {
  write(tokens_);
  tokens_crc_ = crc32c(tokens_.data(), tokens_.size(), tokens_crc_);
  tokens_bytes_ += static_cast<int64_t>(tokens_.size());
  tokens_.clear();
}

void ShardWriter::append(const Document& document) {
  assert(!document.tokens.empty() && document.tokens.size() == document.is_target.size());
  const auto width = static_cast<size_t>(kind_.token_width());
  mask_.resize(static_cast<size_t>(div_up(counts_.tokens + static_cast<int64_t>(document.tokens.size()), 8)));
  for (size_t i = 0; i < document.tokens.size(); ++i) {
    const int32_t id = document.tokens[i];
    if (id < 0 || id >= kind_.vocab_size) {
      fail("[shard] id {} at token {} of document {}, expected 0 to {}", id, i, counts_.documents,
           kind_.vocab_size - 1);
    }
    const auto* bytes = reinterpret_cast<const std::byte*>(&id);
    tokens_.insert(tokens_.end(), bytes, bytes + width);
    if (i > 0 && document.is_target[i] != 0) {
      const int64_t place = counts_.tokens + static_cast<int64_t>(i);
      mask_[static_cast<size_t>(place / 8)] |= std::byte{1} << (place % 8);
      ++counts_.targets;
    }
  }
  counts_.tokens += static_cast<int64_t>(document.tokens.size());
  ++counts_.documents;
  starts_.push_back(static_cast<uint64_t>(counts_.tokens));
  if (tokens_.size() >= kWriteSize) flush_tokens();
}

uint32_t ShardWriter::write_section(std::span<const std::byte> bytes) {
  constexpr std::array<std::byte, 8> kZeros{};
  const auto padding = std::span(kZeros).first((8 - bytes.size() % 8) % 8);
  write(bytes);
  write(padding);
  return crc32c(padding.data(), padding.size(), crc32c(bytes.data(), bytes.size()));
}

void ShardWriter::finish() {
  const int64_t whole = tokens_bytes_ + static_cast<int64_t>(tokens_.size());
  tokens_.resize(tokens_.size() + static_cast<size_t>(round_up(whole, 8) - whole));
  flush_tokens();
  Trailer trailer;
  trailer.tokens = static_cast<uint64_t>(counts_.tokens);
  trailer.documents = static_cast<uint64_t>(counts_.documents);
  trailer.targets = static_cast<uint64_t>(counts_.targets);
  trailer.has_mask = counts_.targets < counts_.tokens - counts_.documents;
  trailer.tokens_crc = tokens_crc_;
  trailer.index_crc = write_section(std::as_bytes(std::span(starts_)));
  if (trailer.has_mask != 0) trailer.mask_crc = write_section(mask_);
  trailer.crc = crc_of(trailer);
  write(std::as_bytes(std::span(&trailer, 1)));
}

Shard Shard::open(Env& env, const std::string& path, ShardCheck check) {
  auto file = std::make_shared<const MappedFile>(env.map(path));
  const auto bytes = file->bytes();
  try {
    return parse(std::move(file), bytes, path, check);
  } catch (const Error& error) {
    throw DamagedShard(error.what());
  }
}

Shard Shard::parse(std::shared_ptr<const void> owner, std::span<const std::byte> bytes,
                   const std::string& name, ShardCheck check) {
  const auto size = static_cast<int64_t>(bytes.size());
  require(size >= static_cast<int64_t>(kMagic.size()) && std::memcmp(bytes.data(), kMagic.data(), 8) == 0,
          "[shard] {}: bad magic at byte offset 0, expected \"OCTETSHD\"; not an octet shard", name);
  require(size >= static_cast<int64_t>(sizeof(Header) + sizeof(Trailer)) && size % 8 == 0,
          "[shard] {}: truncated: {} bytes, expected at least {} and a multiple of 8", name, size,
          sizeof(Header) + sizeof(Trailer));
  const auto header = load<Header>(bytes, 0);
  check_header(header, name);
  const int width = static_cast<int>(header.token_width);
  const Trailer trailer = check_trailer(bytes, name, width);
  const Layout layout(trailer, width);
  uint32_t file_checksum = crc32c(bytes.data(), sizeof(Header));
  const auto section = [&](const char* what, int64_t begin, int64_t end, uint32_t expected) {
    const auto part = bytes.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    file_checksum = crc32c_joined(file_checksum, expected, part.size());
    if (check == ShardCheck::Ends) return part;
    const uint32_t crc = crc32c(part.data(), part.size());
    require(
        crc == expected,
        "[shard] {}: {} (byte offset {}, {} bytes) have checksum {:08x}, expected {:08x}: the file was damaged",
        name, what, begin, part.size(), crc, expected);
    return part;
  };
  const auto tokens = section("the tokens", layout.tokens, layout.index, trailer.tokens_crc);
  const auto index = section("the document starts", layout.index, layout.mask, trailer.index_crc);
  const auto mask =
      section("the targets", layout.mask, layout.trailer, trailer.has_mask != 0 ? trailer.mask_crc : 0);

  Shard shard;
  shard.owner_ = std::move(owner);
  shard.kind_ = {static_cast<int64_t>(header.vocab_size), header.tokenizer_hash};
  shard.counts_ = {static_cast<int64_t>(trailer.documents), static_cast<int64_t>(trailer.tokens),
                   static_cast<int64_t>(trailer.targets)};
  shard.name_ = name;
  shard.checksum_ = Hash64()
                        .add(trailer.tokens_crc)
                        .add(trailer.index_crc)
                        .add(trailer.has_mask != 0 ? trailer.mask_crc : 0)
                        .value();
  shard.file_checksum_ = crc32c(bytes.data() + layout.trailer, sizeof(Trailer), file_checksum);
  shard.tokens_ = tokens.data();
  shard.starts_ = reinterpret_cast<const uint64_t*>(index.data());
  if (trailer.has_mask != 0) {
    shard.mask_ = mask.data();
  } else {
    require(trailer.targets == trailer.tokens - trailer.documents,
            "[shard] {}: {} targets without a mask (trailer at byte offset {}), expected {}", name,
            trailer.targets, layout.trailer, trailer.tokens - trailer.documents);
  }
  if (check == ShardCheck::Ends) return shard;
  check_index(shard.starts_, trailer, name, layout.index);
  if (shard.mask_) check_mask(mask, shard.starts_, trailer, name, layout.mask);
  check_token_bytes(tokens.data(), width, shard.counts_.tokens, shard.kind_.vocab_size, name, layout.tokens);
  return shard;
}

int64_t Shard::token_bytes_offset() const {
  return sizeof(Header);
}

// Places come from the index, which may have been damaged since the shard was checked.
void Shard::require_tokens(int64_t first, int64_t count) const {
  require(
      first >= 0 && count >= 0 && first <= counts_.tokens - count,
      "[shard] {}: {} tokens from token {} on are wanted, but there are {}; the index of documents is damaged; {}",
      name_, count, first, counts_.tokens, kPrepareAgain);
}

void Shard::read(int64_t first, std::span<int32_t> out) const {
  require_tokens(first, std::ssize(out));
  const int width = kind_.token_width();
  check_tokens_again(tokens_ + first * width, width, std::ssize(out), kind_.vocab_size, name_,
                     token_bytes_offset() + first * width, first);
  widen_token_bytes(tokens_, width, first, out);
}

void Shard::read_targets(int64_t first, std::span<uint8_t> out) const {
  require_tokens(first, std::ssize(out));
  read_mask_bits(mask_, first, out);
}

bool Shard::any_target(int64_t first, int64_t count) const {
  if (!mask_) return count > 0;
  for (int64_t i = first; i < first + count; ++i) {
    if (i % 8 == 0 && i + 8 <= first + count && mask_[i / 8] == std::byte{0}) {
      i += 7;
    } else if (bit(mask_, i)) {
      return true;
    }
  }
  return false;
}

}  // namespace octet
