#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/keys.h"
#include "config/config.h"
#include "import/importer.h"

namespace octet {

// Reads a configuration of another program and translates it, with a given tool or, if nullptr, the one that is
// recognised. A file that is octet's own, of no known program, or without any key that means something is a
// ConfigError. Refused keys are in the result: see refusals.
ImportResult import_file(const std::string& path, const Tool* tool = nullptr);
ImportResult import_tree(SettingsTree tree, const Tool* tool = nullptr);

// One message per refused key, with its place and reason. If there are any, the result must not be used.
std::vector<std::string> refusals(const ImportResult& result);

// How a file that import_yaml made begins.
inline constexpr const char* kImportHeader = "# Made by 'octet import'";

// The result as a configuration file of octet, every value with a comment that says where it came from.
std::string import_yaml(const ImportResult& result);
// Every key with its fate and reason, the findings and the summary; ends with a newline.
std::string import_report(const ImportResult& result);
// "41 keys: 20 mapped, 3 derived, 16 ignored, 2 warned of, 0 refused; 9 defaults of LLaMA-Factory written out"
std::string import_summary(const ImportResult& result);
std::string finding_text(const Finding& finding);
// What a run needs and the file does not say: "no model and no dataset are named..."; "" if it says enough.
std::string missing_parts(const ImportResult& result);

// The result as settings that load_train_config takes. Their places are those of the other program's file.
std::vector<KeySetting> import_settings(const ImportResult& result);

// The settings of a configuration file that a command was given: octet's own, or of a program that is recognised. What
// was done with the keys of other programs goes to `notes` (one line each) and `warnings`.
struct SettingsNotes {
  std::vector<std::string> notes, warnings;
};
void log_notes(const SettingsNotes& notes);
FileSettings read_run_file(const std::string& path, SettingsNotes& notes);
// The same, and logs the notes and warnings.
FileSettings read_run_file(const std::string& path);

}  // namespace octet
