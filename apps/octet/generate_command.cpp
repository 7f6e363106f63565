#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/input_errors.h"
#include "base/log.h"
#include "base/text.h"
#include "chat_console.h"
#include "checkpoint/chat_style.h"
#include "checkpoint/model_weights.h"
#include "command.h"
#include "config/config_keys.h"
#include "data/tokenizer/stream_decoder.h"
#include "device_options.h"
#include "generate/generate.h"
#include "plan/device_choice.h"

namespace octet {
namespace {

using Clock = std::chrono::steady_clock;

struct Options : DeviceOptions {
  std::string model, tokenizer, adapter_name_or_path;
  bool best = false;
  std::vector<std::string> prompts, prompt_ids;
  bool chat = false;
  std::string system, user;
  ChatTemplate chat_template = ChatTemplate::Auto;
  int64_t max_seq_length = 0;  // of a chat; 0: not given
  int64_t max_new_tokens = 0;  // 0: not given
  double temperature = 0;
  int64_t top_k = 0;
  double top_p = 1;
  int64_t seed = 0;
  bool print_ids = false, jsonl = false, stream = false, no_special = false, ignore_eos = false,
       print_logits = false;

  bool chats() const { return chat || !user.empty(); }
  int64_t new_tokens() const { return max_new_tokens > 0 ? max_new_tokens : chats() ? 512 : 64; }
  SampleOptions sample() const {
    return {.max_tokens = new_tokens(),
            .temperature = temperature,
            .top_k = top_k,
            .top_p = top_p,
            .seed = static_cast<uint64_t>(seed)};
  }
};

std::vector<int32_t> parse_ids(std::string_view text, int64_t vocab) {
  std::vector<int32_t> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    if (*at == ' ' || *at == ',' || *at == '\n') {
      ++at;
      continue;
    }
    int32_t id = 0;
    const auto parsed = std::from_chars(at, end, id);
    const bool ends = parsed.ptr == end || *parsed.ptr == ' ' || *parsed.ptr == ',' || *parsed.ptr == '\n';
    if (parsed.ec != std::errc() || !ends || id < 0 || id >= vocab) {
      fail_config("--prompt_ids is '{}'; expected token ids from 0 to {}, separated by spaces",
                  printable(text), vocab - 1);
    }
    ids.push_back(id);
    at = parsed.ptr;
  }
  return ids;
}

class GenerateRun {
 public:
  explicit GenerateRun(const Options& options)
      : options_(options), model_(find_model(options.model, options.best, options.adapter_name_or_path)) {
    if (!options.tokenizer.empty()) model_.tokenizer = options.tokenizer;
    if (needs_text()) load_tokenizer_of_model();
    make_renderer();
    end_ids_ = end_ids_of(model_, tokenizer_.get(), renderer_ ? &*renderer_ : nullptr);
    make_prompts();
  }

  int run() {
    const std::unique_ptr<Device> device = make_device(options_.device_spec());
    make_decoder(*device);
    if (options_.chats()) return chat();
    if (options_.print_logits) {
      print_logits();
      return kExitDone;
    }
    generate();
    return kExitDone;
  }

 private:
  bool needs_text() const {
    return options_.jsonl || !options_.prompts.empty() || (!options_.print_ids && !options_.print_logits);
  }

  void load_tokenizer_of_model() {
    if (model_.tokenizer.empty()) {
      fail_config("[{}] has no tokenizer; pass --tokenizer, or use --prompt_ids and --print_ids",
                  model_.folder);
    }
    tokenizer_ = make_tokenizer(model_.tokenizer);
    if (tokenizer_->vocab_size() > model_.config.vocab) {
      fail_config(
          "tokenizer '{}' has {} ids, but the model has a vocabulary of {}; use the tokenizer of the model",
          model_.tokenizer, tokenizer_->vocab_size(), model_.config.vocab);
    }
  }

