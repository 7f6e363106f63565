#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/philox.h"
#include "data/shards/document_source.h"

namespace octet {

struct StringSink : Sink {
  using Sink::append;
  void append(std::span<const std::byte> bytes) override {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::string text;
};

inline std::string shard_bytes(const std::vector<Document>& documents, const ShardKind& kind) {
  StringSink sink;
  ShardWriter writer(sink, kind);
  for (const Document& document : documents) writer.append(document);
  writer.finish();
  return sink.text;
}

inline Shard parse_shard(const std::string& bytes, const std::string& name = "test.octet",
                         ShardCheck check = ShardCheck::Whole) {
  // Words of eight bytes, as a mapping is aligned.
  auto copy = std::make_shared<std::vector<uint64_t>>((bytes.size() + 7) / 8);
  if (!bytes.empty()) std::memcpy(copy->data(), bytes.data(), bytes.size());
  const auto view = std::as_bytes(std::span(*copy)).first(bytes.size());
  return Shard::parse(std::move(copy), view, name, check);
}

inline std::vector<Document> documents_of(const Shard& shard) {
  std::vector<Document> documents;
  for (int64_t i = 0; i < shard.counts().documents; ++i) {
    Document document;
    document.tokens.resize(static_cast<size_t>(shard.document_length(i)));
    document.is_target.resize(document.tokens.size());
    shard.read(shard.document_start(i), document.tokens);
    shard.read_targets(shard.document_start(i), document.is_target);
    documents.push_back(std::move(document));
  }
  return documents;
}

// A document of `length` tokens first, first + 1, ...; targets from `targets_from` on.
inline Document counting_document(int32_t first, int32_t length, int32_t targets_from = 0) {
  Document document;
  for (int32_t i = 0; i < length; ++i) {
    document.tokens.push_back(first + i);
    document.is_target.push_back(i >= targets_from);
  }
  return document;
}

// `count` documents of 2 to `longest` tokens, each token told from every other; every third has a masked front.
inline std::vector<Document> many_documents(int count, int64_t longest, uint64_t seed = 1) {
  const Philox random(seed);
  std::vector<Document> documents;
  int32_t next = 0;
  for (int i = 0; i < count; ++i) {
    const auto length =
        static_cast<int32_t>(2 + random.below(static_cast<uint64_t>(i), static_cast<uint64_t>(longest) - 1));
    documents.push_back(counting_document(next, length, i % 3 == 0 ? length / 2 : 0));
    next += length;
  }
  return documents;
}

inline DocumentSource source_of(const std::vector<Document>& documents, int shards = 1,
                                int64_t vocab = 1 << 20) {
  std::vector<Shard> parts;
  const size_t per_shard = (documents.size() + static_cast<size_t>(shards) - 1) / static_cast<size_t>(shards);
  for (size_t begin = 0; begin < documents.size(); begin += per_shard) {
    const auto first = documents.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last =
        documents.begin() + static_cast<std::ptrdiff_t>(std::min(begin + per_shard, documents.size()));
    parts.push_back(parse_shard(shard_bytes({first, last}, {vocab, 7})));
  }
  return DocumentSource(std::move(parts), vocab);
}

}  // namespace octet
