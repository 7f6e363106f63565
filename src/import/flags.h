#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/keys.h"
#include "import/import.h"

namespace octet {

// Keys of other programs that octet understands when they are given as flags or inside a file of octet's own: what
// octet has under another name or value is translated, what has no meaning here is accepted with a note, and what
// cannot be done is an error with the reason. Settings that are octet's own, or that nobody knows, come back as they
// are.
std::vector<KeySetting> translate_settings(std::vector<KeySetting> settings, SettingsNotes& notes,
                                           std::vector<std::string>& errors);

// These keys as a table for the reader of a command line, which must know whether a flag has a value. Names that
// octet itself has are left out.
std::span<const Key> foreign_keys();

}  // namespace octet
