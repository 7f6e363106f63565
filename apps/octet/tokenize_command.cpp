#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/input_errors.h"
#include "command.h"
#include "data/tokenizer/stream_decoder.h"
#include "data/tokenizer/tokenizer.h"

namespace octet {
namespace {

struct Options {
  std::string tokenizer;     // as make_tokenizer takes it
  bool decode = false;       // ids on stdin, text on stdout
  bool add_special = false;  // with what the model expects around a text
  bool jsonl = false;        // one text per line as a JSON string, one line of ids for each
  int64_t bench = 0;  // encode the input so many times and print how long each took, as JSON, and no ids
};

std::string read_stdin() {
  std::string text;
  size_t used = 0;
  for (;;) {
    text.resize(std::max<size_t>(size_t{1} << 16, used * 2));
    const size_t got = std::fread(text.data() + used, 1, text.size() - used, stdin);
    used += got;
    if (got == 0) break;
  }
  if (std::ferror(stdin)) fail("[stdin] cannot be read");
  text.resize(used);
  return text;
}

void write_stdout(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    fail("[stdout] cannot be written");
}

void append_ids(std::string& out, const std::vector<int32_t>& ids) {
  char digits[16];
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out.push_back(' ');
    const auto end = std::to_chars(digits, digits + sizeof(digits), ids[i]);
    out.append(digits, end.ptr);
  }
  out.push_back('\n');
}

std::vector<int32_t> parse_ids(std::string_view text) {
  std::vector<int32_t> ids;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at != end) {
    if (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t') {
      ++at;
      continue;
    }
    int32_t id = 0;
    const auto parsed = std::from_chars(at, end, id);
    const bool ends = parsed.ptr == end || *parsed.ptr == ' ' || *parsed.ptr == '\n' || *parsed.ptr == '\r' ||
                      *parsed.ptr == '\t';
    if (parsed.ec != std::errc() || !ends)
      fail("[stdin] byte {}: expected ids separated by spaces", at - text.data());
    ids.push_back(id);
    at = parsed.ptr;
  }
  return ids;
}

std::string json_text(std::string_view line, size_t number) {
  // Only a string is parsed, so that nesting cannot grow the stack.
  if (line.empty() || line.front() != '"') fail("[stdin] line {}: expected a JSON string", number);
  const nlohmann::json value = nlohmann::json::parse(line, nullptr, false);
  if (!value.is_string()) fail("[stdin] line {}: expected a JSON string", number);
  return value.get<std::string>();
}

template <class Function>
void for_each_line(std::string_view input, Function&& function) {
  for (size_t number = 1; !input.empty(); ++number) {
    const size_t end = std::min(input.find('\n'), input.size());
    function(input.substr(0, end), number);
    input.remove_prefix(std::min(end + 1, input.size()));
  }
}

class TokenizeRun {
 public:
  explicit TokenizeRun(const Options& options)
      : options_(options), tokenizer_(make_tokenizer(options.tokenizer)) {}

  void encode(std::string_view text, std::string& out) const {
    std::vector<int32_t> ids = tokenizer_->encode(text);
    if (options_.add_special) ids = tokenizer_->add_special(std::move(ids));
    append_ids(out, ids);
  }

  void run_lines(std::string_view input, std::string& out) const {
    for_each_line(input, [&](std::string_view line, size_t number) {
      if (options_.decode) {
        out += nlohmann::json(repair_utf8(tokenizer_->decode(parse_ids(line)))).dump();
        out.push_back('\n');
      } else {
        encode(json_text(line, number), out);
      }
    });
  }

  std::string run_bench(std::string_view input) const {
    std::vector<std::string> texts;
    if (options_.jsonl) {
      for_each_line(input,
                    [&](std::string_view line, size_t number) { texts.push_back(json_text(line, number)); });
    } else {
      texts.emplace_back(input);
    }
    nlohmann::json seconds = nlohmann::json::array(), cpu_seconds = nlohmann::json::array();
    size_t bytes = 0, tokens = 0;
    for (const std::string& text : texts) bytes += text.size();
    for (int64_t repeat = 0; repeat < options_.bench; ++repeat) {
      tokens = 0;
      const auto start = std::chrono::steady_clock::now();
      const std::clock_t cpu_start = std::clock();
      for (const std::string& text : texts) tokens += tokenizer_->encode(text).size();
      cpu_seconds.push_back(static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC);
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return nlohmann::json{
               {"bytes", bytes}, {"tokens", tokens}, {"seconds", seconds}, {"cpu_seconds", cpu_seconds}}
               .dump() +
           "\n";
  }

  std::string run(std::string_view input) const {
    std::string out;
    if (options_.bench > 0) {
      out = run_bench(input);
    } else if (options_.jsonl) {
      run_lines(input, out);
    } else if (options_.decode) {
      out = tokenizer_->decode(parse_ids(input));
    } else {
      encode(input, out);
    }
    return out;
  }

 private:
  const Options& options_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

void check(const Options& options, std::vector<std::string>& errors) {
  if (options.decode && options.add_special)
    errors.emplace_back("--add_special cannot be used with --decode");
  if (options.decode && options.bench > 0) errors.emplace_back("--bench cannot be used with --decode");
}

int run(const Options& options) {
  const TokenizeRun tokenize = reading_input([&] { return TokenizeRun(options); });
  const std::string input = read_stdin();
  write_stdout(reading_input([&] { return tokenize.run(input); }));
  return kExitDone;
}

}  // namespace

Command tokenize_command() {
  CommandBuilder<Options> builder("tokenize", "Turn the text on stdin into token ids, or ids into text");
  builder.line.about =
      "Reads text on stdin and prints its token ids on one line, separated by spaces. With --decode it "
      "reads ids and prints their text, byte for byte.";
  builder.keys
      .add("tokenizer", &Options::tokenizer,
           "bytes, a tokenizer.json, a vocab.json next to its merges.txt, a tiktoken rank file, or a "
           "folder with one of these.")
      .value("FILE_OR_FOLDER")
      .must_be_given();
  builder.keys.add("decode", &Options::decode, "Read ids and print their text.");
  builder.keys.add("add_special", &Options::add_special,
                   "Add the special tokens that the model expects around a text, such as BOS.");
  builder.keys.add(
      "jsonl", &Options::jsonl,
      "Read one JSON string per line and print one line of ids for each. With --decode, the reverse; "
      "bytes that are not UTF-8 become U+FFFD.");
  builder.keys
      .add("bench", &Options::bench,
           "Encode the input this many times and print the times as JSON instead of ids.")
      .at_least(0)
      .at_most(1e6);
  builder.check(check);
  return builder.command(run);
}

}  // namespace octet
