#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

// A value of another program's configuration, with the way to it as a dotted name: zero_optimization.stage,
// datasets.0.path. A list of plain values is one leaf; a list with maps in it is indexed.
struct TreeLeaf {
  enum class Kind { Scalar, Null, List, EmptyMap };
  std::string name;
  Kind kind = Kind::Scalar;
  std::string text;                // Scalar: as written, without quotes
  std::vector<std::string> items;  // List
  bool is_quoted = false;          // Scalar: "true" is a word, true is a bool
  std::string place;               // "run.yaml:3"; empty on the command line

  bool is_null() const { return kind == Kind::Null; }
  // null, false, 0, none, "", an empty list or map: the feature is not asked for.
  bool is_off() const;
  bool is_auto() const;              // DeepSpeed's "auto": the trainer fills it in
  std::optional<bool> flag() const;  // also of "True" and "yes"
  std::optional<double> number() const;
  // The values of a list, or of a text with commas.
  std::vector<std::string> list() const;
  std::string shown() const;     // for messages, shortened
  std::string describe() const;  // "stage in run.yaml:3" or "--stage"
};

// A configuration of another program, flattened, in the order of the file.
struct SettingsTree {
  std::string file;  // as shown in messages; empty for the command line
  std::vector<TreeLeaf> leaves;

  const TreeLeaf* find(std::string_view name) const;
  // A leaf of this name, or anything below it.
  bool has(std::string_view name) const;
  // The text of a scalar; "" if there is none, it is null or not a scalar.
  std::string text(std::string_view name) const;
  std::optional<bool> flag(std::string_view name) const;
  std::optional<double> number(std::string_view name) const;
  // Whether the value is there and asks for something.
  bool is_on(std::string_view name) const;
};

// The parts of a text between separators.
std::vector<std::string_view> parts_of(std::string_view text, char separator);

// A number without its fraction; one that is too large becomes the largest integer, which no key takes.
int64_t whole_number(double number);

// Reads YAML or JSON; JSON may have comments and trailing commas, as DeepSpeed allows. Anchors, aliases and merge keys
// are expanded, ${name} and ${oc.env:NAME} are filled in. Anything broken is a ConfigError with file and line: bad
// syntax, keys given twice, nesting deeper than 32 levels, files over 1 MiB.
SettingsTree read_tree_file(const std::string& path);
SettingsTree parse_tree(const std::string& text, const std::string& file_name);

}  // namespace octet
