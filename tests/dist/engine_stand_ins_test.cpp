// Lets this program link where the engines are not built. Weak: real engines replace these.

#include "dist/engines.h"

namespace octet {

[[gnu::weak]] std::unique_ptr<Communicator> make_gloo_communicator(const GroupRequest&) {
  fail("[ranks] there is no Gloo here");
}
[[gnu::weak]] std::string gloo_description() {
  return "no Gloo";
}
[[gnu::weak]] std::unique_ptr<Communicator> make_nccl_communicator(Device&, const GroupRequest&) {
  fail("[ranks] there is no NCCL here");
}
[[gnu::weak]] std::string nccl_description() {
  return "no NCCL";
}

}  // namespace octet
