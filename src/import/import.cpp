#include "import/import.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/config_text.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "import/flags.h"
#include "import/tools.h"

namespace octet {

ImportResult import_tree(SettingsTree tree, const Tool* tool) {
  if (tree.leaves.empty()) fail_config("{} is empty; there is nothing to import", tree.file);
  if (!tool) tool = tool_of(tree);
  if (!tool) {
    if (is_own_configuration(tree)) {
      fail_config("{} has only keys of octet: there is nothing to import; use it with 'octet train {}'{}",
                  tree.file, tree.file,
                  could_be_hf_trainers(tree)
                      ? ". All its keys are the Hugging Face Trainer's, too: --format hf reads "
                        "it with the defaults of that"
                      : "");
    }
    fail_config("{} is not recognised as a configuration of {}", tree.file, tool_names());
  }
  ImportResult result = Importer(*tool, std::move(tree)).run();
  const bool has_meaning = std::ranges::any_of(result.verdicts, [](const Verdict& verdict) {
    return verdict.fate != Fate::Warned && verdict.fate != Fate::Ignored;
  });
  if (!has_meaning && result.count(Fate::Warned) > 0) {
    const Verdict& first = *std::ranges::find(result.verdicts, Fate::Warned, &Verdict::fate);
    fail_config(
        "{} looks like a configuration of {}, but none of its {} keys says anything about a run; the first, {}, "
        "is {}",
        result.file, tool->name, result.verdicts.size(), first.leaf.describe(), first.reason);
  }
  return result;
}

ImportResult import_file(const std::string& path, const Tool* tool) {
  return import_tree(read_tree_file(path), tool);
}

namespace {

// Own files are read as strictly as ever, apart from keys of other programs.
FileSettings read_own(const std::string& path, const std::string& text, SettingsNotes& notes) {
  FileSettings file{.path = path, .settings = {}, .errors = {}};
  file.settings = translate_settings(parse_settings(text, printable(path), file.errors), notes, file.errors);
  return file;
}

}  // namespace

FileSettings read_run_file(const std::string& path, SettingsNotes& notes) {
  if (path.empty()) return {};
  const std::string text = read_config_text(path, "YAML");  // once: it may be a pipe
  SettingsTree tree;
  try {
    tree = parse_tree(text, printable(path));
  } catch (const ConfigError&) {
    return read_own(path, text, notes);  // finds the same fault
  }
  const Tool* tool = tool_of(tree);
  if (!tool) {
    if (!tree.leaves.empty() && could_be_hf_trainers(tree)) {
      notes.notes.push_back(fmt::format(
          "{} is read as a configuration of octet, with octet's defaults; all its keys are the Hugging Face Trainer's, "
          "too: 'octet import {} --format hf' gives the same run with the defaults of that",
          printable(path), printable(path)));
    }
    return read_own(path, text, notes);
  }
  const ImportResult result = import_tree(std::move(tree), tool);
  FileSettings file{.path = path, .settings = {}, .errors = refusals(result)};
  if (!file.errors.empty()) return file;
  file.settings = import_settings(result);
  notes.notes.push_back(fmt::format("{} is a configuration of {}; {} ('octet import {}' shows all)",
                                    printable(path), result.tool, import_summary(result), printable(path)));
  for (const Verdict& verdict : result.verdicts) {
    if (verdict.fate == Fate::Warned) {
      notes.warnings.push_back(
          fmt::format("{} is {}: {}", verdict.leaf.describe(), verdict.leaf.shown(), verdict.reason));
    } else if (verdict.fate == Fate::Derived && verdict.leaf.name == "num_processes") {
      notes.notes.push_back(
          fmt::format("{}: {}", verdict.leaf.describe(), verdict.reason));  // octet starts one
    }
  }
  if (const std::string missing = missing_parts(result); !missing.empty()) notes.notes.push_back(missing);
  for (const Finding& finding : result.findings) {
    const bool is_told = std::ranges::any_of(result.verdicts, [&](const Verdict& verdict) {
      return verdict.fate == Fate::Warned && verdict.leaf.describe() == finding.where;
    });
    if (!finding.is_note && !is_told) notes.warnings.push_back(finding_text(finding));
  }
  return file;
}

FileSettings read_run_file(const std::string& path) {
  SettingsNotes notes;
  FileSettings file = read_run_file(path, notes);
  log_notes(notes);
  return file;
}

void log_notes(const SettingsNotes& notes) {
  for (const std::string& note : notes.notes) log_info("{}", note);
  for (const std::string& warning : notes.warnings) log_warning("{}", warning);
}

}  // namespace octet
