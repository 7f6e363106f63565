#pragma once

#include <sys/socket.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace octet {

// An open socket (or other descriptor), closed at the end of its life. None of them blocks.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Socket() { close(); }
  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  void close();

 private:
  int fd_ = -1;
};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  bool is_of_node() const { return storage.ss_family == AF_UNIX; }
  std::string numeric() const;  // "10.0.0.3"; of this node: 127.0.0.1
  int port() const;             // of a network address
  void set_port(int port);
};

// A Unix socket without a file, named by its "port". Only processes of this node can connect to it, and the system says
// which user they are: see peer_user().
SocketAddress node_address();

// The addresses of a host, or `problem` why there are none.
std::vector<SocketAddress> resolve_host(const std::string& host, std::string& problem);

// Listens for this node only (see node_address), or on all interfaces. None if the port is taken; Error for other reasons.
std::optional<Socket> listen_on(int port, bool node_only, int backlog);
std::optional<Socket> accept_from(const Socket& listener);

// None, with the reason in `problem`, if there is no connection before the deadline.
std::optional<Socket> connect_to(const SocketAddress& address, Clock::time_point deadline,
                                 std::string& problem);
SocketAddress local_address(const Socket& socket);
SocketAddress peer_address(const Socket& socket);
// The user who made the other end of a connection within this node. None for connections over a network.
std::optional<uid_t> peer_user(const Socket& socket);

enum class ReceiveStatus { Data, Nothing, Closed };
// Appends what is there, at most 64 KiB.
ReceiveStatus receive_some(const Socket& socket, std::string& into);
// Sends the beginning of `bytes` and returns how much of it; none: the connection is broken.
std::optional<size_t> send_some(const Socket& socket, std::string_view bytes);
// Sends all of it before the deadline; false if that was not possible.
bool send_all(const Socket& socket, std::string_view bytes, Clock::time_point deadline);
// Waits until there is something to read; false at the deadline.
bool wait_readable(const Socket& socket, Clock::time_point deadline);

// For poll(2): until the deadline, at least 0, at most `most`.
int poll_milliseconds(Clock::time_point deadline, int most = 1000);

std::string host_name();

}  // namespace octet
