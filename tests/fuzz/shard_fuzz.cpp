// Whatever the bytes: as a shard they give an Error, or documents that a shard written from them holds as well and that the
// packing loader hands out whole.

#include <cstring>
#include <optional>

#include "base/crc32c.h"
#include "base/error.h"
#include "data/document_support.h"
#include "data/loading/packed_loader.h"
#include "fuzz_support.h"

namespace {

using namespace octet;

void check_loader(const Shard& shard) {
  const DocumentSource source({shard}, shard.kind().vocab_size);
  for (const Packing packing : {Packing::BestFit, Packing::None}) {
    if (shard.counts().targets == 0) return;
    PackedLoader loader(source, {.rows = 1, .length = 7, .packing = packing});
    int64_t targets = 0;
    Batch batch;
    for (int64_t i = 0; i < loader.samples_per_epoch(); ++i) {
      loader.next(batch);
      targets += batch.target_count;
      for (const int32_t id : batch.tokens) expect(id >= 0 && id < shard.kind().vocab_size);
    }
    expect(targets == shard.counts().targets);
  }
}

void check_written(const Shard& shard) {
  const std::vector<Document> documents = documents_of(shard);
  const Shard again = parse_shard(shard_bytes(documents, shard.kind()));
  expect(again.counts() == shard.counts() && again.kind().vocab_size == shard.kind().vocab_size);
  expect(documents_of(again) == documents);
}

void check(const std::string& bytes) {
  std::optional<Shard> shard;
  try {
    shard = parse_shard(bytes, "fuzz");
  } catch (const Error&) {
    return;
  }
  must_succeed([&] {
    check_written(*shard);
    check_loader(*shard);
  });
}

// Magic numbers and checksums made right, so that the rules behind them are reached.
std::string sealed_shard(std::string bytes) {
  constexpr size_t kHeader = 64, kTrailer = 64;
  if (bytes.size() < kHeader + kTrailer) bytes.resize(kHeader + kTrailer);
  bytes.resize(bytes.size() / 8 * 8);
  const size_t trailer = bytes.size() - kTrailer;
  const auto put = [&](size_t offset, auto value) {
    std::memcpy(bytes.data() + offset, &value, sizeof value);
  };
  const auto get = [&](size_t offset, auto value) {
    std::memcpy(&value, bytes.data() + offset, sizeof value);
    return value;
  };
  bytes.replace(0, 8, "OCTETSHD");
  bytes.replace(bytes.size() - 8, 8, "OCTETEND");
  put(8, uint32_t{1});
  put(12, get(24, uint64_t{}) <= 65536 ? uint32_t{2} : uint32_t{4});
  put(60, crc32c(bytes.data(), 60));
  const uint64_t tokens = get(trailer, uint64_t{}), documents = get(trailer + 8, uint64_t{});
  const uint64_t limit = bytes.size();
  if (tokens <= limit && documents <= limit) {
    const size_t index = kHeader + (tokens * get(12, uint32_t{}) + 7) / 8 * 8,
                 mask = index + (documents + 1) * 8;
    if (mask <= trailer) {
      put(trailer + 28, crc32c(bytes.data() + kHeader, index - kHeader));
      put(trailer + 32, crc32c(bytes.data() + index, mask - index));
      put(trailer + 36, crc32c(bytes.data() + mask, trailer - mask));
    }
  }
  put(trailer + 52, crc32c(bytes.data() + trailer, 52));
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  check(bytes);
  check(sealed_shard(bytes));
  // A shard that is one, with some of its bytes replaced and the checksums made right: deeper than chance would get.
  static const std::string whole =
      shard_bytes({counting_document(1, 9), counting_document(3, 30, 12), counting_document(0, 2)}, {40, 5});
  std::string changed = whole;
  for (size_t i = 0; i + 1 < size; i += 2) changed[data[i] % changed.size()] = static_cast<char>(data[i + 1]);
  check(sealed_shard(changed));
  return 0;
}