  // How the model is talked to. Without --chat only the token that ends an answer is needed.
  void make_renderer() {
    ModelChat found;
    if (options_.chat_template != ChatTemplate::Auto) {
      found = {.style = ChatStyle{options_.chat_template}, .source = "--chat_template"};
    } else {
      found = find_chat_style(model_);
    }
    if (!options_.chats()) {
      if (tokenizer_) renderer_ = renderer_for(found.style, *tokenizer_);
      return;
    }
    if (!found.style) {
      std::vector<std::string> names = chat_template_names();
      names.erase(names.begin());  // auto
      fail_config("[{}] {}; pass --chat_template: one of {}", model_.folder,
                  found.unknown.empty()
                      ? "was not trained on conversations and has no chat template"
                      : fmt::format("the chat template in {} is not one that octet knows", found.unknown),
                  fmt::join(names, ", "));
    }
    renderer_.emplace(*found.style, *tokenizer_, parse_loss_roles("completion"));
    greeting_ = fmt::format("{}\nchat template {} ({})", model_.source, name_of(renderer_->chat_template()),
                            found.source);
  }

  int chat() {
    ChatSession session(*decoder_, *renderer_, *tokenizer_, options_.sample(),
                        options_.ignore_eos ? std::vector<int32_t>() : end_ids_);
    if (!options_.system.empty()) session.set_system(options_.system);
    return options_.user.empty() ? chat_on_console(session, greeting_)
                                 : ask_once(session, options_.user, options_.stream);
  }

  // Tokens of the conversation that the model sees. Memory is taken for all of them.
  int64_t chat_context() const {
    constexpr int64_t kDefault = 4096;
    if (options_.max_seq_length == 0) return std::min(kDefault, model_.config.max_positions);
    check_sequence_length(model_.config, "--max_seq_length", options_.max_seq_length);
    return options_.max_seq_length;
  }

  void make_prompts() {
    for (const std::string& text : options_.prompts) {
      std::vector<int32_t> ids = tokenizer_->encode(text);
      if (!options_.no_special) ids = tokenizer_->add_special(std::move(ids));
      // An empty prompt becomes the token that begins or ends a text.
      if (ids.empty()) ids.push_back(tokenizer_->bos().value_or(tokenizer_->eos().value_or(0)));
      prompts_.push_back(std::move(ids));
    }
    for (const std::string& text : options_.prompt_ids) {
      prompts_.push_back(parse_ids(text, model_.config.vocab));
      if (prompts_.back().empty()) fail_config("--prompt_ids is empty; expected at least one token id");
    }
  }

  void make_decoder(Device& device) {
    int64_t longest = 0;
    for (const std::vector<int32_t>& prompt : prompts_)
      longest = std::max<int64_t>(longest, std::ssize(prompt));
    const int64_t limit = model_.config.max_positions;
    check_sequence_length(model_.config, "a prompt's length", longest);
    const int64_t added = options_.print_logits ? 0 : options_.new_tokens();
    // The last token is given, not read.
    const int64_t capacity =
        options_.chats() ? chat_context() : std::min(longest + std::max<int64_t>(added - 1, 0), limit);
    if (longest + added - 1 > limit && !options_.chats()) {
      log_warning("the model has {} positions: at most {} new tokens are generated, not {}", limit,
                  limit - longest + 1, added);
    }
    const std::string precision = options_.precision_on(device);
    decoder_ = std::make_unique<Decoder>(
        model_.config,
        DecoderShape{.sequences = std::max<int64_t>(std::ssize(prompts_), 1), .capacity = capacity},
        precision == "fp32" ? DType::F32 : DType::BF16, device);
    if (decoder_->plan().peak_bytes() > device.memory_bytes()) {
      fail_config(
          "[generate] this needs {:.2f} GiB, but the device has {:.2f} GiB; use fewer or shorter prompts, "
          "fewer --max_new_tokens or --mixed_precision bf16",
          static_cast<double>(decoder_->plan().peak_bytes()) / 0x1p30,
          static_cast<double>(device.memory_bytes()) / 0x1p30);
    }
    decoder_->allocate();
    reading_input([&] { load_weights(device, decoder_->parameters(), model_); });
  }

  // One JSON object per prompt: its ids and, for each, the logits of what follows.
  void print_logits() {
    for (size_t r = 0; r < prompts_.size(); ++r) {
      const Decoder::Continuation prompt{static_cast<int64_t>(r), prompts_[r]};
      std::string line = fmt::format("{{\"ids\": [{}], \"logits\": [", fmt::join(prompts_[r], ", "));
      const std::vector<Decoder::Logits> logits = decoder_->read({&prompt, 1}, true);
      for (size_t i = 0; i < logits.size(); ++i)
        line += fmt::format("{}[{}]", i ? ", " : "", fmt::join(logits[i], ", "));
      write_out(line + "]}\n");
    }
  }

