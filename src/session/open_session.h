#pragma once

#include "config/config.h"
#include "octet/session.h"

namespace octet {

// A session whose settings were read by somebody else, for example from another program's configuration.
Session open_session(const FileSettings& file, std::span<const KeySetting> flags);

}  // namespace octet
