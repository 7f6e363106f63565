#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/key_search.h"
#include "base/text.h"
#include "command.h"
#include "config/config.h"
#include "import/flags.h"

namespace octet {
namespace {

constexpr size_t kShortWord = 4;  // "seed" and "name" are words of texts, too

// docs/configuration.md is this text, and a test holds it to that.
std::string configuration_markdown() {
  return fmt::format(
      "# Configuration\n\n"
      "<!-- Written by `octet keys --markdown > docs/configuration.md`; edit src/config/config_keys.cpp "
      "instead. -->\n\n"
      "`octet train [CONFIG.yaml] [--key value]...` reads keys from a YAML file and from flags.\n\n"
      "- The file is one flat map: `key: value` lines. Nested maps, duplicate keys and unknown keys are "
      "errors.\n"
      "- Every key is also a flag: `--key value` or `--key=value`. A bool may stand alone (`--require_fp8`). "
      "Dashes\n"
      "  count as underscores (`--max-steps`). Flags override the file. Other commands read their flags by "
      "the\n"
      "  same rules.\n"
      "- `--no_KEY` is the opposite of a bool `KEY` (`--no_require_fp8`). Choices are read in any case (`HYBRID`).\n"
      "- Write `--key=value` for a value that looks like a flag (`--sample_prompt=--help`).\n"
      "- An alias is another name of a key. A key and its alias together are an error.\n"
      "- `octet keys WORD` searches this page.\n"
      "- Numbers may be written as `6e-4`, and integers as `1e6` if the value is exact. `null` keeps the "
      "default.\n"
      "- A list is `[a, b]` in YAML and `a,b` as a flag.\n"
      "- The resolved `config.yaml` is written to the folder of the run. The same run can be started from "
      "it.\n"
      "- A wrong configuration ends the program with exit code 2 before anything starts. All errors are "
      "listed.\n"
      "{}",
      keys_markdown(train_keys().keys()));
}

// The name of a key is one word: `dataset` is none in "dataset_dir".
bool has_word(std::string_view text, std::string_view word) {
  const auto is_letter = [&](size_t at) {
    return at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) != 0 || text[at] == '_');
  };
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    if (!(at > 0 && is_letter(at - 1)) && !is_letter(at + word.size())) return true;
  }
  return false;
}

// Help for a key of another program: what octet makes of it, and octet's own keys. "" if nobody knows the key.
std::string foreign_key_help(const std::string& name) {
  if (!key_called(foreign_keys(), name)) return "";
  SettingsNotes notes;
  std::vector<std::string> texts;
  std::vector<KeySetting> own =
      translate_settings({{.name = name, .values = {"true"}, .place = ""}}, notes, texts);
  texts.insert(texts.end(), notes.notes.begin(), notes.notes.end());
  texts.insert(texts.end(), notes.warnings.begin(), notes.warnings.end());
  const std::string text = fmt::format("{}", fmt::join(texts, "\n"));
  std::vector<Key> named;
  for (const Key& key : train_keys().keys()) {
    const bool is_named =
        std::ranges::any_of(own, [&](const KeySetting& setting) { return setting.name == key.name; });
    if (is_named || (key.name.size() > kShortWord && has_word(text, key.name))) named.push_back(key);
  }
  return text + (text.empty() ? "" : "\n") + (named.empty() ? "" : keys_help(named));
}

struct Options {
  std::vector<std::string> words;
  bool markdown = false;
};

int run(const Options& options) {
  if (options.markdown) {
    fmt::print("{}", configuration_markdown());
    return kExitDone;
  }
  if (options.words.empty()) {
    fmt::print("{}", keys_help(train_keys().keys()).substr(1));
    return kExitDone;
  }
  const std::string query = fmt::format("{}", fmt::join(options.words, " "));
  const std::vector<Key> found = search_keys(train_keys().keys(), query);
  if (found.empty()) {
    const bool several = options.words.size() > 1;
    if (const std::string foreign = several ? "" : foreign_key_help(query); !foreign.empty()) {
      fmt::print("{}", foreign);
      return kExitDone;
    }
    const std::vector<std::string> similar =
        several ? std::vector<std::string>{} : similar_keys(train_keys().keys(), query);
    fail_config("no key has to do with {}'{}'; {}'octet keys' lists all keys", several ? "all words of " : "",
                printable(query), similar.empty() ? "" : fmt::format("did you mean '{}'? ", similar.front()));
  }
  fmt::print("{}", keys_help(found).substr(1));
  return kExitDone;
}

}  // namespace

Command keys_command() {
  CommandBuilder<Options> builder("keys", "List the configuration keys of 'octet train'");
  builder.line.about =
      "Lists the configuration keys of 'octet train'. With words, only the keys that have to do with all of them: "
      "'octet keys fp8', 'octet keys eval steps'.";
  builder.words(&Options::words,
                {.name = "WORD",
                 .what = "word",
                 .help = "Looked up in names, aliases, values and descriptions. Or a key of another program.",
                 .required = false});
  builder.keys.add("markdown", &Options::markdown,
                   "Print the page docs/configuration.md, which has all keys.");
  builder.check([](const Options& options, std::vector<std::string>& errors) {
    if (options.markdown && !options.words.empty())
      errors.emplace_back("--markdown prints all keys; give no words");
  });
  return builder.command(run);
}

}  // namespace octet
