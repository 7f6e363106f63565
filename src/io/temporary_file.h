#pragma once

#include <string>
#include <string_view>

#include "io/env.h"

// Files and folders that are written under another name first, perhaps in a folder that others can write, too: nobody can
// guess the name and put a link there that leads to another file.

namespace octet {

// A new file of the name temporary_name(path). It follows no link and touches no other file.
WritableFile create_temporary(Env& env, const std::string& path);
// A new file in the place of whatever is there. A link is removed, not followed. For names that are always the same.
WritableFile create_anew(Env& env, const std::string& path);

// "PATH.tmp-" and random digits. is_temporary_of() knows such names again, to remove what a crash has left.
std::string temporary_name(const std::string& path);
bool is_temporary_of(std::string_view original, std::string_view name);

std::string random_digits();             // sixteen hexadecimal ones
bool are_digits(std::string_view text);  // hexadecimal ones, at least one

}  // namespace octet
