// Whatever the bytes: as a SentencePiece model they give an Error or a tokenizer that keeps its promises.

#include <cstdlib>

#include "base/error.h"
#include "data/tokenizer/sentencepiece_files.h"
#include "data/tokenizer/stream_decoder.h"

namespace {

using namespace octet;

void check_text(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<int32_t> ids = tokenizer.encode(text);
  const std::string back = tokenizer.decode(ids);
  StreamDecoder decoder(tokenizer);
  std::string streamed;
  for (const int32_t id : ids) streamed += decoder.push(id);
  if (streamed + decoder.finish() != repair_utf8(back)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const SentencePieceTokenizer tokenizer(parse_sentencepiece_model(bytes, "fuzz"));
    check_text(tokenizer, bytes);
    check_text(tokenizer, " a  b\xE2\x96\x81\xC3\xA9\n");
  } catch (const Error&) {
  }
  return 0;
}
