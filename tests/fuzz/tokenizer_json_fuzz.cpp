// Whatever the bytes: as a tokenizer.json they give an Error or a tokenizer that keeps its promises, and as
// text they come back from every pattern, whole and streamed.

#include <cstdlib>

#include "base/error.h"
#include "base/log.h"
#include "data/tiny_tokenizer.h"
#include "data/tokenizer/hf_tokenizer.h"
#include "data/tokenizer/stream_decoder.h"
#include "data/tokenizer/unicode.h"

namespace {

using namespace octet;

void expect(bool condition) {
  if (!condition) std::abort();
}

void check_text(const Tokenizer& tokenizer, std::string_view text, bool exact) {
  const std::vector<int32_t> ids = tokenizer.encode(text);
  const std::string back = tokenizer.decode(ids);
  if (exact) expect(back == text);
  StreamDecoder decoder(tokenizer);
  std::string streamed;
  for (const int32_t id : ids) {
    const std::string piece = decoder.push(id);
    expect(repair_utf8(piece) == piece);
    streamed += piece;
  }
  expect(streamed + decoder.finish() == repair_utf8(back));
}

std::vector<std::unique_ptr<Tokenizer>> make_tokenizers() {
  std::vector<std::unique_ptr<Tokenizer>> tokenizers;
  nlohmann::json file = tiny_tokenizer({{"a", "a"}, {"aa", "a"}, {" ", "a"}, {"\xC3", "\xA9"}, {"\n", "\n"}});
  file["added_tokens"] = nlohmann::json::array({added_token(300, "<s>", {"special"})});
  const auto add = [&] {
    tokenizers.push_back(std::make_unique<ByteLevelTokenizer>(parse_tokenizer_json(file.dump(), "tiny")));
  };
  add();
  file["pre_tokenizer"] = split_pre_tokenizer(kLlama3Pattern);
  add();
  file["model"]["ignore_merges"] = true;
  add();
  return tokenizers;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<std::unique_ptr<Tokenizer>> tokenizers = make_tokenizers();
  static const LogSink silent = set_log_sink([](LogLevel, std::string_view) {});
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const auto& tokenizer : tokenizers) check_text(*tokenizer, text, true);
  const std::string composed = to_nfc(text);
  expect(to_nfc(composed) == composed);
  expect(!surely_nfc(text) || composed == text);
  try {
    check_text(*make_json_tokenizer(text, "fuzz"), text, false);
  } catch (const Error&) {
  }
  return 0;
}
