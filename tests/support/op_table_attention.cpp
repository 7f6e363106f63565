#include <algorithm>

#include "support/op_table_detail.h"

// Rope, the norm of heads and attention.
namespace octet::test {

OpCase rope_case(DType dtype, int64_t rows, AttentionShape shape) {
  OpCase op = start("rope", dtype, {rows, shape.heads, shape.kv_heads, shape.head_dim});
  const int64_t width = shape.qkv_width(), depth = shape.head_dim, half = depth / 2, positions = 11;
  op.needs.tokens = rows;
  op.needs.width = width;
  std::vector<double> table(at(positions * depth));
  for (int64_t p = 0; p < positions; ++p) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(p) * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
      table[at(p * depth + i)] = round_to(DType::F32, std::cos(angle));
      table[at(p * depth + half + i)] = round_to(DType::F32, std::sin(angle));
    }
  }
  op.add_gradient_input("qkv", dtype, {rows, width}, normal(rows * width, dtype, 1), false);
  op.add_input("positions", DType::I32, {rows}, fixed(ids(rows, positions, 2)));
  op.add_input("table", DType::F32, {positions, depth}, fixed(table));
  op.add_output("qkv_rotated", dtype, {rows, width});
  op.bytes = op.backward_bytes = 2 * bytes_for(dtype, rows * (shape.heads + shape.kv_heads) * depth);
  op.prepare = [](Device& device, Args& args) { device.copy(args.out[0], args.in[0]); };
  op.forward = [=](Device& device, Args& args) {
    device.ops().rope_forward(args.out[0], args.in[1], args.in[2], shape);
  };
  op.prepare_backward = [](Device& device, Args& args) { device.copy(args.grad[0], args.upstream[0]); };
  op.backward = [=](Device& device, Args& args) {
    device.ops().rope_backward(operand(args.grad[0]), args.in[1], args.in[2], shape);
  };
  op.reference = [=](const Arrays& in) {
    std::vector<double> out = in[0];
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t line = static_cast<int64_t>(in[1][at(r)]) * depth;
      for (int64_t head = 0; head < shape.heads + shape.kv_heads; ++head) {
        for (int64_t i = 0; i < half; ++i) {
          const size_t low = at(r * width + head * depth + i), high = low + at(half);
          const double c = in[2][at(line + i)], s = in[2][at(line + half + i)];
          out[low] = in[0][low] * c - in[0][high] * s;
          out[high] = in[0][high] * c + in[0][low] * s;
        }
      }
    }
    return Arrays{out};
  };
  return op;
}

OpCase qk_norm_case(DType dtype, int64_t rows, AttentionShape shape) {
  OpCase op = start("qk_norm", dtype, {rows, shape.heads, shape.kv_heads, shape.head_dim});
  const int64_t width = shape.qkv_width(), depth = shape.head_dim, heads = shape.heads + shape.kv_heads;
  const float epsilon = 1e-3f;  // large enough to show
  op.needs.tokens = rows;
  op.needs.width = width;
  op.needs.attention = shape;
  op.add_gradient_input("qkv", dtype, {rows, width}, normal(rows * width, dtype, 1), false);
  op.add_gradient_input("gain_q", dtype, {depth}, normal(depth, dtype, 2, 0.2, 1.0), true);
  op.add_gradient_input("gain_k", dtype, {depth}, normal(depth, dtype, 3, 0.2, 1.0), true);
  op.add_output("qkv_normed", dtype, {rows, width});
  op.add_output("raw", dtype, {rows, heads * depth}, false);
  op.add_output("inv", DType::F32, {rows, heads}, false);
  op.bytes = bytes_for(dtype, 3 * rows * heads * depth);
  op.backward_bytes = bytes_for(dtype, 3 * rows * heads * depth);
  op.prepare = [](Device& device, Args& args) { device.copy(args.out[0], args.in[0]); };
  op.forward = [=](Device& device, Args& args) {
    device.ops().qk_norm_forward(args.out[0], args.out[1], args.out[2], args.in[1], args.in[2], epsilon,
                                 shape);
  };
  op.prepare_backward = [](Device& device, Args& args) { device.copy(args.grad[0], args.upstream[0]); };
  op.backward = [=](Device& device, Args& args) {
    device.ops().qk_norm_backward(operand(args.grad[0]), args.grad[1], args.grad[2], args.out[1], args.out[2],
                                  args.in[1], args.in[2], shape);
  };
  op.reference = [=](const Arrays& in) {
    std::vector<double> out = in[0], raw, inv;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t head = 0; head < heads; ++head) {
        const std::vector<double>& gain = in[head < shape.heads ? 1 : 2];
        double squares = 0;
        for (int64_t c = 0; c < depth; ++c) {
          const double x = in[0][at(r * width + head * depth + c)];
          squares += x * x;
          raw.push_back(x);
        }
        inv.push_back(1.0 / std::sqrt(squares / static_cast<double>(depth) + static_cast<double>(epsilon)));
        for (int64_t c = 0; c < depth; ++c) out[at(r * width + head * depth + c)] *= inv.back() * gain[at(c)];
      }
    }
    return Arrays{out, raw, inv};
  };
  return op;
}

