#include <chrono>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "cuda/fixture.h"

// Both attention engines against the CPU backend, which works from the same rounded inputs in fp32.

namespace octet::test {
namespace {

struct Case {
  const char* name;
  int64_t heads, kv_heads, depth;
  std::vector<int32_t> starts;
  int64_t tokens;  // starts.back() unless some lie outside the documents
};

Case packed(const char* name, int64_t heads, int64_t kv_heads, int64_t depth, std::vector<int32_t> lengths) {
  Case result{name, heads, kv_heads, depth, {0}, 0};
  for (const int32_t length : lengths) result.starts.push_back(result.starts.back() + length);
  result.tokens = result.starts.back();
  return result;
}

struct Results {
  std::vector<float> out, lse, dqkv;
};

std::vector<float> download(Side& side, const Tensor& x) {
  std::vector<float> values(static_cast<size_t>(x.numel()));
  if (x.dtype == DType::F32) {
    side->copy_to_host(values.data(), x);
  } else {
    std::vector<Bf16> rounded(values.size());
    side->copy_to_host(rounded.data(), x);
    for (size_t i = 0; i < values.size(); ++i) values[i] = to_float(rounded[i]);
  }
  return values;
}

Tensor upload_starts(Side& side, const std::vector<int32_t>& starts) {
  Tensor result = side.tensor(DType::I32, {static_cast<int64_t>(starts.size())});
  side->copy_to_device(result, starts.data());
  return result;
}

struct Inputs {
  Tensor qkv, dout;
  Documents documents;
  AttentionShape shape;
};

// Scores of a few units, so that the softmax is neither flat nor one-hot.
Inputs make_inputs(Side& side, const Case& attention, DType dtype) {
  Inputs inputs;
  inputs.shape = {attention.heads, attention.kv_heads, attention.depth,
                  1.0f / std::sqrt(static_cast<float>(attention.depth))};
  const int64_t qkv_size = attention.tokens * inputs.shape.qkv_width();
  inputs.qkv =
      side.upload(dtype, {attention.tokens, inputs.shape.qkv_width()}, normal_values(qkv_size, 1, 1.5f));
  const int64_t out_size = attention.tokens * inputs.shape.out_width();
  inputs.dout = side.upload(dtype, {attention.tokens, inputs.shape.out_width()}, normal_values(out_size, 2));
  inputs.documents.starts = upload_starts(side, attention.starts);
  inputs.documents.count = static_cast<int64_t>(attention.starts.size()) - 1;
  for (size_t i = 0; i + 1 < attention.starts.size(); ++i) {
    inputs.documents.max_length =
        std::max<int64_t>(inputs.documents.max_length, attention.starts[i + 1] - attention.starts[i]);
  }
  return inputs;
}

Results run(Side& side, const Case& attention, DType dtype) {
  const Inputs in = make_inputs(side, attention, dtype);
  const Tensor out = side.tensor(dtype, {attention.tokens, in.shape.out_width()});
  const Tensor lse = side.tensor(DType::F32, {attention.heads, attention.tokens});
  const Tensor dqkv = side.tensor(dtype, {attention.tokens, in.shape.qkv_width()});
  side->attention_forward({.dense = out}, lse, in.qkv, in.documents, in.shape);
  side->attention_backward(dqkv, in.dout, in.qkv, out, lse, in.documents, in.shape);
  return {download(side, out), download(side, lse), download(side, dqkv)};
}

// In norms. Where the reference all but vanishes (the gradients of a single token), its rounding is not
// compared.
double relative_error(const std::vector<float>& x, const std::vector<float>& reference) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    difference += (static_cast<double>(x[i]) - reference[i]) * (static_cast<double>(x[i]) - reference[i]);
    norm += static_cast<double>(reference[i]) * reference[i];
  }
  return std::sqrt(difference /
                   std::max(norm, 1e-2 * static_cast<double>(x.size())));  // NaN fails comparisons
}

// The part of dqkv that belongs to queries, keys or values: columns [begin, end) of every row.
std::vector<float> columns(const std::vector<float>& x, int64_t width, int64_t begin, int64_t end) {
  std::vector<float> result;
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(width)) {
    result.insert(result.end(), x.begin() + static_cast<int64_t>(row) + begin,
                  x.begin() + static_cast<int64_t>(row) + end);
  }
  return result;
}

class CudaAttention : public testing::Test {
 protected:
  void SetUp() override {
    const CudaProbe probe = probe_cuda();
    if (!probe.usable) GTEST_SKIP() << "no GPU: " << probe.reason;
    cpu = std::make_unique<Side>(make_cpu_backend(2));
  }
  void TearDown() override { unsetenv("OCTET_ATTENTION"); }

