#include <limits>
#include <numeric>

#include "support/op_table_detail.h"
#include "support/plain_choice.h"

// The choice of tokens. It has the same bits on every device.
namespace octet::test {

int32_t plain_choice(std::span<const double> logits, const TokenChoice& choice) {
  if (std::ranges::any_of(logits, [](double x) { return std::isnan(x); })) return kNanLogits;
  std::vector<int32_t> kept(logits.size());
  std::iota(kept.begin(), kept.end(), 0);
  const auto logit = [&](int32_t id) { return logits[static_cast<size_t>(id)]; };
  std::stable_sort(kept.begin(), kept.end(), [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
  const double largest = logit(kept[0]);
  if (largest == -std::numeric_limits<double>::infinity()) return kNoLogits;
  if (choice.temperature <= 0) return kept[0];
  const auto weight = [&](int32_t id) {
    return logit(id) == largest ? 1.0
                                : std::exp((logit(id) - largest) / static_cast<double>(choice.temperature));
  };
  const auto total = [&] {
    double sum = 0;
    for (const int32_t id : kept) sum += weight(id);
    return sum;
  };
  if (choice.top_k > 0) kept.resize(std::min(kept.size(), static_cast<size_t>(choice.top_k)));
  if (choice.top_p < 1) {
    const double all = total();
    double sum = 0;
    size_t count = 0;
    while (count < kept.size() && sum < choice.top_p * all) sum += weight(kept[count++]);
    kept.resize(std::max<size_t>(count, 1));
  }
  std::ranges::sort(kept);
  double rest = total() * static_cast<double>(choice.uniform);
  for (const int32_t id : kept) {
    rest -= weight(id);
    if (rest < 0) return id;
  }
  return kept.back();
}

namespace {

// Every way to choose, one row each, and draws from all places.
std::vector<TokenChoice> some_choices() {
  std::vector<TokenChoice> choices;
  const Philox random(5, 9);
  const auto add = [&](float temperature, int32_t top_k, double top_p) {
    choices.push_back({.top_p = top_p,
                       .temperature = temperature,
                       .uniform = random.uniform(choices.size()),
                       .top_k = top_k});
  };
  add(0, 0, 1);
  add(0, 7, 0.5);
  for (const float temperature : {1e-30f, 0.01f, 0.8f, 1.0f, 30.0f, 1e30f}) add(temperature, 0, 1);
  for (const int32_t top_k : {1, 2, 40, 999, 1 << 30}) add(0.8f, top_k, 1);
  for (const double top_p : {0.0, 1e-6, 0.5, 0.9, 0.999999}) add(0.8f, 0, top_p);
  add(20.0f, 50, 0.9);
  add(1.0f, 3, 0.3);
  add(1e30f, 100, 0.75);
  return choices;
}

Fill bytes_of_choices(const std::vector<TokenChoice>& choices) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(choices.data());
  return fixed(std::vector<double>(bytes, bytes + choices.size() * sizeof(TokenChoice)));
}

enum class Row : uint8_t { Normal, Ties, Equal, MostlyMissing, Missing, Nan, Infinite };

double logit_of(Row kind, double normal, int64_t column) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  switch (kind) {
    case Row::Normal:
      return normal;
    case Row::Ties:
      return std::round(normal) / 4;
    case Row::Equal:
      return column % 2 == 0 ? 0.0 : -0.0;
    case Row::MostlyMissing:
      return column % 5 == 3 ? normal : -kInfinity;
    case Row::Missing:
      return -kInfinity;
    case Row::Nan:
      return column % 700 == 1 ? std::nan("") : normal;
    case Row::Infinite:
      return column % 3 == 1 ? kInfinity : normal;
  }
  return 0;
}

// Behind the vocabulary lies padding with the largest logits of all.
OpCase choose_tokens_case(const std::string& label, Row kind, int64_t vocab, int64_t width,
                          const std::vector<TokenChoice>& choices) {
  const int64_t rows = std::ssize(choices);
  OpCase op = start("choose_tokens_" + label, DType::F32, {rows, vocab, width});
  op.bytes = bytes_for(DType::F32, rows * vocab);
  op.add_input("logits", DType::F32, {rows, width}, [=](int64_t most) {
    std::vector<double> logits = random_values(std::min(most, rows * width), DType::F32, 1, 3.0);
    for (size_t i = 0; i < logits.size(); ++i) {
      const auto column = static_cast<int64_t>(i) % width;
      logits[i] = column < vocab ? logit_of(kind, logits[i], column) : 1e9;
    }
    return logits;
  });
  op.add_input("choices", DType::U8, {rows * static_cast<int64_t>(sizeof(TokenChoice))},
               bytes_of_choices(choices));
  op.add_output("ids", DType::I32, {rows}, Compare::Exact);
  op.forward = [=](Device& device, Args& args) {
    device.ops().choose_tokens(args.out[0], args.in[0], vocab, args.in[1]);
  };
  op.reference = [=](const Arrays& in) {
    std::vector<double> ids(at(rows));
    for (int64_t r = 0; r < rows; ++r)
      ids[at(r)] = plain_choice(std::span(in[0]).subspan(at(r * width), at(vocab)), choices[at(r)]);
    return Arrays{ids};
  };
  return op;
}

}  // namespace

void add_sampling(std::vector<OpCase>& table) {
  const std::vector<TokenChoice> choices = some_choices();
  for (const auto& [vocab, width] : {std::pair{1, 1}, {2, 5}, {33, 33}, {1000, 1024}})
    table.push_back(choose_tokens_case("normal", Row::Normal, vocab, width, choices));
  const std::vector<TokenChoice> few = {
      {},
      {.temperature = 0.8f, .uniform = 0.7f},
      {.top_p = 0.9, .temperature = 1.0f, .uniform = 0.3f},
      {.top_p = 0.95, .temperature = 1e30f, .uniform = 0.99f, .top_k = 1000},
  };
  table.push_back(large(choose_tokens_case("normal", Row::Normal, 50257, 50304, few)));
  table.push_back(large(choose_tokens_case("normal", Row::Normal, 151936, 151936, few)));
  table.push_back(large(choose_tokens_case("ties", Row::Ties, 50257, 50264, few)));
  for (const auto& [label, kind] : {std::pair{"ties", Row::Ties},
                                    {"equal", Row::Equal},
                                    {"mostly_missing", Row::MostlyMissing},
                                    {"missing", Row::Missing},
                                    {"nan", Row::Nan},
                                    {"infinite", Row::Infinite}})
    table.push_back(choose_tokens_case(label, kind, 1003, 1008, choices));
}

void add_model_sampling(std::vector<OpCase>& table) {
  for (const auto& [label, choice] : {std::pair<const char*, TokenChoice>{"greedy", {}},
                                      {"temperature", {.temperature = 0.8f}},
                                      {"top_k", {.temperature = 0.8f, .top_k = 50}},
                                      {"top_p", {.top_p = 0.9, .temperature = 0.8f}},
                                      {"both", {.top_p = 0.9, .temperature = 0.8f, .top_k = 50}}}) {
    for (const size_t rows : {1, 16}) {
      std::vector<TokenChoice> choices(rows, choice);
      for (size_t i = 0; i < rows; ++i) choices[i].uniform = Philox(3).uniform(i);
      table.push_back(choose_tokens_case(label, Row::Normal, 128256, 128256, choices));
    }
  }
}

}  // namespace octet::test
