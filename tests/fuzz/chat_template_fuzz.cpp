// Whatever the bytes: as a chat template and, behind a NUL byte, a record with messages they give an Error; or a style
// whose own template is recognised again, and a text that a prompt begins with. Bytes that begin with a brace are a
// tokenizer_config.json instead.

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/chat_style.h"
#include "data/chat_fixture.h"
#include "data/temporary_folder.h"
#include "fuzz_support.h"

namespace {

using namespace octet;

void check_conversation(const ChatRenderer& renderer, const std::string& text) {
  const std::unique_ptr<RecordReader> reader = json_lines(memory_byte_stream(text, "fuzz"));
  Record record;
  while (reader->next(record)) {
    const FormatColumns columns = choose_format({}, columns_of(record.value), "fuzz]");
    const Conversation conversation = conversation_of(record.value, columns, "fuzz]", record.json_text);
    const std::string whole = text_of(renderer.render(conversation));
    expect(find_invalid_utf8(whole) == std::string_view::npos);
    expect(text_of(renderer.prompt(conversation)).starts_with(whole));
  }
}

void check_style(const ChatStyle& style, const Tokenizer& tokenizer, const std::string& records) {
  const ChatRenderer renderer(style, tokenizer, parse_loss_roles("completion"));
  must_succeed([&] {
    const std::optional<ChatStyle> again = recognise_chat_template(renderer.jinja());
    expect(again && again->chat_template == renderer.chat_template());
    expect(again->default_system == style.default_system);
    expect(chat_style_from_json(to_chat_json(style), "written") == style);
  });
  check_conversation(renderer, records);
}

// As the files of a model's folder.
void check_folder(const std::string& text, const Tokenizer& tokenizer) {
  static const TemporaryFolder folder;
  folder.write("tokenizer_config.json", text);
  folder.write("generation_config.json", text);
  ModelFolder model;
  model.folder = folder.path();
  model.config.vocab = 300;
  for (const int32_t id : end_ids_of(model, nullptr, nullptr)) expect(id >= 0 && id < model.config.vocab);
  find_chat_jinja(model);
  if (const ModelChat chat = find_chat_style(model); chat.style) check_style(*chat.style, tokenizer, "");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const LogSink silent = set_log_sink([](LogLevel, std::string_view) {});
  static const std::unique_ptr<Tokenizer> tokenizer = all_chats_tokenizer();
  static const std::vector<std::string> names = chat_template_names();
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    if (text.starts_with("{\"") || text.starts_with("{\n")) {
      check_folder(text, *tokenizer);
      return 0;
    }
    const size_t cut = std::min(text.find('\0'), text.size());
    const std::string jinja = text.substr(0, cut), records = text.substr(std::min(cut + 1, text.size()));
    // A template that is none of those may be the name of one.
    std::optional<ChatStyle> style = recognise_chat_template(jinja);
    if (!style) style = ChatStyle{.chat_template = parse_chat_template(jinja)};
    check_style(*style, *tokenizer, records);
  } catch (const Error&) {
  }
  return 0;
}