  // `engine` is read when the backend runs its first attention op.
  std::unique_ptr<Side> make_side(const char* engine, bool deterministic = false) {
    setenv("OCTET_ATTENTION", engine, 1);
    return std::make_unique<Side>(make_cuda_backend({.deterministic = deterministic}));
  }

  // Empty, or why the engine does not take the case.
  static std::optional<std::string> refusal(const std::exception& error) {
    const std::string text = error.what();
    if (text.find("asks for cuDNN, but") == std::string::npos) return std::nullopt;
    return text;
  }

  void compare(const Case& attention, DType dtype, const Results& x, const Results& reference,
               double tolerance, bool with_lse) {
    SCOPED_TRACE(attention.name);
    const int64_t q_end = attention.heads * attention.depth,
                  k_end = q_end + attention.kv_heads * attention.depth;
    const int64_t width = k_end + attention.kv_heads * attention.depth;
    EXPECT_LE(relative_error(x.out, reference.out), tolerance) << "out, " << name_of(dtype);
    if (with_lse) {
      EXPECT_LE(relative_error(x.lse, reference.lse), 1e-4) << "lse, " << name_of(dtype);
    }
    const auto part = [&](int64_t begin, int64_t end) {
      return relative_error(columns(x.dqkv, width, begin, end), columns(reference.dqkv, width, begin, end));
    };
    EXPECT_LE(part(0, q_end), tolerance) << "dq, " << name_of(dtype);
    EXPECT_LE(part(q_end, k_end), tolerance) << "dk, " << name_of(dtype);
    EXPECT_LE(part(k_end, width), tolerance) << "dv, " << name_of(dtype);
  }

  std::unique_ptr<Side> cpu;
};

// Lengths around the tile sizes 32, 64 and 128; one token; heads that share keys; every padded width.
std::vector<Case> all_cases() {
  std::vector<Case> cases = {
      packed("one document, GPT-2 heads", 12, 12, 64, {256}),
      packed("four equal documents", 4, 4, 64, {128, 128, 128, 128}),
      packed("grouped, D 128", 8, 2, 128, {256, 256}),
      packed("grouped, D 64", 6, 2, 64, {384}),
      packed("all heads share one key head", 4, 1, 32, {128, 128}),
      packed("odd equal lengths", 4, 2, 64, {77, 77, 77}),
      packed("odd lengths, D 128", 2, 1, 128, {1, 63, 64, 65, 127, 128, 129, 33, 31, 2, 200}),
      packed("odd lengths, D 64", 4, 2, 64, {1, 63, 64, 65, 127, 128, 129, 33, 31, 2, 200}),
      packed("odd lengths, D 32", 4, 4, 32, {5, 300, 17, 1, 1, 1, 66}),
      packed("empty documents between others", 2, 2, 64, {40, 0, 70, 0, 0, 3}),
      packed("D 16", 4, 2, 16, {100, 60}),
      packed("D 48", 4, 2, 48, {100, 60}),
      packed("D 80", 4, 2, 80, {130, 60}),
      packed("D 20, not a multiple of 8", 4, 2, 20, {50, 61}),
      packed("D 160", 2, 1, 160, {50, 61}),
      packed("one token", 2, 1, 64, {1}),
      packed("many short documents", 2, 1, 64, std::vector<int32_t>(300, 3)),
  };
  Case outside = packed("tokens outside the documents", 2, 1, 64, {30, 90, 11});
  for (int32_t& start : outside.starts) start += 7;
  outside.tokens = outside.starts.back() + 23;
  cases.push_back(outside);
  return cases;
}

TEST_F(CudaAttention, FlashMatchesCpu) {
  const auto cuda = make_side("flash");
  for (const Case& attention : all_cases()) {
    for (const DType dtype : {DType::BF16, DType::F32}) {
      const Results reference = run(*cpu, attention, dtype);
      const Results result = run(*cuda, attention, dtype);
      compare(attention, dtype, result, reference, dtype == DType::BF16 ? 1e-2 : 2e-5, true);
    }
  }
}

TEST_F(CudaAttention, CudnnMatchesCpu) {
  for (const bool deterministic : {false, true}) {
    const auto cuda = make_side("cudnn", deterministic);
    int compared = 0;
    std::string refused;
    for (const Case& attention : all_cases()) {
      Results result;
      try {
        result = run(*cuda, attention, DType::BF16);
      } catch (const Error& error) {
        const auto reason = refusal(error);
        if (!reason) throw;
        if (reason->find("built without cuDNN") != std::string::npos) GTEST_SKIP() << *reason;
        refused += fmt::format("\n  {}: {}", attention.name, *reason);
        continue;
      }
      ++compared;
      // The layout of lse is cuDNN's own unless there is one document.
      compare(attention, DType::BF16, result, run(*cpu, attention, DType::BF16), 1e-2,
              attention.starts.size() == 2);
    }
    // GPT-2 heads, four equal documents and the three grouped cases have lengths that every cuDNN takes.
    EXPECT_GE(compared, deterministic ? 1 : 5) << "refused:" << refused;
  }
}

