#include "dist/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace octet {
namespace {

void set_option(const Socket& socket, int level, int name, int value) {
  setsockopt(socket.fd(), level, name, &value, sizeof value);
}

Socket new_socket(int family) {
  Socket socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.is_open() && family != AF_UNIX)
    set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);  // messages are small and waited for
  return socket;
}

SocketAddress any_interface(int family) {
  SocketAddress address;
  address.storage.ss_family = static_cast<sa_family_t>(family);  // zeros are the address "any"
  address.size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  return address;
}

const sockaddr* generic(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

// EADDRINUSE: none. Other failures are in errno.
int try_listen(Socket& socket, const SocketAddress& address, int backlog) {
  set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);  // connections of an earlier run may still be closing
  if (address.storage.ss_family == AF_INET6) set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(socket.fd(), generic(address), address.size) != 0 || listen(socket.fd(), backlog) != 0)
    return errno;
  return 0;
}

}  // namespace

void Socket::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

std::string SocketAddress::numeric() const {
  if (is_of_node()) return "127.0.0.1";
  std::array<char, NI_MAXHOST> text{};
  if (getnameinfo(generic(*this), size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    return "?";
  const std::string_view result = text.data();
  constexpr std::string_view kMapped = "::ffff:";  // IPv4 on a socket of both
  const bool is_mapped = result.starts_with(kMapped) && result.find('.') != std::string_view::npos;
  return std::string(is_mapped ? result.substr(kMapped.size()) : result);
}

int SocketAddress::port() const {
  return ntohs(storage.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port
                                             : reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

void SocketAddress::set_port(int port) {
  if (is_of_node()) {
    // The zero in front means: a name in the kernel, not a file.
    const std::string name = '\0' + fmt::format("octet-ranks-{}", port);
    auto* local = reinterpret_cast<sockaddr_un*>(&storage);
    std::memcpy(local->sun_path, name.data(), name.size());
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    return;
  }
  const in_port_t value = htons(static_cast<uint16_t>(port));
  if (storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = value;
  } else {
    reinterpret_cast<sockaddr_in*>(&storage)->sin_port = value;
  }
}

SocketAddress node_address() {
  SocketAddress address;
  address.storage.ss_family = AF_UNIX;
  address.size = sizeof(sa_family_t);
  return address;
}

std::vector<SocketAddress> resolve_host(const std::string& host, std::string& problem) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (code != 0) {
    problem = fmt::format("the name {} cannot be resolved: {}", host, gai_strerror(code));
    return {};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* each = found; each != nullptr && addresses.size() < 8; each = each->ai_next) {
    SocketAddress address;
    if (each->ai_addrlen > sizeof address.storage) continue;
    std::memcpy(&address.storage, each->ai_addr, each->ai_addrlen);
    address.size = each->ai_addrlen;
    addresses.push_back(address);
  }
  return addresses;
}

std::optional<Socket> listen_on(int port, bool node_only, int backlog) {
  SocketAddress address = node_only ? node_address() : any_interface(AF_INET6);
  address.set_port(port);
  Socket socket = new_socket(address.storage.ss_family);
  int code = socket.is_open() ? try_listen(socket, address, backlog) : errno;
  if (!node_only && (code == EAFNOSUPPORT || code == EADDRNOTAVAIL)) {  // no IPv6 on this machine
    address = any_interface(AF_INET);
    address.set_port(port);
    socket = new_socket(AF_INET);
    code = socket.is_open() ? try_listen(socket, address, backlog) : errno;
  }
  if (code == EADDRINUSE || code == EACCES) return std::nullopt;
  if (code != 0) fail("[ranks] cannot listen on port {}: {}", port, std::strerror(code));
  return socket;
}

std::optional<Socket> accept_from(const Socket& listener) {
  Socket socket(accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket.is_open()) return std::nullopt;
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);  // no effect within the node
  return socket;
}

std::optional<Socket> connect_to(const SocketAddress& address, Clock::time_point deadline,
                                 std::string& problem) {
  Socket socket = new_socket(address.storage.ss_family);
  int code = 0;
  if (!socket.is_open() || connect(socket.fd(), generic(address), address.size) != 0) code = errno;
  if (code == EINPROGRESS) {
    pollfd poll_one{.fd = socket.fd(), .events = POLLOUT};
    while (Clock::now() < deadline && poll(&poll_one, 1, poll_milliseconds(deadline)) <= 0) {
    }
    socklen_t size = sizeof code;
    if (poll_one.revents == 0) {
      code = ETIMEDOUT;
    } else if (getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &code, &size) != 0) {
      code = errno;
    }
  }
  if (code == 0 && !address.is_of_node()) {
    // Where nobody listens, a connection to a port of this machine can meet itself.
    const SocketAddress here = local_address(socket), there = peer_address(socket);
    if (here.port() == there.port() && here.numeric() == there.numeric()) code = ECONNREFUSED;
  }
  if (code == 0) return socket;
  problem = address.is_of_node()
                ? std::strerror(code)
                : fmt::format("{} port {}: {}", address.numeric(), address.port(), std::strerror(code));
  return std::nullopt;
}

SocketAddress local_address(const Socket& socket) {
  SocketAddress address;
  address.size = sizeof address.storage;
  getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address.storage), &address.size);
  return address;
}

SocketAddress peer_address(const Socket& socket) {
  SocketAddress address;
  address.size = sizeof address.storage;
  getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&address.storage), &address.size);
  return address;
}

std::optional<uid_t> peer_user(const Socket& socket) {
  if (!local_address(socket).is_of_node()) return std::nullopt;
  ucred peer{};
  socklen_t size = sizeof peer;
  const bool is_known = getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  return is_known ? peer.uid : static_cast<uid_t>(-1);  // nobody's
}

ReceiveStatus receive_some(const Socket& socket, std::string& into) {
  static thread_local std::array<char, 65536> buffer;
  const ssize_t count = recv(socket.fd(), buffer.data(), buffer.size(), 0);
  if (count > 0) {
    into.append(buffer.data(), static_cast<size_t>(count));
    return ReceiveStatus::Data;
  }
  const bool is_open = count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  return is_open ? ReceiveStatus::Nothing : ReceiveStatus::Closed;
}

std::optional<size_t> send_some(const Socket& socket, std::string_view bytes) {
  const ssize_t count = send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (count >= 0) return static_cast<size_t>(count);
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
  return std::nullopt;
}

bool send_all(const Socket& socket, std::string_view bytes, Clock::time_point deadline) {
  while (true) {
    const std::optional<size_t> sent = send_some(socket, bytes);
    if (!sent) return false;
    bytes.remove_prefix(*sent);
    if (bytes.empty()) return true;
    if (Clock::now() >= deadline) return false;
    pollfd poll_one{.fd = socket.fd(), .events = POLLOUT};
    poll(&poll_one, 1, poll_milliseconds(deadline));
  }
}

bool wait_readable(const Socket& socket, Clock::time_point deadline) {
  pollfd poll_one{.fd = socket.fd(), .events = POLLIN};
  while (poll(&poll_one, 1, poll_milliseconds(deadline)) <= 0) {
    if (Clock::now() >= deadline) return false;
  }
  return true;
}

int poll_milliseconds(Clock::time_point deadline, int most) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, most));
}

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "?";
  return name.data();
}

}  // namespace octet
