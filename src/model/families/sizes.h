#pragma once

#include "model/family.h"

namespace octet {

struct Sizes {
  int64_t layers, width, heads, kv_heads, head_dim, ffn;
};

// A model of the family with these sizes; the caller sets the vocabulary.
inline ModelConfig with_sizes(const FamilySpec& family, std::string name, const Sizes& sizes) {
  ModelConfig c = family.start();
  c.name = std::move(name);
  c.layers = sizes.layers;
  c.width = sizes.width;
  c.heads = sizes.heads;
  c.kv_heads = sizes.kv_heads;
  c.head_dim = sizes.head_dim;
  c.ffn = sizes.ffn;
  return c;
}

// The byte tokenizer's 256 bytes and its end-of-text token.
constexpr int64_t kBytesVocab = 257;

// Small enough to be trained on a CPU, with the features of the family.
inline ModelConfig with_tiny_sizes(const FamilySpec& family, std::string name, int64_t kv_heads,
                                   int64_t ffn) {
  ModelConfig c = with_sizes(family, std::move(name), {4, 128, 4, kv_heads, 32, ffn});
  c.vocab = kBytesVocab;
  c.max_positions = 1024;
  c.rope_theta = 10000;
  c.tied_head = true;
  return c;
}

}  // namespace octet
