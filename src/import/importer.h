#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/keys.h"
#include "import/tree.h"

namespace octet {

// What becomes of a key of another program:
//   Mapped   octet has it, maybe under another name or value
//   Derived  used to work out other settings
//   Ignored  safe to leave out: it has no meaning here, or octet always does it
//   Warned   left out, but it had an effect there
//   Refused  changes what is trained, and octet cannot do it: nothing is imported
enum class Fate { Mapped, Derived, Ignored, Warned, Refused };

class Importer;
// Decides about one value: calls map, derive, ignore, warn or refuse once, or else the value counts as derived.
using ValueRule = void (*)(Importer&, const TreeLeaf&);

// What becomes of some values of a key.
struct KeyCase {
  std::vector<std::string_view> values;  // words, numbers, null or off; empty: all others
  Fate fate = Fate::Ignored;
  std::string_view octet_key = "";  // Mapped: the key, if it is not that of the row
  std::string_view value = "";      // Mapped: instead of the given one
  std::string_view reason = "";     // one short sentence without a full stop
};

// A row of a tool's table: a rule or cases. See key_table.h.
struct ToolKey {
  std::string_view name;            // dotted. "*": any one part; "**" as the last part: everything below
  std::string_view octet_key = "";  // if it has another name than here
  ValueRule rule = nullptr;
  std::vector<KeyCase> cases = {};  // the first that fits decides
  bool is_switch = false;           // as a flag it may stand alone: --overwrite_output_dir

  std::string_view target() const { return octet_key.empty() ? name : octet_key; }
};

// A default of the tool that differs from octet's. It is written out unless the key, or one of `unless` (separated by
// spaces), was set.
struct ToolDefault {
  std::string_view octet_key;
  std::string_view value;
  std::string_view unless = "";
};

struct Tool {
  std::string_view name;  // "LLaMA-Factory"
  std::string_view word;  // of octet import --format
  std::span<const ToolKey> keys;
  std::span<const ToolDefault> defaults;
  // How sure it is that a file belongs to this tool: 0 not at all, 100 certain.
  int (*score)(const SettingsTree&) = nullptr;
  // Called after the keys and before the defaults, for everything that depends on several keys: may be nullptr.
  void (*finish)(Importer&) = nullptr;
  bool auto_is_unset = false;  // the value "auto" means that another program fills it in
};

struct Verdict {
  TreeLeaf leaf;
  Fate fate = Fate::Ignored;
  std::string key;     // Mapped: the key of octet
  std::string octet;   // Mapped: "max_seq_length 2048"
  std::string reason;  // may be empty if Mapped
};

// A known mistake: what the setting does in that tool, and what octet does instead.
struct Finding {
  std::string name;   // short, with dashes: "deepspeed-fp8-section"
  std::string where;  // "fp8 in ds.json:4"; may be empty
  std::string there;
  std::string here;
  bool is_note = false;  // a difference rather than a mistake: only 'octet import' shows it
};

// A setting of octet, and where it came from.
struct ImportedSetting {
  std::string key;
  std::vector<std::string> values;  // one, unless is_list
  bool is_list = false;
  std::string block;    // if not empty: YAML lines that stand below "key:" instead of values
  std::string comment;  // "cutoff_len", "default of LLaMA-Factory"
  std::string place;    // "run.yaml:3"; empty: from the command line, or a default
};

// The setting as load_train_config takes it, at the place of the other program's file. What is wrong with a block is
// added to `errors`. `file` is its place where it has none.
std::vector<KeySetting> key_settings(const ImportedSetting& setting, const std::string& file,
                                     std::vector<std::string>& errors);

struct ImportResult {
  std::string tool;
  std::string file;
  std::vector<ImportedSetting> settings;
  std::vector<Verdict> verdicts;
  std::vector<Finding> findings;

  size_t count(Fate fate) const;
  const ImportedSetting* find(std::string_view key) const;
  std::string value(std::string_view key) const;  // "" if not set; lists with commas
};

// Works through a tree with a tool's table. Rules and finish functions see it as the place to look things up and to
// put results.
class Importer {
 public:
  // `with_defaults`: write out the tool's defaults, and treat the tree as a whole configuration.
  Importer(const Tool& tool, SettingsTree tree, bool with_defaults = true);

  // Rows, finish, defaults; then checks the values against octet's keys.
  ImportResult run();

  const SettingsTree& tree() const { return *tree_; }  // the one being worked on
  const SettingsTree& main_tree() const { return main_; }
  const Tool& tool() const { return *tool_; }
  bool is_included() const { return tree_ != &main_; }  // within include()
  bool has_defaults() const { return with_defaults_; }

  // Verdicts. map also sets the key.
  void map(const TreeLeaf& leaf, std::string_view key, std::string value, std::string reason = "");
  void map_list(const TreeLeaf& leaf, std::string_view key, std::vector<std::string> values,
                std::string reason = "");
  void derive(const TreeLeaf& leaf, std::string reason) { judge(leaf, Fate::Derived, std::move(reason)); }
  void ignore(const TreeLeaf& leaf, std::string reason) { judge(leaf, Fate::Ignored, std::move(reason)); }
  void warn(const TreeLeaf& leaf, std::string reason) { judge(leaf, Fate::Warned, std::move(reason)); }
  void refuse(const TreeLeaf& leaf, std::string reason) { judge(leaf, Fate::Refused, std::move(reason)); }

  // Settings without a verdict; a key that is set already gets the new value.
  void set(std::string_view key, std::string value, std::string comment, std::string place = "");
  void set(ImportedSetting setting);
  void unset(std::string_view key);
  bool is_set(std::string_view key) const { return result_.find(key) != nullptr; }
  std::string value(std::string_view key) const { return result_.value(key); }
  void find(Finding finding);  // once per name
  void find(std::string name, const TreeLeaf& leaf, std::string there, std::string here);
  // True if the leaf asks for nothing, which is then its verdict.
  bool skips_off(const TreeLeaf& leaf);
  bool skips_null(const TreeLeaf& leaf);

  // Calls the function after all rows of the tree at hand, before finish: for what depends on keys further down.
  void later(std::function<void(Importer&)> function) { later_.push_back(std::move(function)); }

  // Works through another file that the first one names, with the table of its tool, into the same result.
  // `prefix`: where the tree stands in the first file ("deepspeed."), or "".
  void include(const Tool& tool, const SettingsTree& tree, std::string prefix = "");

  // The row that knows a key of this tool, or nullptr. Of several patterns, the longest.
  static const ToolKey* row_of(const Tool& tool, std::string_view name);

 private:
  void work_through();
  void judge(const TreeLeaf& leaf, Fate fate, std::string reason, std::string key = "",
             std::string octet = "");
  void apply_row(const ToolKey& row, const TreeLeaf& leaf);
  void apply_case(const ToolKey& row, const KeyCase& chosen, const TreeLeaf& leaf);
  void apply_section(const ToolKey& row, const TreeLeaf& leaf);
  void apply_unknown(const TreeLeaf& leaf);
  void set_own_keys();
  void check_values();
  void mark_superseded();

  const Tool* tool_;
  SettingsTree main_;
  const SettingsTree* tree_;
  bool with_defaults_;
  bool judged_ = false;  // the leaf at hand
  std::string prefix_;   // before the names of the tree at hand
  std::vector<std::function<void(Importer&)>> later_;
  ImportResult result_;
};

}  // namespace octet
