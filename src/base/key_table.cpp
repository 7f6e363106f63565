#include <algorithm>
#include <cassert>

#include "base/error.h"
#include "base/keys.h"

namespace octet {
namespace {

size_t offset_in(const void* config, const void* member) {
  return static_cast<size_t>(static_cast<const char*>(member) - static_cast<const char*>(config));
}

}  // namespace

KeyTableBase::KeyTableBase() = default;
KeyTableBase::KeyTableBase(const KeyTableBase& other) = default;
KeyTableBase& KeyTableBase::operator=(const KeyTableBase& other) = default;
KeyTableBase::~KeyTableBase() = default;

Key& KeyTableBase::add_key(std::string_view name, std::string_view help, Member member, const void* defaults) {
  static constexpr KeyType kTypes[] = {KeyType::Bool,   KeyType::Int,        KeyType::Double,
                                       KeyType::String, KeyType::StringList, KeyType::ItemList};
  members_.push_back(std::move(member));
  Key& key = keys_.emplace_back();
  key.name = name;
  key.group = group_;
  key.help = help;
  key.default_value = get_from(defaults, keys_.size() - 1);
  key.type = kTypes[key.default_value.index()];
  return key;
}

template <class T>
Key& KeyTableBase::add_plain(std::string_view name, std::string_view help, const void* defaults, const T* member) {
  return add_key(name, help,
                 {offset_in(defaults, member),
                  [](void* place, const KeyValue& value) { *static_cast<T*>(place) = std::get<T>(value); },
                  [](const void* place) { return KeyValue(*static_cast<const T*>(place)); }},
                 defaults);
}

Key& KeyTableBase::add_member(std::string_view name, std::string_view help, const void* defaults,
                              const bool* member) {
  return add_plain(name, help, defaults, member);
}
Key& KeyTableBase::add_member(std::string_view name, std::string_view help, const void* defaults,
                              const int64_t* member) {
  return add_plain(name, help, defaults, member);
}
Key& KeyTableBase::add_member(std::string_view name, std::string_view help, const void* defaults,
                              const double* member) {
  return add_plain(name, help, defaults, member);
}
Key& KeyTableBase::add_member(std::string_view name, std::string_view help, const void* defaults,
                              const std::string* member) {
  return add_plain(name, help, defaults, member);
}
Key& KeyTableBase::add_member(std::string_view name, std::string_view help, const void* defaults,
                              const std::vector<std::string>* member) {
  return add_plain(name, help, defaults, member);
}

Key& KeyTableBase::add_enum(std::string_view name, std::string_view help, const void* defaults,
                            const void* member, std::vector<std::string> choices, EnumAccess access) {
  Key& key = add_key(name, help,
                     {offset_in(defaults, member),
                      [choices, access](void* place, const KeyValue& value) {
                        const auto found = std::ranges::find(choices, std::get<std::string>(value));
                        require(found != choices.end(), "[keys] '{}' is not one of the choices",
                                std::get<std::string>(value));
                        access.set(place, static_cast<size_t>(found - choices.begin()));
                      },
                      [choices, access](const void* place) { return KeyValue(choices.at(access.get(place))); }},
                     defaults);
  key.type = KeyType::Choice;
  key.choices = std::move(choices);
  return key;
}

Key& KeyTableBase::add_items(std::string_view name, std::string_view help, const void* defaults,
                             const void* member, const KeyTableBase& items, ListAccess access) {
  Key& key = add_key(
      name, help,
      {offset_in(defaults, member),
       [items, access](void* list, const KeyValue& value) {
         access.clear(list);
         for (const KeyItem& given : std::get<std::vector<KeyItem>>(value)) {
           void* item = access.append(list);
           for (const auto& [field, scalar] : given) items.set_in(item, items.index_of(field), value_of(scalar));
         }
       },
       [items, access](const void* list) {
         std::vector<KeyItem> all;
         for (size_t i = 0; i < access.size(list); ++i) all.push_back(items.changed_from(access.at(list, i)));
         return KeyValue(std::move(all));
       }},
      defaults);
  key.item_keys.assign(items.keys().begin(), items.keys().end());
  return key;
}

std::vector<std::string> KeyTableBase::strings(std::initializer_list<std::string_view> texts) {
  return {texts.begin(), texts.end()};
}

size_t KeyTableBase::index_of(std::string_view name) const {
  const auto found = std::ranges::find(keys_, name, &Key::name);
  assert(found != keys_.end());
  return static_cast<size_t>(found - keys_.begin());
}

void KeyTableBase::set_in(void* config, size_t index, const KeyValue& value) const {
  const Member& member = members_.at(index);
  member.set(static_cast<char*>(config) + member.offset, value);
}

KeyValue KeyTableBase::get_from(const void* config, size_t index) const {
  const Member& member = members_.at(index);
  return member.get(static_cast<const char*>(config) + member.offset);
}

KeyItem KeyTableBase::changed_from(const void* config) const {
  KeyItem changed;
  for (size_t i = 0; i < keys_.size(); ++i) {
    const KeyValue value = get_from(config, i);
    if (value != keys_[i].default_value) changed.emplace_back(keys_[i].name, scalar_of(value));
  }
  return changed;
}

}  // namespace octet
