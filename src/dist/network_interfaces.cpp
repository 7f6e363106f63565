#include "dist/network_interfaces.h"

#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "dist/socket.h"

namespace octet {
namespace {

bool is_link_local(const sockaddr* address) {
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

// Whether the wish allows an interface of this name.
bool allows(const InterfaceWish& wish, std::string_view name) {
  std::string_view names = wish.names;
  const bool is_nccl = wish.variable == "NCCL_SOCKET_IFNAME";
  const bool excludes = is_nccl && names.starts_with('^');
  if (excludes) names.remove_prefix(1);
  const bool is_whole = !is_nccl || names.starts_with('=');
  if (is_nccl && is_whole) names.remove_prefix(1);
  const bool is_named = std::ranges::any_of(split_list(names), [&](const std::string& each) {
    return !each.empty() && (is_whole ? name == each : name.starts_with(each));
  });
  return is_named != excludes;
}

}  // namespace

std::vector<NetworkInterface> network_interfaces() {
  std::vector<NetworkInterface> found;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) {
    log_warning("[launch] the network interfaces of this machine could not be listed: {}",
                std::strerror(errno));
    return found;
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
      if (!each->ifa_addr || each->ifa_addr->sa_family != family || (each->ifa_flags & IFF_UP) == 0 ||
          is_link_local(each->ifa_addr))
        continue;
      SocketAddress address;
      address.size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      std::memcpy(&address.storage, each->ifa_addr, address.size);
      found.push_back({each->ifa_name, address.numeric()});
    }
  }
  return found;
}

std::string choose_address(const InterfaceWish& wish, const std::string& own,
                           const std::vector<NetworkInterface>& present) {
  if (wish.names.empty()) return own;
  const NetworkInterface* chosen = nullptr;
  std::vector<std::string> names;
  for (const NetworkInterface& each : present) {
    if (std::ranges::find(names, each.name) == names.end()) names.push_back(each.name);
    if (!allows(wish, each.name)) continue;
    if (each.address == own) return own;
    // Other nodes cannot reach the loopback interface, so it must be meant.
    if (each.name == "lo" && wish.names.starts_with('^')) continue;
    if (!chosen) chosen = &each;
  }
  if (!chosen) {
    fail_config("[launch] {} is '{}', which fits no network interface of this machine; there are {}",
                wish.variable, printable(wish.names), fmt::join(names, ", "));
  }
  return chosen->address;
}

}  // namespace octet