  // Prompt and continuation, as text or ids; with jsonl the continuation alone.
  std::string shown(const std::vector<int32_t>& prompt, const std::vector<int32_t>& added) const {
    if (options_.jsonl) {
      StreamDecoder decoder(*tokenizer_, true);
      for (const int32_t id : prompt) piece(decoder, id);  // whether a text begins with a space depends on it
      std::string text;
      for (const int32_t id : added) text += piece(decoder, id);
      text += decoder.finish();
      return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    }
    std::vector<int32_t> all = prompt;
    all.insert(all.end(), added.begin(), added.end());
    if (options_.print_ids) return fmt::format("{}\n", fmt::join(all, " "));
    std::string text;
    StreamDecoder decoder(*tokenizer_, true);
    for (const int32_t id : all) text += piece(decoder, id);
    return text + decoder.finish() + "\n";
  }

  // End tokens are not shown, nor ids that the tokenizer does not have: a vocabulary is often padded.
  std::string piece(StreamDecoder& decoder, int32_t id) const {
    return is_end(id) || id >= tokenizer_->vocab_size() ? "" : decoder.push(id);
  }
  bool is_end(int32_t id) const { return std::find(end_ids_.begin(), end_ids_.end(), id) != end_ids_.end(); }

  void generate() {
    std::optional<StreamDecoder> stream;
    if (options_.stream && tokenizer_ && !options_.print_ids) stream.emplace(*tokenizer_, true);
    const auto show = [&](int32_t id, bool first) {
      if (options_.print_ids) {
        write_out(fmt::format("{}{}", first ? "" : " ", id));
      } else {
        write_out(piece(*stream, id));
      }
    };
    if (options_.stream) {
      for (size_t i = 0; i < prompts_[0].size(); ++i) show(prompts_[0][i], i == 0);
    }
    const auto start = Clock::now();
    Clock::time_point first_token = start;
    int64_t made = 0;
    const auto on_token = [&](size_t, int32_t id) {
      if (made++ == 0) first_token = Clock::now();
      if (options_.stream) show(id, false);
      return true;
    };
    const std::vector<std::vector<int32_t>> added =
        generate_ids(*decoder_, prompts_, options_.sample(),
                     options_.ignore_eos ? std::span<const int32_t>() : std::span<const int32_t>(end_ids_),
                     {.on_token = on_token});
    const auto end = Clock::now();
    if (options_.stream) {
      write_out((stream ? stream->finish() : "") + "\n");
    } else {
      for (size_t r = 0; r < prompts_.size(); ++r) write_out(shown(prompts_[r], added[r]));
    }
    report(made, std::chrono::duration<double>(first_token - start).count(),
           std::chrono::duration<double>(end - first_token).count());
  }

  void report(int64_t made, double first_seconds, double seconds) const {
    int64_t read = 0;
    for (const std::vector<int32_t>& prompt : prompts_) read += std::ssize(prompt);
    const int64_t later = made - std::ssize(prompts_);
    log_info("{}: {} prompt tokens, first token after {:.1f} ms; {} new tokens{}", model_.source, read,
             1e3 * first_seconds, made,
             later > 0 && seconds > 0
                 ? fmt::format(", then {:.1f} tokens/s", static_cast<double>(later) / seconds)
                 : "");
  }

  const Options& options_;
  ModelFolder model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatRenderer> renderer_;
  std::string greeting_;
  std::vector<int32_t> end_ids_;
  std::vector<std::vector<int32_t>> prompts_;
  std::unique_ptr<Decoder> decoder_;
};

void check(const Options& options, std::vector<std::string>& errors) {
  const size_t prompts = options.prompts.size() + options.prompt_ids.size();
  if (prompts == 0 && !options.chats()) {
    errors.emplace_back(options.system.empty()
                            ? "octet generate needs --prompt TEXT, --user TEXT or --chat"
                            : "--system is for a chat: add --user TEXT, or --chat to talk");
  }
  if (options.chats() && (prompts > 0 || options.print_ids || options.print_logits || options.no_special)) {
    errors.emplace_back(
        "--chat and --user are not for --prompt, --prompt_ids, --print_ids, --print_logits and --no_special; give "
        "the question as --user TEXT");
  }
  if (!options.chats() && options.max_seq_length > 0)
    errors.emplace_back("--max_seq_length is the context of a chat; it needs --chat or --user");
  if (options.jsonl && (options.chats() || options.print_ids || options.print_logits || options.stream)) {
    errors.emplace_back(
        "--jsonl is for whole texts that continue a --prompt; leave out --chat, --user, --print_ids, "
        "--print_logits and --stream");
  }
  if (options.stream && prompts > 1)
    errors.push_back(fmt::format("--stream shows one prompt; {} are given", prompts));
}

int run(const Options& options) {
  GenerateRun generate = reading_input([&] { return GenerateRun(options); });
  return generate.run();
}

}  // namespace

