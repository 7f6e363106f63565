#include "generate/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/philox.h"

namespace octet {
namespace {

DecoderShape sampling_shape(int64_t rows, int64_t length) {
  return {.sequences = rows, .capacity = length};
}

// The candidates that top_k and top_p leave, with their weights e^((logit - largest) / temperature).
struct Candidates {
  std::vector<int32_t> ids;
  std::vector<double> weights;
  double total = 0;
};

Candidates cut(const std::vector<float>& logits, const SampleOptions& options) {
  Candidates c;
  c.ids.resize(logits.size());
  std::iota(c.ids.begin(), c.ids.end(), 0);
  const bool cuts = (options.top_k > 0 && options.top_k < std::ssize(logits)) || options.top_p < 1;
  if (cuts) {
    const auto likelier = [&](int32_t a, int32_t b) {
      const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
      return x != y ? x > y : a < b;
    };
    size_t kept = c.ids.size();
    if (options.top_k > 0) kept = std::min(kept, static_cast<size_t>(options.top_k));
    std::partial_sort(c.ids.begin(), c.ids.begin() + static_cast<std::ptrdiff_t>(kept), c.ids.end(),
                      likelier);
    c.ids.resize(kept);
  }
  const float largest = *std::max_element(logits.begin(), logits.end());
  for (const int32_t id : c.ids) {
    c.weights.push_back(
        std::exp(static_cast<double>(logits[static_cast<size_t>(id)] - largest) / options.temperature));
    c.total += c.weights.back();
  }
  if (options.top_p < 1) {
    double sum = 0;
    size_t kept = 0;
    while (kept < c.weights.size() && sum < options.top_p * c.total) sum += c.weights[kept++];
    c.ids.resize(std::max<size_t>(kept, 1));
    c.weights.resize(c.ids.size());
    c.total = std::accumulate(c.weights.begin(), c.weights.end(), 0.0);
  }
  return c;
}

// Tokens that both begin with. The last of a prompt is always read: the logits after it are needed.
size_t shared_tokens(std::span<const int32_t> cached, const std::vector<int32_t>& prompt) {
  const size_t most = std::min(cached.size(), prompt.size() - 1);
  size_t same = 0;
  while (same < most && cached[same] == prompt[same]) ++same;
  return same;
}

}  // namespace

int64_t generator_bytes(Transformer& trained, Device& device, int64_t rows, int64_t length) {
  const Decoder decoder(trained, sampling_shape(rows, length), device);
  return decoder.plan().peak_bytes();
}

int32_t sample_logits(const std::vector<float>& logits, const SampleOptions& options, double u) {
  // NaN would break the order that max_element and sorting need.
  for (const float x : logits) require(!std::isnan(x), "[generate] the logits of the model are NaN");
  if (options.temperature <= 0)
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const Candidates c = cut(logits, options);
  double left = u * c.total;
  for (size_t i = 0; i < c.ids.size(); ++i) {
    left -= c.weights[i];
    if (left < 0) return c.ids[i];
  }
  // Rounding left a little over: the likeliest.
  return c.ids[static_cast<size_t>(std::max_element(c.weights.begin(), c.weights.end()) - c.weights.begin())];
}

std::vector<std::vector<int32_t>> generate_ids(Decoder& decoder,
                                               const std::vector<std::vector<int32_t>>& prompts,
                                               const SampleOptions& options, std::span<const int32_t> end_ids,
                                               const GenerateCallbacks& callbacks) {
  struct Row {
    std::vector<int32_t> ids;  // prompt and continuation
    size_t unread = 0;         // ids that the decoder has not seen, at the end
    bool done = false;
  };
  const int64_t capacity = decoder.shape().capacity;
  std::vector<Row> rows;
  for (size_t r = 0; r < prompts.size(); ++r) {
    rows.push_back({prompts[r], prompts[r].size(), false});
    const size_t kept = r == 0 ? shared_tokens(callbacks.cached, prompts[r]) : 0;
    decoder.rewind(static_cast<int64_t>(r), static_cast<int64_t>(kept));
    rows[r].unread -= kept;
    if (callbacks.slide)
      rows[r].unread = std::min(rows[r].unread, static_cast<size_t>(std::max<int64_t>(capacity - 1, 1)));
  }
  std::vector<std::vector<int32_t>> added(prompts.size());
  for (int64_t step = 0; step < options.max_tokens; ++step) {
    std::vector<Decoder::Continuation> continuations;
    for (size_t r = 0; r < rows.size(); ++r) {
      Row& row = rows[r];
      const auto sequence = static_cast<int64_t>(r);
      if (row.done) continue;
      if (decoder.length(sequence) + static_cast<int64_t>(row.unread) > capacity) {
        if (!callbacks.slide) {
          row.done = true;
          continue;
        }
        decoder.clear(sequence);
        row.unread = std::min(row.ids.size(), static_cast<size_t>(std::max<int64_t>(capacity / 2, 1)));
      }
      continuations.push_back({sequence, std::span(row.ids).last(row.unread)});
    }
    if (continuations.empty()) break;
    const std::vector<Decoder::Logits> logits = decoder.read(continuations);
    for (size_t i = 0; i < continuations.size(); ++i) {
      const auto r = static_cast<size_t>(continuations[i].sequence);
      const double u = static_cast<double>(Philox(options.seed, r).uniform(static_cast<uint64_t>(step)));
      const int32_t id = sample_logits(logits[i], options, u);
      rows[r].ids.push_back(id);
      rows[r].unread = 1;
      added[r].push_back(id);
      rows[r].done = std::find(end_ids.begin(), end_ids.end(), id) != end_ids.end();
      if (callbacks.on_token && !callbacks.on_token(r, id)) rows[r].done = true;
    }
  }
  return added;
}

Generator::Generator(Transformer& trained, Device& device, const Tokenizer& tokenizer, int64_t rows,
                     int64_t length, const std::optional<ChatStyle>& chat)
    : decoder_(trained, sampling_shape(rows, length), device), tokenizer_(tokenizer) {
  if (chat) chat_.emplace(*chat, tokenizer, parse_loss_roles("completion"));
  decoder_.allocate();
}

std::vector<std::string> Generator::continue_prompts(const std::vector<std::string>& prompts,
                                                     const SampleOptions& options) {
  std::vector<std::string> texts;
  const auto rows = static_cast<size_t>(decoder_.shape().sequences);
  for (size_t begin = 0; begin < prompts.size(); begin += rows) {
    const size_t count = std::min(rows, prompts.size() - begin);
    for (std::string& text : run(std::span(prompts).subspan(begin, count), options))
      texts.push_back(std::move(text));
  }
  return texts;
}

std::vector<std::string> Generator::run(std::span<const std::string> prompts, const SampleOptions& options) {
  std::vector<std::vector<int32_t>> ids, kept(prompts.size());
  for (const std::string& prompt : prompts) {
    ids.push_back(chat_ ? encode_example(chat_->prompt({{{ChatRole::User, prompt}}}), tokenizer_).tokens
                        : tokenizer_.encode(prompt));
    if (ids.back().empty()) ids.back().push_back(tokenizer_.bos().value_or(tokenizer_.eos().value_or(0)));
  }
  std::vector<int32_t> ends;
  if (tokenizer_.eos()) ends.push_back(*tokenizer_.eos());
  if (const auto end = chat_ ? tokenizer_.find_token(chat_->end_token()) : std::nullopt) ends.push_back(*end);
  // What the tokenizer cannot say ends a text as well: the model's vocabulary may be larger.
  const auto on_token = [&](size_t row, int32_t id) {
    if (std::ranges::find(ends, id) != ends.end() || id >= tokenizer_.vocab_size()) return false;
    kept[row].push_back(id);
    return options.stop.empty() ||
           tokenizer_.decode_continued(kept[row]).find(options.stop) == std::string::npos;
  };
  generate_ids(decoder_, ids, options, ends, {.on_token = on_token, .slide = true});
  std::vector<std::string> texts;
  for (const std::vector<int32_t>& row : kept) texts.push_back(tokenizer_.decode_continued(row));
  return texts;
}

}  // namespace octet
