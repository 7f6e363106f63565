#include "base/version.h"

namespace octet {

const char* octet_version() {
  return OCTET_VERSION;
}

}  // namespace octet