OpCase attention_case(DType dtype, AttentionShape shape, std::vector<int64_t> lengths, std::string label) {
  int64_t tokens = 0, longest = 0;
  std::vector<double> starts = {0};
  for (const int64_t length : lengths) {
    tokens += length;
    longest = std::max(longest, length);
    starts.push_back(static_cast<double>(tokens));
  }
  shape.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  OpCase op = start("attention_" + label, dtype, {tokens, shape.heads, shape.kv_heads, shape.head_dim});
  // A gradient is the difference of terms that were rounded before: with few keys in sight the norm sees it.
  if (dtype == DType::BF16) op.tolerance = Tolerance{4e-3, 5e-2};
  const int64_t width = shape.qkv_width(), depth = shape.head_dim;
  op.needs.tokens = tokens;
  op.needs.attention = shape;
  op.needs.max_length = longest;
  for (const int64_t length : lengths)
    op.flops += 2.0 * static_cast<double>(length * length * shape.out_width());
  op.backward_flops = 2.5 * op.flops;  // five products for two, half of each masked
  op.add_gradient_input("qkv", dtype, {tokens, width}, normal(tokens * width, dtype, 1), false);
  starts.resize(starts.size() + 2, -1.0);  // capacity beyond the count
  op.add_input("starts", DType::I32, {static_cast<int64_t>(starts.size())}, fixed(starts));
  op.add_output("out", dtype, {tokens, shape.out_width()});
  op.add_output("lse", DType::F32, {shape.heads, tokens}, false);
  const auto count = static_cast<int64_t>(lengths.size());
  op.forward = [=](Device& device, Args& args) {
    device.ops().attention_forward(operand(args.out[0]), args.out[1], args.in[0],
                                   {args.in[1], count, longest}, shape);
  };
  op.backward = [=](Device& device, Args& args) {
    device.ops().attention_backward(args.grad[0], args.upstream[0], args.in[0], args.out[0], args.out[1],
                                    {args.in[1], count, longest}, shape);
  };
  op.reference = [=](const Arrays& in) {
    std::vector<double> out(at(tokens * shape.out_width())), lse(at(shape.heads * tokens));
    for (int64_t head = 0; head < shape.heads; ++head) {
      const int64_t kv_head = head / (shape.heads / shape.kv_heads);
      const auto value = [&](int64_t token, int64_t column, int64_t c) {
        return in[0][at(token * width + column * depth + c)];
      };
      for (int64_t document = 0; document < count; ++document) {
        const auto begin = static_cast<int64_t>(starts[at(document)]);
        for (int64_t i = begin; i < static_cast<int64_t>(starts[at(document + 1)]); ++i) {
          std::vector<double> scores;
          const int64_t oldest = shape.window > 0 ? std::max(begin, i - shape.window + 1) : begin;
          for (int64_t j = oldest; j <= i; ++j) {
            double score = 0;
            for (int64_t c = 0; c < depth; ++c)
              score += value(i, head, c) * value(j, shape.heads + kv_head, c);
            scores.push_back(score * static_cast<double>(shape.scale));
          }
          const double largest = *std::max_element(scores.begin(), scores.end());
          double total = 0;
          for (double& score : scores) total += score = std::exp(score - largest);
          lse[at(head * tokens + i)] = largest + std::log(total);
          for (int64_t c = 0; c < depth; ++c) {
            double sum = 0;
            for (int64_t j = oldest; j <= i; ++j) {
              sum += scores[at(j - oldest)] / total * value(j, shape.heads + shape.kv_heads + kv_head, c);
            }
            out[at(i * shape.out_width() + head * depth + c)] = sum;
          }
        }
      }
    }
    return Arrays{out, lse};
  };
  return op;
}

