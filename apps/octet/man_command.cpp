#include <fmt/format.h>

#include <algorithm>

#include "base/keys_text.h"
#include "base/version.h"
#include "command.h"
#include "config/config.h"

namespace octet {
namespace {

// Text for roff: its control characters are escaped, and dashes are those of a command line.
std::string roff(std::string_view text) {
  constexpr std::string_view kSpecial = "\\-'`^~";
  constexpr std::string_view kEscapes[] = {"\\e", "\\-", "\\(aq", "\\(ga", "\\(ha", "\\(ti"};
  std::string result;
  bool line_starts = true;
  for (const char c : text) {
    if (line_starts && (c == '.' || c == '\'')) result += "\\&";
    line_starts = c == '\n';
    const size_t at = kSpecial.find(c);
    result += at == kSpecial.npos ? std::string_view(&c, 1) : kEscapes[at];
  }
  return result;
}

std::string section(std::string_view title) {
  std::string upper(title);
  std::ranges::transform(upper, upper.begin(),
                         [](char c) { return c >= 'a' && c <= 'z' ? char(c - 32) : c; });
  return fmt::format(".SH \"{}\"\n", roff(upper));
}

std::string paragraphs(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) result += fmt::format(".PP\n{}\n", roff(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result;
}

std::string entry(std::string_view head, std::string_view text, std::string_view limits = "") {
  std::string result = fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(head), roff(text));
  if (!limits.empty()) result += fmt::format("{}\n", roff(limits));
  return result;
}

std::string entries(std::span<const Key> keys, bool with_groups) {
  std::string text;
  std::string_view group;
  for (const Key& key : keys) {
    if (with_groups && key.group != group) {
      group = key.group;
      text += fmt::format(".SS \"{}\"\n", roff(group));
    }
    text += entry(flag_text(key), key.help, limits_of(key));
  }
  return text;
}

std::string command_section(const CommandLine& line) {
  std::string text = fmt::format(".SS \"octet {}\"\n", roff(line.name));
  text += fmt::format(".PP\n\\fBoctet {}\\fR {}\n", roff(line.name), roff(usage_of(line)));
  text += paragraphs(line.about.empty() ? line.summary + "." : line.about);
  for (const Positional& word : line.words) text += entry(word.name + (word.many ? "..." : ""), word.help);
  text += entries(line.keys, false);
  if (line.run_keys != RunKeys::No)
    text += paragraphs("All keys of 'octet train' may be given, too: see KEYS.");
  return text + paragraphs(line.notes);
}

std::string man_page() {
  std::string text = fmt::format(
      ".\\\" Made by 'octet man'.\n.TH OCTET 1 \"\" \"octet {}\" \"User Commands\"\n", octet_version());
  text += ".nh\n.ad l\n";
  text += section("Name") + "octet \\- train language models in FP8\n";
  text += section("Synopsis") + "\\fBoctet\\fR \\fICOMMAND\\fR [\\fIARGUMENTS\\fR]\n";
  text += section("Description");
  text += paragraphs(
      "octet pretrains and fine-tunes decoder-only language models in FP8, BF16 or FP32, on NVIDIA GPUs and on the CPU. "
      "'octet train' without arguments trains a built-in demo.\n"
      "All commands read flags by the same rules: --key value or --key=value. Dashes in a name count as underscores. A "
      "bool flag may stand alone, and --no_KEY is its opposite. Every word after -- is an argument, not a flag.");
  text += section("Commands");
  for (const Command& command : commands()) text += command_section(command.line);
  text += section("Keys");
  text += paragraphs("Each key may be set in CONFIG.yaml or as a flag. Flags override the file.");
  text += entries(train_keys().keys(), true);
  text += section("Exit status");
  for (const ExitCodeText& each : exit_code_texts()) text += entry(each.code, each.meaning);
  text += section("Environment");
  text += entry("OCTET_PYTHON",
                "Python that 'octet tensorboard' and use_wandb start. Default: python3 on the PATH.");
  text += entry("OCTET_WANDB_WAIT",
                "Seconds to wait for W&B at the end of a run. Default: 60, and 10 after a stop.");
  text += entry("WANDB_API_KEY, WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY", "Read if use_wandb is set.");
  text += entry(
      "OCTET_CACHE",
      "Folder for everything that octet keeps between runs. Default: $XDG_CACHE_HOME/octet or ~/.cache/octet.");
  text += entry("CUDA_VISIBLE_DEVICES", "GPUs that octet may use.");
  text += entry("OMP_NUM_THREADS", "CPU threads, unless num_threads is set.");
  text += entry("HF_HOME, HF_TOKEN, HF_ENDPOINT", "Cache, token and address of the Hugging Face hub.");
  text += section("Files");
  text += entry("runs/NAME",
                "Folder of a run: config.yaml, metrics.jsonl, event files of TensorBoard, checkpoints.");
  return text;
}

struct Options {};

int run(const Options&) {
  fmt::print("{}", man_page());
  return kExitDone;
}

}  // namespace

Command man_command() {
  CommandBuilder<Options> builder("man", "Print the manual page");
  builder.line.about =
      "Prints the manual page octet(1), with all commands and keys, in roff. 'make install' installs it. To read it "
      "without installing: octet man > octet.1 && man ./octet.1";
  return builder.command(run);
}

}  // namespace octet