// Without a forced engine, batches of either kind may follow one another on one backend.
TEST_F(CudaAttention, ChoosesByItself) {
  unsetenv("OCTET_ATTENTION");
  Side cuda(make_cuda_backend({}));
  for (const Case& attention :
       {packed("equal", 4, 2, 64, {128, 128}), packed("ragged", 4, 2, 64, {100, 156}),
        packed("equal again", 4, 2, 64, {128, 128}), packed("one document", 4, 2, 64, {256})}) {
    compare(attention, DType::BF16, run(cuda, attention, DType::BF16), run(*cpu, attention, DType::BF16),
            1e-2, false);
  }
}

TEST_F(CudaAttention, LongDocumentAndLargeScores) {
  const Case attention = packed("1000 tokens", 2, 1, 64, {1000, 24});
  const auto cuda = make_side("flash");
  Inputs in[2];
  Results results[2];
  Side* sides[2] = {cpu.get(), cuda.get()};
  for (int i = 0; i < 2; ++i) {
    in[i] = make_inputs(*sides[i], attention, DType::BF16);
    in[i].shape.scale = 1.5f;  // scores up to about 100: the running maximum matters
    const Tensor out = sides[i]->tensor(DType::BF16, {attention.tokens, in[i].shape.out_width()});
    const Tensor lse = sides[i]->tensor(DType::F32, {attention.heads, attention.tokens});
    (*sides[i])->attention_forward({.dense = out}, lse, in[i].qkv, in[i].documents, in[i].shape);
    results[i] = {download(*sides[i], out), download(*sides[i], lse), {}};
  }
  EXPECT_LE(relative_error(results[1].out, results[0].out), 1e-2);
  EXPECT_LE(relative_error(results[1].lse, results[0].lse), 1e-4);
}

// A query sees no key after it and none of another document: what lies there has no effect on a single bit.
TEST_F(CudaAttention, NothingLeaksAcrossBorders) {
  const Case attention = packed("two documents", 2, 1, 64, {100, 90});
  const auto cuda = make_side("flash");
  const Inputs in = make_inputs(*cuda, attention, DType::BF16);
  const Tensor out = cuda->tensor(DType::BF16, {attention.tokens, in.shape.out_width()});
  const Tensor lse = cuda->tensor(DType::F32, {attention.heads, attention.tokens});
  (*cuda)->attention_forward({.dense = out}, lse, in.qkv, in.documents, in.shape);
  const std::vector<float> before = download(*cuda, out);
  for (const int64_t changed : {int64_t{60}, int64_t{99}, int64_t{150}}) {
    const Tensor row = in.qkv.row_range(changed, 1);
    const std::vector<uint8_t> kept = cuda->bytes(row);
    const std::vector<Bf16> other(static_cast<size_t>(row.numel()), to_bf16(3.0f));
    (*cuda)->copy_to_device(row, other.data());
    (*cuda)->attention_forward({.dense = out}, lse, in.qkv, in.documents, in.shape);
    const std::vector<float> after = download(*cuda, out);
    const int64_t end = changed < 100 ? 100 : attention.tokens;
    for (int64_t token = 0; token < attention.tokens; ++token) {
      bool same = true;
      for (int64_t c = 0; c < in.shape.out_width(); ++c) {
        const auto place = static_cast<size_t>(token * in.shape.out_width() + c);
        same = same && before[place] == after[place];
      }
      const bool may_change = token >= changed && token < end;
      EXPECT_TRUE(same || may_change) << "token " << token << " after a change of " << changed;
      if (token == changed) {
        EXPECT_FALSE(same) << "token " << token;
      }
    }
    (*cuda)->copy_to_device(row, kept.data());
  }
}

TEST_F(CudaAttention, FlashGivesTheSameBitsAgain) {
  const Case attention = packed("mixed", 4, 2, 128, {300, 5, 129, 64, 70});
  const auto cuda = make_side("flash");
  const Results first = run(*cuda, attention, DType::BF16);
  for (int i = 0; i < 3; ++i) {
    const Results again = run(*cuda, attention, DType::BF16);
    EXPECT_EQ(first.out, again.out);
    EXPECT_EQ(first.lse, again.lse);
    EXPECT_EQ(first.dqkv, again.dqkv);
  }
}