OpCase decode_case(DType dtype, AttentionShape shape, std::vector<int64_t> lengths, int64_t added,
                   std::string label) {
  const auto sequences = static_cast<int64_t>(lengths.size());
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end()) + added, capacity = longest + 3;
  const int64_t tokens = sequences * added + 1, depth = shape.head_dim, width = shape.qkv_width();
  const int64_t cache_width = shape.kv_heads * depth, cache_size = sequences * capacity * cache_width;
  shape.scale = 1.0f / std::sqrt(static_cast<float>(depth));
  std::vector<double> sequence, position;
  for (int64_t s = 0; s < sequences; ++s) {
    for (int64_t i = 0; i < added; ++i) {
      sequence.push_back(static_cast<double>(s));
      position.push_back(static_cast<double>(lengths[at(s)] + i));
    }
    if (s == 0) sequence.push_back(-1.0), position.push_back(0.0);
  }
  OpCase op = start("decode_" + label, dtype, {tokens, shape.heads, shape.kv_heads, depth, longest});
  op.needs.tokens = tokens;
  op.needs.attention = shape;
  op.needs.max_length = capacity;
  op.needs.decode = true;
  op.flops = 4.0 * static_cast<double>(tokens * longest * shape.out_width());
  op.add_input("qkv", dtype, {tokens, width}, normal(tokens * width, dtype, 1));
  op.add_input("keys", dtype, {sequences, capacity, cache_width}, normal(cache_size, dtype, 2));
  op.add_input("values", dtype, {sequences, capacity, cache_width}, normal(cache_size, dtype, 3));
  op.add_input("sequences", DType::I32, {tokens}, fixed(sequence));
  op.add_input("positions", DType::I32, {tokens}, fixed(position));
  op.add_output("out", dtype, {tokens, shape.out_width()}, false);
  op.add_output("keys", dtype, {sequences, capacity, cache_width}, false);
  op.add_output("values", dtype, {sequences, capacity, cache_width}, false);
  op.prepare = [](Device& device, Args& args) {
    device.copy(args.out[1], args.in[1]);
    device.copy(args.out[2], args.in[2]);
  };
  op.forward = [=](Device& device, Args& args) {
    device.ops().attention_decode(args.out[0], {args.out[1], args.out[2]}, args.in[0], args.in[3], args.in[4],
                                  longest, shape);
  };
  op.reference = [=](const Arrays& in) {
    std::vector<double> out(at(tokens * shape.out_width())), keys = in[1], values = in[2];
    const auto place = [&](int64_t n, int64_t p) {
      return (static_cast<int64_t>(sequence[at(n)]) * capacity + p) * cache_width;
    };
    for (int64_t n = 0; n < tokens; ++n) {
      if (sequence[at(n)] < 0) continue;
      for (int64_t c = 0; c < cache_width; ++c) {
        const size_t to = at(place(n, static_cast<int64_t>(position[at(n)])) + c);
        keys[to] = in[0][at(n * width + shape.heads * depth + c)];
        values[to] = in[0][at(n * width + shape.heads * depth + cache_width + c)];
      }
    }
    for (int64_t n = 0; n < tokens; ++n) {
      if (sequence[at(n)] < 0) continue;
      for (int64_t head = 0; head < shape.heads; ++head) {
        const int64_t column = head / (shape.heads / shape.kv_heads) * depth;
        std::vector<double> weights;
        double total = 0;
        const auto last = static_cast<int64_t>(position[at(n)]);
        const int64_t oldest = shape.window > 0 ? std::max<int64_t>(0, last - shape.window + 1) : 0;
        for (int64_t p = oldest; p <= last; ++p) {
          double score = 0;
          for (int64_t c = 0; c < depth; ++c)
            score += in[0][at(n * width + head * depth + c)] * keys[at(place(n, p) + column + c)];
          weights.push_back(std::exp(score * static_cast<double>(shape.scale)));
          total += weights.back();
        }
        for (size_t p = 0; p < weights.size(); ++p) {
          for (int64_t c = 0; c < depth; ++c) {
            out[at(n * shape.out_width() + head * depth + c)] +=
                weights[p] / total * values[at(place(n, oldest + static_cast<int64_t>(p)) + column + c)];
          }
        }
      }
    }
    return Arrays{out, keys, values};
  };
  return op;
}

