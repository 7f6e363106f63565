// Whatever the bytes: as a configuration of another program they give a ConfigError, refusals, or settings; and the file
// that is written of these settings means the same run. The first byte chooses the program, 0 leaves it to be recognised.

#include "base/error.h"
#include "base/log.h"
#include "fuzz_support.h"
#include "import/flags.h"
#include "import/import.h"
#include "import/tools.h"

namespace {

using namespace octet;

// The run as text, or the message of the refusal.
std::string run_of(std::vector<KeySetting> settings, bool& is_accepted) {
  try {
    const TrainConfig config = load_train_config(
        FileSettings{.path = "fuzz.yaml", .settings = std::move(settings), .errors = {}}, {});
    is_accepted = true;
    return to_yaml(config);
  } catch (const ConfigError& error) {
    is_accepted = false;
    return error.what();
  }
}

// Refusals are answers of run_of(); any other error is a finding.
void check_written(const ImportResult& result) {
  std::vector<std::string> errors;
  const std::vector<KeySetting> written = parse_settings(import_yaml(result), "written.yaml", errors);
  expect(errors.empty());
  bool is_accepted = false, is_accepted_again = false;
  const std::string run = run_of(import_settings(result), is_accepted);
  const std::string again = run_of(written, is_accepted_again);
  expect(is_accepted == is_accepted_again);
  expect(!is_accepted || run == again);
}

void check(const ImportResult& result) {
  import_report(result);
  if (!refusals(result).empty()) return;
  must_succeed([&] { check_written(result); });
}

// Octet's own file with keys of other programs in it.
void check_translation(const std::string& text) {
  std::vector<std::string> errors;
  SettingsNotes notes;
  translate_settings(parse_settings(text, "fuzz.yaml", errors), notes, errors);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const LogSink silent = set_log_sink([](LogLevel, std::string_view) {});
  const auto [reader, text] = take_choice(data, size, tools().size() + 2);
  try {
    if (reader > tools().size()) {
      check_translation(text);
    } else {
      check(import_tree(parse_tree(text, "fuzz.yaml"), reader == 0 ? nullptr : tools()[reader - 1]));
    }
  } catch (const ConfigError&) {
  }
  return 0;
}
