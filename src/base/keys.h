#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace octet {

// One table of keys drives the YAML reader, the flags, --help, the dumped config.yaml and the documentation
// of a command. A Key says what a value may be; KeyTable<Config> also knows which member of Config it lands in.

enum class KeyType { Bool, Int, Double, String, Choice, StringList, ItemList };

// One item of an ItemList: its keys that differ from their defaults.
using KeyScalar = std::variant<bool, int64_t, double, std::string>;
using KeyItem = std::vector<std::pair<std::string, KeyScalar>>;

// Bool, Int, Double, String or Choice, StringList, ItemList.
using KeyValue =
    std::variant<bool, int64_t, double, std::string, std::vector<std::string>, std::vector<KeyItem>>;

// Another accepted spelling. With `values`, the given value is a bool that stands for a value of the key: use_fp8:
// true means mixed_precision: fp8.
struct KeyAlias {
  std::string name;
  std::vector<std::pair<bool, std::string>> values;
  bool takes_values = false;  // other values are read as those of the key
};

struct Key {
  std::string name;
  std::string group;
  std::string help;
  KeyType type = KeyType::String;
  KeyValue default_value;
  std::string default_note;  // shown instead of the default if the default is decided later
  std::string value_name;    // stands for the value in help: FILE, DIR; empty: by the type
  char short_name = 0;       // 'o': -o is the same flag
  std::vector<KeyAlias> aliases;
  std::vector<std::string> choices;                        // Choice: the names, in the order of the enum
  std::vector<std::pair<bool, std::string>> bool_choices;  // Choice: what true and false mean, if anything
  // Choice: other spellings of a choice. Choices and spellings are read in any case, and with "-" for "_".
  std::vector<std::pair<std::string, std::string>> value_aliases;
  std::vector<std::pair<std::string, std::string>>
      refused_values;  // Choice: values that people try, and why not
  std::string alone;   // String: the value if the flag stands alone or is given true; false means ""
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_open = false;  // min itself is not allowed
  bool max_open = false;
  bool transient = false;  // concerns this call, not the run: not written to config.yaml
  bool required = false;   // checked by the reader of a command line
  bool repeats = false;    // StringList: each flag gives one whole item; commas do not split it
  // ItemList: the keys of an item. The first is the one that an item without keys gives: its path.
  std::vector<Key> item_keys = {};

  // How a table is written down: add(...).at_least(1).alias("batch_size").
  Key& at_least(double value);
  Key& above(double value);
  Key& at_most(double value);
  Key& below(double value);
  Key& alias(std::string_view alias_name);
  Key& bool_alias(std::string_view alias_name, std::string_view when_true, std::string_view when_false);
  Key& bool_or_value_alias(std::string_view alias_name, std::string_view when_true, std::string_view when_false);
  Key& also(std::string_view choice, std::initializer_list<std::string_view> spellings);
  Key& refuse(std::initializer_list<std::string_view> spellings, std::string_view reason);
  Key& bools(std::string_view when_true, std::string_view when_false);
  Key& value_if_alone(std::string_view value_alone);
  Key& note(std::string_view text);
  Key& not_dumped();
  Key& value(std::string_view name_in_help);
  Key& short_flag(char letter);
  Key& must_be_given();
  Key& repeatable();
};

// A key as somebody gave it, before it is looked up.
struct KeySetting {
  std::string name;                 // as written, without the dashes of a flag
  std::vector<std::string> values;  // one, unless is_list
  bool is_list = false;
  bool is_null = false;  // YAML null, or a flag without its value: keeps the default
  // The items of a list that holds maps; then there are no values. An item that is no map has one field without a name.
  struct Item {
    std::string place;
    std::vector<KeySetting> fields;
  };
  std::vector<Item> items = {};
  std::string place;  // "run.yaml:3"; empty on the command line

  bool is_flag() const { return place.empty(); }
  std::string describe() const;  // "--lr" or "lr in run.yaml:3"
};

// A setting that was found in the table and has a value of the key's type.
struct KeyAssignment {
  size_t index = 0;  // of the key in the table
  KeyValue value;
  std::string origin;  // KeySetting::describe()
};

