#pragma once

#include <string>
#include <vector>

namespace octet {

// An address of a network interface of this machine.
struct NetworkInterface {
  std::string name, address;  // "eth0", "10.0.0.3"
};
// Those that are up. IPv4 addresses first; without those of IPv6 that are only valid within a link.
std::vector<NetworkInterface> network_interfaces();

// Which interface the user wants for the traffic between nodes. GLOO_SOCKET_IFNAME has whole names, "a,b".
// NCCL_SOCKET_IFNAME is read as NCCL does: beginnings of names, "=a,b" whole names, "^a,b" all but these, "^=a".
struct InterfaceWish {
  std::string variable, names;  // empty: none
};

// The address for other nodes. `own` is what octet would use: the interface over which rank 0 was reached. It stays if the
// wish allows it. ConfigError, with the interfaces that exist, if the wish fits none.
std::string choose_address(const InterfaceWish& wish, const std::string& own,
                           const std::vector<NetworkInterface>& present);

}  // namespace octet