// ---- which cases there are ----

void add_attention(std::vector<OpCase>& table, DType dtype) {
  table.push_back(rope_case(dtype, 17, {.heads = 3, .kv_heads = 1, .head_dim = 16}));
  table.push_back(rope_case(dtype, 3, {.heads = 2, .kv_heads = 2, .head_dim = 64}));
  table.push_back(qk_norm_case(dtype, 1, {.heads = 2, .kv_heads = 2, .head_dim = 6}));
  table.push_back(qk_norm_case(dtype, 17, {.heads = 3, .kv_heads = 1, .head_dim = 48}));
  table.push_back(large(qk_norm_case(dtype, 150, {.heads = 8, .kv_heads = 2, .head_dim = 128})));
  table.push_back(large(qk_norm_case(dtype, 40, {.heads = 2, .kv_heads = 1, .head_dim = 256})));
  table.push_back(attention_case(dtype, {.heads = 2, .kv_heads = 2, .head_dim = 16}, {17}, "one"));
  table.push_back(
      attention_case(dtype, {.heads = 4, .kv_heads = 2, .head_dim = 16}, {1, 9, 1, 23, 3}, "packed"));
  table.push_back(attention_case(dtype, {.heads = 3, .kv_heads = 1, .head_dim = 64}, {5, 70}, "tiles"));
  table.push_back(attention_case(dtype, {.heads = 2, .kv_heads = 1, .head_dim = 4}, {3, 270}, "long"));
  table.push_back(
      large(attention_case(dtype, {.heads = 4, .kv_heads = 2, .head_dim = 64}, {150, 1, 90}, "packed")));
  table.push_back(
      attention_case(dtype, {.heads = 2, .kv_heads = 2, .head_dim = 16, .window = 1}, {9}, "window_1"));
  table.push_back(attention_case(dtype, {.heads = 4, .kv_heads = 2, .head_dim = 16, .window = 5},
                                 {1, 9, 1, 23, 3}, "window_packed"));
  table.push_back(attention_case(dtype, {.heads = 3, .kv_heads = 1, .head_dim = 64, .window = 33}, {5, 70},
                                 "window_tiles"));
  table.push_back(attention_case(dtype, {.heads = 2, .kv_heads = 1, .head_dim = 4, .window = 20}, {3, 350},
                                 "window_long"));
  table.push_back(large(attention_case(dtype, {.heads = 4, .kv_heads = 2, .head_dim = 64, .window = 70},
                                       {350, 1, 70, 90}, "window_packed")));
  table.push_back(large(attention_case(dtype, {.heads = 2, .kv_heads = 1, .head_dim = 128, .window = 64},
                                       {384}, "window_one")));
  table.push_back(decode_case(dtype, {.heads = 2, .kv_heads = 2, .head_dim = 16}, {0}, 1, "first"));
  table.push_back(
      decode_case(dtype, {.heads = 4, .kv_heads = 2, .head_dim = 24, .window = 6}, {40, 0, 7}, 2, "window"));
  table.push_back(large(decode_case(dtype, {.heads = 8, .kv_heads = 2, .head_dim = 128, .window = 100},
                                    {900, 33}, 1, "long_window")));
  table.push_back(decode_case(dtype, {.heads = 4, .kv_heads = 2, .head_dim = 24}, {40, 0, 7}, 1, "batch"));
  table.push_back(decode_case(dtype, {.heads = 9, .kv_heads = 1, .head_dim = 64}, {5, 70}, 17, "chunk"));
  table.push_back(
      large(decode_case(dtype, {.heads = 8, .kv_heads = 2, .head_dim = 128}, {900, 33}, 1, "long")));
}

}  // namespace octet::test