Command generate_command() {
  CommandBuilder<Options> builder("generate",
                                  "Generate text from prompts with a model, a checkpoint or a run");
  builder.line.usage = "MODEL --prompt TEXT | --user TEXT | --chat [FLAGS]";
  builder.line.about =
      "Generates text: continues each --prompt with a model, answers a question (--user), or holds a conversation "
      "(--chat).\n"
      "A chat uses the template that the model was trained with. On a terminal, Ctrl-C stops an answer and Ctrl-D ends "
      "the chat; /reset, /system TEXT and /exit are commands. Otherwise each line of stdin is a message. If the "
      "context is full, the oldest messages are forgotten, and a line says so.";
  builder.word(&Options::model, {.name = "MODEL", .what = "model", .help = kModelHelp});
  KeyTable<Options>& keys = builder.keys;
  add_adapter_key(keys);
  keys.add("best", &Options::best, kBestHelp);
  keys.add("prompt", &Options::prompts, "Text to continue.").repeatable();
  keys.add("prompt_ids", &Options::prompt_ids, "Prompt as token ids, separated by spaces.")
      .repeatable()
      .value("\"1 2 3\"");
  keys.add("chat", &Options::chat, "Hold a conversation over the terminal or stdin.");
  keys.add("user", &Options::user, "A question. Prints the answer.").value("TEXT");
  keys.add("system", &Options::system, "System message of the chat.")
      .value("TEXT")
      .note("the one of the chat template, if it has one");
  spell_chat_templates(keys.add("chat_template", &Options::chat_template, chat_template_names(),
                                "How a conversation becomes text. auto: as the model was trained, or as its "
                                "folder says."))
      .alias("template");
  keys.add("max_seq_length", &Options::max_seq_length, "Context of a chat, in tokens.")
      .at_least(16)
      .at_most(1 << 24)
      .note("the positions of the model, at most 4096");
  keys.add("tokenizer", &Options::tokenizer, "bytes, a tokenizer file or folder, or a hub id.")
      .value("FILE_OR_FOLDER")
      .note("the tokenizer of the model");
  keys.add("max_new_tokens", &Options::max_new_tokens, "Maximum number of tokens to generate per prompt.")
      .at_least(1)
      .at_most(1e12)
      .alias("max_tokens")
      .note("64; in a chat 512");
  keys.add("temperature", &Options::temperature,
           "Sampling temperature. 0: always take the most likely token.")
      .at_least(0);
  keys.add("top_k", &Options::top_k, "Sample from the k most likely tokens. 0: from all tokens.").at_least(0);
  keys.add("top_p", &Options::top_p,
           "Sample from the most likely tokens whose probabilities add up to this. 1: from all tokens.")
      .at_least(0)
      .at_most(1);
  keys.add("seed", &Options::seed, "Random seed. The same seed gives the same text.").at_least(0);
  keys.add("print_ids", &Options::print_ids, "Print token ids instead of text.");
  keys.add("jsonl", &Options::jsonl, "Print only the new text of each prompt, as a JSON string on one line.");
  keys.add("stream", &Options::stream, "Print each token as soon as it is generated. For one prompt only.");
  keys.add("no_special", &Options::no_special,
           "Do not add the special tokens that the tokenizer puts before a text (BOS).");
  keys.add("ignore_eos", &Options::ignore_eos, "Continue after the end-of-text token.");
  keys.add("print_logits", &Options::print_logits,
           "Generate nothing. Print the logits after every prompt token as JSON, one line per prompt.");
  add_device_keys(keys, {"fp32", "bf16"});
  builder.check(check);
  return builder.command(run);
}

}  // namespace octet
