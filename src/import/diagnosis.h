#pragma once

#include "import/importer.h"

namespace octet {

// Known mistakes that can be seen from the settings as a whole, whatever the tool: findings of the importer. Mistakes that
// one key shows are found by the rule of that key.
void diagnose(Importer& importer);

}  // namespace octet