// Looks up the settings of one source (a file, or the command line). Unknown keys, values of the wrong kind, and keys
// given twice or together with an alias are added to `errors`, one message each.
std::vector<KeyAssignment> resolve_settings(std::span<const Key> keys, std::span<const KeySetting> settings,
                                            std::vector<std::string>& errors);

// The key with this name or alias, or nullptr.
const Key* key_called(std::span<const Key> keys, std::string_view name);

// Throws ConfigError with all the messages, one per line, if there are any.
void throw_config_errors(std::span<const std::string> errors);

// A YAML file (or its text) that holds one flat map of scalars, lists of scalars and lists of flat maps. A missing file
// or broken YAML throws ConfigError; nested maps and other things that do not belong are added to `errors`.
std::vector<KeySetting> read_settings_file(const std::string& path, std::vector<std::string>& errors);
std::vector<KeySetting> parse_settings(const std::string& text, const std::string& file_name,
                                       std::vector<std::string>& errors);

// The kind of words between the flags. It decides what a word after a bool flag is (--dry_run WORD):
//   None        always the value of the flag
//   ConfigFile  the value, unless the word is named like a configuration or is a file that exists
//   Any         the value only if it reads as a bool
enum class PositionalKind { None, ConfigFile, Any };

// --key value, --key=value, -k value, and a bool key's --key alone; dashes inside a name count as underscores. --no_key
// is the opposite of a bool key, also in files.
// A value may start with a dash (-1, "- item") unless it is written like a flag; --key=value takes any. Other words
// are positionals, and so is everything after "--".
struct KeyArguments {
  std::vector<std::string> positionals;
  std::vector<KeySetting> settings;
  bool help = false;         // -h or --help
  bool has_unknown = false;  // a flag that is not a key; resolve_settings reports it
};
KeyArguments parse_key_arguments(std::span<const Key> keys, std::span<const std::string> arguments,
                                 std::vector<std::string>& errors,
                                 PositionalKind positionals = PositionalKind::ConfigFile);

// The name nearest to `word` by edit distance, or "" if none is near.
std::string nearest_name(std::string_view word, std::span<const std::string> names);

std::string allowed_text(const Key& key);       // "a number above 0, at most 1", "one of fp8, bf16, fp32"
std::string value_text(const KeyValue& value);  // as a user would write it; "" for empty
// As a YAML scalar or list that reads back to the same value. A list of maps begins with a newline.
std::string value_yaml(const KeyValue& value);
std::string default_text(const Key& key);          // the note, or the default value, or "none"
std::string flag_text(const Key& key);             // "-o, --output DIR"
std::string keys_help(std::span<const Key> keys);  // grouped, for --help
// A line of --help: what it is about, from column 2, and the text from column `indent`.
std::string help_entry(std::string head, std::string_view text, std::string_view limits = "",
                       size_t indent = 34);
std::string help_paragraphs(std::string_view text);    // wrapped to the width of --help; ends with a newline
std::string keys_markdown(std::span<const Key> keys);  // grouped tables

// `value` must be no list.
KeyScalar scalar_of(const KeyValue& value);
KeyValue value_of(const KeyScalar& scalar);

// The part of KeyTable that does not depend on the struct. A member is known by its place in the struct, so that a command
// with many keys compiles quickly.
class KeyTableBase {
 public:
  KeyTableBase();
  KeyTableBase(const KeyTableBase& other);
  KeyTableBase& operator=(const KeyTableBase& other);
  ~KeyTableBase();

  // The keys that follow belong to this group.
  void group(std::string_view name) { group_ = name; }

  std::span<const Key> keys() const { return keys_; }
  // By name, which must be a key of the table.
  size_t index_of(std::string_view name) const;

  // `config` points to the struct that the table is for.
  void set_in(void* config, size_t index, const KeyValue& value) const;
  KeyValue get_from(const void* config, size_t index) const;
  KeyItem changed_from(const void* config) const;

 protected:
  struct EnumAccess {
    void (*set)(void* member, size_t enumerator);
    size_t (*get)(const void* member);
  };
  // Access to a std::vector of items.
  struct ListAccess {
    void (*clear)(void* list);
    void* (*append)(void* list);  // returns the new item
    size_t (*size)(const void* list);
    const void* (*at)(const void* list, size_t index);
  };

