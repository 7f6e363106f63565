#pragma once

#include <cstdint>

#include "data/loading/batch.h"

namespace octet {

// FNV-1a over all that a batch holds.
inline uint64_t hash_of(const Batch& batch) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&](int64_t value) { hash = (hash ^ static_cast<uint64_t>(value)) * 0x100000001b3; };
  for (int64_t value : {batch.rows, batch.length, batch.target_count}) add(value);
  for (const auto* values : {&batch.tokens, &batch.targets, &batch.positions, &batch.document_starts}) {
    for (int32_t value : *values) add(value);
  }
  return hash;
}

}  // namespace octet
