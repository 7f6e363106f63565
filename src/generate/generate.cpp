#include "generate/generate.h"

#include <algorithm>

#include "base/philox.h"

namespace octet {
namespace {

DecoderShape sampling_shape(int64_t rows, int64_t length) {
  return {.sequences = rows, .capacity = length};
}

// Token `step` of a row: its random number depends on nothing else.
TokenChoice choice_of(const SampleOptions& options, uint64_t row, int64_t step) {
  constexpr double kHottest = 1e30;  // a float, and all tokens are equally likely
  return {.top_p = options.top_p,
          .temperature = static_cast<float>(std::min(options.temperature, kHottest)),
          .uniform = Philox(options.seed, row).uniform(static_cast<uint64_t>(step)),
          .top_k = static_cast<int32_t>(std::min(options.top_k, kMostChoices))};
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
    std::vector<TokenChoice> choices;
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
      choices.push_back(choice_of(options, r, step));
    }
    if (continuations.empty()) break;
    const std::vector<int32_t> chosen = decoder.choose(continuations, choices);
    for (size_t i = 0; i < continuations.size(); ++i) {
      const auto r = static_cast<size_t>(continuations[i].sequence);
      const int32_t id = chosen[i];
      require(id != kNanLogits, "[generate] the logits of the model are NaN");
      require(id != kNoLogits, "[generate] all logits of the model are -Inf");
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
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::string> texts(prompts.size());
  for (const std::string& prompt : prompts) {
    ids.push_back(chat_ ? encode_example(chat_->prompt({{{ChatRole::User, prompt}}}), tokenizer_).tokens
                        : tokenizer_.encode(prompt));
    if (ids.back().empty()) ids.back().push_back(tokenizer_.bos().value_or(tokenizer_.eos().value_or(0)));
  }
  std::vector<int32_t> ends;
  if (tokenizer_.eos()) ends.push_back(*tokenizer_.eos());
  if (const auto end = chat_ ? tokenizer_.find_token(chat_->end_token()) : std::nullopt) ends.push_back(*end);
  // A token that the tokenizer does not have also ends a text: the model's vocabulary may be larger.
  const auto on_token = [&](size_t row, int32_t id) {
    if (std::ranges::find(ends, id) != ends.end() || id >= tokenizer_.vocab_size()) return false;
    std::string& text = texts[row];
    // The end that this token may complete can begin before it.
    const size_t from = text.size() - std::min(text.size(), options.stop.size());
    text += tokenizer_.decode_continued({&id, 1});
    return options.stop.empty() || text.find(options.stop, from) == std::string::npos;
  };
  generate_ids(decoder_, ids, options, ends, {.on_token = on_token, .slide = true});
  return texts;
}

}  // namespace octet