  // `member` belongs to `defaults`, a struct with the default values.
  Key& add_member(std::string_view name, std::string_view help, const void* defaults, const bool* member);
  Key& add_member(std::string_view name, std::string_view help, const void* defaults, const int64_t* member);
  Key& add_member(std::string_view name, std::string_view help, const void* defaults, const double* member);
  Key& add_member(std::string_view name, std::string_view help, const void* defaults, const std::string* member);
  Key& add_member(std::string_view name, std::string_view help, const void* defaults,
                  const std::vector<std::string>* member);
  Key& add_enum(std::string_view name, std::string_view help, const void* defaults, const void* member,
                std::vector<std::string> choices, EnumAccess access);
  Key& add_items(std::string_view name, std::string_view help, const void* defaults, const void* member,
                 const KeyTableBase& items, ListAccess access);
  static std::vector<std::string> strings(std::initializer_list<std::string_view> texts);

 private:
  struct Member {
    size_t offset = 0;
    std::function<void(void* member, const KeyValue& value)> set;
    std::function<KeyValue(const void* member)> get;
  };
  template <class T>
  Key& add_plain(std::string_view name, std::string_view help, const void* defaults, const T* member);
  Key& add_key(std::string_view name, std::string_view help, Member member, const void* defaults);

  std::string group_;
  std::vector<Key> keys_;
  std::vector<Member> members_;  // of the keys
};

// A member may belong to a part of the config, a struct that it derives from.
template <class Config>
class KeyTable : public KeyTableBase {
 public:
  template <class Part, class T>
  requires std::derived_from<Config, Part> Key& add(std::string_view name, T Part::*member,
                                                    std::string_view help) {
    return add_member(name, help, &defaults(), &(defaults().*member));
  }

  // A choice: the names stand in the order of the enumerators, which count from 0.
  template <class Part, class E>
  requires(std::derived_from<Config, Part>&& std::is_enum_v<E>) Key& add(std::string_view name,
                                                                         E Part::*member,
                                                                         std::vector<std::string> choices,
                                                                         std::string_view help) {
    return add_enum(name, help, &defaults(), &(defaults().*member), std::move(choices),
                    {[](void* place, size_t enumerator) { *static_cast<E*>(place) = static_cast<E>(enumerator); },
                     [](const void* place) { return static_cast<size_t>(*static_cast<const E*>(place)); }});
  }

  // A choice whose default is decided later: "" unless given.
  template <class Part>
  requires std::derived_from<Config, Part> Key& add(std::string_view name, std::string Part::*member,
                                                    std::vector<std::string> choices, std::string_view help) {
    Key& key = add(name, member, help);
    key.type = KeyType::Choice;
    key.choices = std::move(choices);
    return key;
  }

  // A choice of either kind.
  template <class Part, class T>
  requires std::derived_from<Config, Part> Key& add(std::string_view name, T Part::*member,
                                                    std::initializer_list<std::string_view> choices,
                                                    std::string_view help) {
    return add(name, member, strings(choices), help);
  }

  // A list of items that have keys of their own.
  template <class Part, class Item>
  requires std::derived_from<Config, Part> Key& add(std::string_view name, std::vector<Item> Part::*member,
                                                    const KeyTable<Item>& items, std::string_view help) {
    using List = std::vector<Item>;
    return add_items(name, help, &defaults(), &(defaults().*member), items,
                     {[](void* list) { static_cast<List*>(list)->clear(); },
                      [](void* list) -> void* { return &static_cast<List*>(list)->emplace_back(); },
                      [](const void* list) { return static_cast<const List*>(list)->size(); },
                      [](const void* list, size_t i) -> const void* { return &(*static_cast<const List*>(list))[i]; }});
  }

  void set(Config& config, size_t index, const KeyValue& value) const { set_in(&config, index, value); }
  KeyValue get(const Config& config, size_t index) const { return get_from(&config, index); }
  // The keys that do not have their default.
  KeyItem changed(const Config& config) const { return changed_from(&config); }

 private:
  static const Config& defaults() {
    static const Config config{};
    return config;
  }
};

}  // namespace octet
