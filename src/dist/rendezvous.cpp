#include "dist/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/hash.h"
#include "dist/rendezvous_detail.h"

namespace octet {
namespace {

using std::chrono::milliseconds;

// The side of all ranks but 0.
class OtherRank {
 public:
  explicit OtherRank(const RendezvousOptions& options)
      : options_(options),
        key_(proof_key(options.job, options.secret)),
        hello_(hello_of(options)),
        deadline_(Clock::now() + options.limit) {
    hello_.nonce = random_nonce();
  }

  Meeting meet() {
    const int first = first_port(options_), last = std::min(first + kRendezvousPorts, 65536) - 1;
    milliseconds pause{20};
    int rounds_with_other_secret = 0;
    while (true) {
      found_other_secret_ = false;
      const bool is_one_node = options_.place.nodes() == 1;
      for (const SocketAddress& address :
           is_one_node ? std::vector{node_address()} : resolve_host(options_.master_host, problem_)) {
        for (int port = first; port <= last && Clock::now() < deadline_; ++port) {
          if (std::optional<Meeting> meeting = try_port(address, port)) return std::move(*meeting);
        }
      }
      // Once may be somebody else's answer while rank 0 has not started yet.
      rounds_with_other_secret += found_other_secret_;
      if (rounds_with_other_secret == 3) {
        throw RankError(fmt::format(
            "[ranks] rank {} and rank 0 at {} have different secrets; expected the same OCTET_SECRET "
            "or OCTET_SECRET_FILE on all nodes",
            hello_.rank, options_.master_host));
      }
      if (Clock::now() + pause >= deadline_) {
        throw RankError(fmt::format(
            "[ranks] rank {} on {} found no rank 0 of its job at {}, ports {} to {}, within {} s{}{}",
            hello_.rank, hello_.host, options_.master_host, first, last, options_.limit.count() / 1000,
            problem_.empty() ? "" : "; last: ", problem_));
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, milliseconds{1000});
      patience_ = std::min(patience_ * 2, options_.handshake_limit);
    }
  }

 private:
  // None: rank 0 of this job is not there.
  std::optional<Meeting> try_port(SocketAddress address, int port) {
    address.set_port(port);
    const Clock::time_point patience = std::min(Clock::now() + patience_, deadline_);
    std::string problem;
    std::optional<Socket> socket = connect_to(address, patience, problem);
    if (!socket) {
      if (problem_.empty()) problem_ = problem;
      return std::nullopt;
    }
    if (const auto user = peer_user(*socket); user && *user != geteuid()) {
      problem_ = fmt::format("port {} belongs to user {}; expected user {}", port, *user, geteuid());
      return std::nullopt;
    }
    Peer peer{.socket = std::move(*socket)};
    try {
      const std::optional<Frame> frame = receive(peer, patience);
      if (!frame || frame->type != MessageType::Challenge) {
        problem_ = fmt::format("port {} is used by another program", port);
        return std::nullopt;
      }
      return introduce(std::move(peer), from_body<ChallengeMessage>(frame->body), port);
    } catch (const MessageError& error) {
      problem_ = fmt::format("port {}: {}", port, error.what());
      return std::nullopt;
    }
  }

  std::optional<Meeting> introduce(Peer peer, const ChallengeMessage& challenge, int port) {
    hello_.proof = client_proof(key_, challenge.nonce, hello_);
    if (!send_all(peer.socket, to_frame(hello_), deadline_)) return std::nullopt;
    const std::optional<Frame> answer = receive(peer, deadline_);
    if (!answer) {
      problem_ = fmt::format("port {}: the connection was closed without an answer", port);
      return std::nullopt;
    }
    if (answer->type == MessageType::Refused) {
      const auto refused = from_body<RefusedMessage>(answer->body);
      if (refused.refusal == Refusal::Conflict) throw RankError(clean_text(refused.reason));
      found_other_secret_ |= refused.refusal == Refusal::OtherSecret;
      problem_ = fmt::format("port {}: {}", port,
                             refused.refusal == Refusal::OtherJob ? "another job" : "another secret");
      return std::nullopt;
    }
    if (answer->type != MessageType::Accepted) throw MessageError(MessageProblem::Type, "expected an answer");
    const auto accepted = from_body<AcceptedMessage>(answer->body);
    if (!is_same_proof(accepted.proof, server_proof(key_, challenge.nonce, hello_))) {
      problem_ = fmt::format("port {}: what answers there does not know the secret of this job", port);
      return std::nullopt;
    }
    return wait_for_start(std::move(peer), port);
  }

  Meeting wait_for_start(Peer peer, int port) {
    // Rank 0 began to wait at its own time. It says so if it gives up.
    const std::optional<Frame> frame = receive(peer, Clock::now() + options_.limit + milliseconds{5000});
    if (!frame) {
      throw RankError(
          fmt::format("[ranks] rank 0 at {} ended before all ranks had come", options_.master_host));
    }
    if (frame->type == MessageType::Refused)
      throw RankError(clean_text(from_body<RefusedMessage>(frame->body).reason));
    if (frame->type != MessageType::Start)
      throw RankError("[ranks] rank 0 sent something unexpected before the start");
    const auto start = from_body<StartMessage>(frame->body);
    Meeting meeting{.port = port};
    meeting.address = start.address.empty() ? local_address(peer.socket).numeric() : start.address;
    peer.reader.trust();
    peer.host = options_.master_host;
    meeting.peers.push_back(std::move(peer));
    return meeting;
  }

  // None: closed, or nothing before the deadline.
  static std::optional<Frame> receive(Peer& peer, Clock::time_point deadline) {
    while (true) {
      if (std::optional<Frame> frame = peer.reader.next()) return frame;
      if (!wait_readable(peer.socket, deadline)) return std::nullopt;
      std::string bytes;
      if (receive_some(peer.socket, bytes) == ReceiveStatus::Closed) return std::nullopt;
      peer.reader.append(bytes);
    }
  }

  const RendezvousOptions& options_;
  std::string key_;
  HelloMessage hello_;
  Clock::time_point deadline_;
  milliseconds patience_{2000};  // with a port that may be somebody else's
  bool found_other_secret_ = false;
  std::string problem_;  // for the message at the end
};

}  // namespace

int first_port(const RendezvousOptions& options) {
  if (options.base_port != 0) return options.base_port;
  return 20000 + static_cast<int>(Hash64().add(options.job).value() % 20000);
}

HelloMessage hello_of(const RendezvousOptions& options) {
  return {.job = job_hash(options.job),
          .rank = options.place.rank,
          .ranks = options.place.ranks,
          .local_ranks = options.place.local_ranks,
          .host = options.host,
          .gpu = options.gpu,
          .config = options.config,
          .version = options.version};
}

std::string clean_text(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text;
}

std::string ranks_text(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  return text;
}

Meeting meet(const RendezvousOptions& options) {
  if (options.place.nodes() > 1 && !options.secret) {
    fail_config(
        "[ranks] the run has {} nodes, so rank 0 listens on the network, and neither OCTET_SECRET nor "
        "OCTET_SECRET_FILE is set; expected the same secret on all nodes. Make one with 'openssl rand -hex 32 > "
        "secret; chmod 600 secret' in a folder that all nodes see, and set OCTET_SECRET_FILE to its path",
        options.place.nodes());
  }
  return options.place.is_first() ? meet_as_first(options) : OtherRank(options).meet();
}

}  // namespace octet
