#include "data/shards/document_source.h"

#include <algorithm>
#include <cassert>

#include "base/error.h"
#include "data/shards/token_bytes.h"

namespace octet {

DocumentSource::DocumentSource(std::vector<Shard> shards, int64_t vocab_size) : shards_(std::move(shards)) {
  for (const Shard& shard : shards_) {
    const ShardKind& kind = shard.kind();
    require(kind.tokenizer_hash == shards_[0].kind().tokenizer_hash,
            "[dataset] {} was made with tokenizer {:016x}, {} with {:016x}; expected one tokenizer",
            shard.name(), kind.tokenizer_hash, shards_[0].name(), shards_[0].kind().tokenizer_hash);
    // A shard's own vocabulary was checked when it was opened.
    if (kind.vocab_size > vocab_size) {
      check_token_bytes(shard.token_bytes(), kind.token_width(), shard.counts().tokens, vocab_size,
                        shard.name(), shard.token_bytes_offset());
    }
    first_documents_.push_back(counts_.documents);
    counts_ += shard.counts();
  }
}

DocumentSource::Place DocumentSource::find(int64_t document) const {
  assert(document >= 0 && document < counts_.documents);
  const auto after = std::upper_bound(first_documents_.begin(), first_documents_.end(), document);
  const auto index = static_cast<size_t>(after - first_documents_.begin() - 1);
  return {&shards_[index], document - first_documents_[index]};
}

void DocumentSource::read(int64_t document, int64_t first, std::span<int32_t> tokens,
                          std::span<uint8_t> is_target) const {
  const Place place = find(document);
  assert(first >= 0 &&
         first + static_cast<int64_t>(tokens.size()) <= place.shard->document_length(place.document));
  const int64_t start = place.shard->document_start(place.document) + first;
  place.shard->read(start, tokens);
  place.shard->read_targets(start, is_target);
}

bool DocumentSource::any_target(int64_t document, int64_t first, int64_t count) const {
  const Place place = find(document);
  return place.shard->any_target(place.shard->document_start(place.document) + first, count);
}

}  // namespace octet
