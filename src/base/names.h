#pragma once

#include <cctype>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

// The name as a part of a file name: whatever a shell, sbatch or a file system might read otherwise becomes `instead`.
inline std::string file_name_of(std::string_view name, char instead) {
  std::string text(name);
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80 || (std::isalnum(byte) == 0 && c != '-' && c != '_' && c != '.')) c = instead;
  }
  return text;
}

// The name of an enumerator, from the names of all in their order; "?" for a value that is none, as a damaged file may hold.
template <class E, size_t N>
constexpr std::string_view name_in(const std::string_view (&names)[N], E value) {
  const auto index = static_cast<size_t>(value);
  return index < N ? names[index] : "?";
}

// Two things of one `name` are told apart by what was typed: `given` has one word for each of them.
template <class Named>
void tell_apart(std::vector<Named>& things, const std::vector<std::string>& given) {
  std::map<std::string, int> count;
  for (const Named& thing : things) ++count[thing.name];
  for (size_t i = 0; i < things.size(); ++i) {
    if (count[things[i].name] > 1) things[i].name = given[i];
  }
}

}  // namespace octet