TEST_F(CudaAttention, WritesTheFp8FormOfItsOutput) {
  const Case attention = packed("four equal documents", 4, 2, 64, {128, 128, 128, 128});
  const auto cuda = make_side("flash");
  const Inputs in = make_inputs(*cuda, attention, DType::BF16);
  const Tensor out = cuda->tensor(DType::BF16, {attention.tokens, in.shape.out_width()});
  const Tensor lse = cuda->tensor(DType::F32, {attention.heads, attention.tokens});
  for (const QuantizeRule& rule : all_rules()) {
    Quantized fused = make_quantized(*cuda, attention.tokens, in.shape.out_width(), rule, kUsedSlot);
    Quantized separate = make_quantized(*cuda, attention.tokens, in.shape.out_width(), rule, kUsedSlot);
    (*cuda)->attention_forward({.dense = out, .fp8 = &fused}, lse, in.qkv, in.documents, in.shape);
    (*cuda)->quantize({.dense = out, .fp8 = &separate});
    expect_same(*cuda, fused, *cuda, separate, describe(rule));
  }
}

// Prints a table; run with --gtest_also_run_disabled_tests --gtest_filter=*Speed.
TEST_F(CudaAttention, DISABLED_Speed) {
  const Case cases[] = {packed("GPT-2 16 x 1024", 12, 12, 64, std::vector<int32_t>(16, 1024)),
                        packed("Llama-1B 8 x 1024", 32, 8, 64, std::vector<int32_t>(8, 1024)),
                        packed("Llama-8B 8 x 1024", 32, 8, 128, std::vector<int32_t>(8, 1024)),
                        packed("Llama-8B 2 x 4096", 32, 8, 128, std::vector<int32_t>(2, 4096))};
  for (const Case& attention : cases) {
    for (const auto& [engine, deterministic] :
         {std::pair{"cudnn", false}, {"cudnn", true}, {"flash", false}}) {
      const auto cuda = make_side(engine, deterministic);
      const Inputs in = make_inputs(*cuda, attention, DType::BF16);
      const Tensor out = cuda->tensor(DType::BF16, {attention.tokens, in.shape.out_width()});
      const Tensor lse = cuda->tensor(DType::F32, {attention.heads, attention.tokens});
      const Tensor dqkv = cuda->tensor(DType::BF16, {attention.tokens, in.shape.qkv_width()});
      const auto forward = [&] {
        (*cuda)->attention_forward({.dense = out}, lse, in.qkv, in.documents, in.shape);
      };
      const auto backward = [&] {
        (*cuda)->attention_backward(dqkv, in.dout, in.qkv, out, lse, in.documents, in.shape);
      };
      // TFLOP/s over the causal half, 2 products forward and 5 backward.
      const auto rate = [&](double products, const auto& op) {
        constexpr int kRuns = 20;
        for (int i = 0; i < 3; ++i) op();
        (*cuda)->synchronize();
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < kRuns; ++i) op();
        (*cuda)->synchronize();
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
        const auto length = static_cast<double>(in.documents.max_length);
        return products * length * static_cast<double>(attention.tokens * in.shape.out_width()) * kRuns /
               taken.count() / 1e12;
      };
      try {
        const double rate_forward = rate(2, forward);
        const double rate_backward = rate(5, backward);
        fmt::print("{:20} {}{}: forward {:.0f}, backward {:.0f} TFLOP/s\n", attention.name, engine,
                   deterministic ? " deterministic" : "", rate_forward, rate_backward);
      } catch (const Error& error) {
        fmt::print("{:20} {}: {}\n", attention.name, engine, error.what());
      }
    }
  }
}

TEST_F(CudaAttention, RefusesShapesThatDoNotFit) {
  const Case attention = packed("one", 4, 2, 64, {64});
  const auto cuda = make_side("flash");
  Inputs in = make_inputs(*cuda, attention, DType::BF16);
  const Tensor out = cuda->tensor(DType::BF16, {attention.tokens, in.shape.out_width()});
  const Tensor lse = cuda->tensor(DType::F32, {attention.heads, attention.tokens});
  AttentionShape wrong = in.shape;
  wrong.kv_heads = 3;
  EXPECT_THROW((*cuda)->attention_forward({.dense = out}, lse, in.qkv, in.documents, wrong), Error);
  wrong = in.shape;
  wrong.head_dim = 32;
  EXPECT_THROW((*cuda)->attention_forward({.dense = out}, lse, in.qkv, in.documents, wrong), Error);
  EXPECT_THROW(
      (*cuda)->attention_forward({.dense = out}, lse.row_range(0, 2), in.qkv, in.documents, in.shape), Error);
  setenv("OCTET_ATTENTION", "other", 1);
  Side other(make_cuda_backend({}));
  EXPECT_THROW(other->attention_forward({.dense = out}, lse, in.qkv, in.documents, in.shape), Error);
}

}  // namespace
}  // namespace octet::test
