#include "plan/data_note.h"

#include "base/safe_text.h"
#include "base/text.h"
#include "plan/marked_text.h"

namespace octet {
namespace {

std::string option_of(const DatasetManifest& manifest, const char* key) {
  const auto found = manifest.options.find(key);
  return found != manifest.options.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

DatasetNote note_of(const std::string& dataset, const DatasetManifest& manifest, std::span<const Shard> train,
                    const Tokenizer& tokenizer) {
  DatasetNote note{.dataset = dataset};
  const bool is_text = manifest.format == name_of(ExampleFormat::Text);
  note.is_text = is_text;
  note.format =
      manifest.columns.empty() ? manifest.format : fmt::format("{} ({})", manifest.format, manifest.columns);
  const std::string train_on = option_of(manifest, "train_on");
  note.loss = loss_text(train_on.empty() ? "completion" : train_on, is_text);
  if (!is_text && !manifest.chat_template.empty()) {
    ChatStyle style{.chat_template = parse_chat_template(manifest.chat_template)};
    const auto system = manifest.options.find("default_system");
    if (system != manifest.options.end() && system->is_string() && *system != "auto")
      style.default_system = system->get<std::string>();
    // A tokenizer that is not at hand has no ids.
    if (tokenizer.vocab_size() > 0) note.system = ChatRenderer(style, tokenizer, {}).default_system();
    note.chat = std::move(style);
  }
  for (const auto& [reason, records] : manifest.skipped)
    note.skipped += fmt::format("{}{} {}", note.skipped.empty() ? "" : ", ", records, reason);
  for (const Shard& shard : train) {
    if (shard.counts().documents == 0) continue;
    // Enough to show: a document may be a book.
    constexpr int64_t kMost = 4096;
    const auto length = static_cast<size_t>(std::clamp<int64_t>(shard.document_length(0), 0, kMost));
    note.first = {std::vector<int32_t>(length), std::vector<uint8_t>(length)};
    shard.read(shard.document_start(0), note.first.tokens);
    shard.read_targets(shard.document_start(0), note.first.is_target);
    break;
  }
  return note;
}

std::string loss_text(const std::string& train_on, bool is_text) {
  if (is_text) return "on the whole text";
  if (train_on == "completion") return "on the assistant's messages (train_on completion)";
  if (train_on == "all") return "on everything (train_on all)";
  return fmt::format("on the messages of {} (train_on)", train_on);
}

std::string tokenizer_text(const std::string& name, const Tokenizer& tokenizer) {
  if (name == "bytes") {
    return "bytes: every byte is a token; for a larger vocabulary pass --tokenizer with the folder of a model or a "
           "tokenizer.json";
  }
  return fmt::format("{}, {} tokens", name, tokenizer.vocab_size());
}

std::vector<std::pair<std::string, std::string>> note_lines(const DatasetNote& note) {
  std::vector<std::pair<std::string, std::string>> lines;
  std::string format = note.format;
  if (note.chat) {
    format += fmt::format("; chat template {}", name_of(note.chat->chat_template));
    if (!note.system.empty()) format += fmt::format("; default system \"{}\"", printable(note.system));
  }
  lines.emplace_back("format", format);
  lines.emplace_back("loss", note.loss);
  if (!note.skipped.empty()) lines.emplace_back("skipped", fmt::format("records: {}", note.skipped));
  return lines;
}

std::string first_example_text(const DatasetNote& note, const Tokenizer& tokenizer, bool color) {
  constexpr size_t kMost = 600;
  if (note.first.tokens.empty()) return "";
  return fmt::format(
      "first example of {} ({}; {}):\n{}\n", terminal_safe(note.dataset), marked_counts(note.first),
      color ? "trained tokens in green" : "trained tokens in [[ ]]",
      marked_text(note.first, tokenizer, color ? MarkStyle::Color : MarkStyle::Brackets, kMost));
}

}  // namespace octet
