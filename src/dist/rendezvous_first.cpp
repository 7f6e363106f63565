// Rank 0's side of the rendezvous.

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <list>
#include <set>

#include "base/log.h"
#include "base/text.h"
#include "dist/rendezvous_detail.h"

namespace octet {
namespace {

// The first lines in which two texts differ.
std::pair<std::string, std::string> first_difference(std::string_view a, std::string_view b) {
  while (true) {
    const size_t end_a = std::min(a.find('\n'), a.size()), end_b = std::min(b.find('\n'), b.size());
    const std::string_view line_a = a.substr(0, end_a), line_b = b.substr(0, end_b);
    if (line_a != line_b || end_a == a.size() || end_b == b.size())
      return {std::string(line_a), std::string(line_b)};
    a.remove_prefix(end_a + 1);
    b.remove_prefix(end_b + 1);
  }
}

// A client. It is anybody until its proof was right.
struct Guest {
  Socket socket;
  FrameReader reader;
  std::string address;
  Nonce challenge = random_nonce();
  Clock::time_point deadline;
  std::optional<HelloMessage> accepted;
};

constexpr std::chrono::seconds kBetweenWords{30};  // about ranks that rank 0 waits for

class FirstRank {
 public:
  explicit FirstRank(const RendezvousOptions& options)
      : options_(options),
        key_(proof_key(options.job, options.secret)),
        members_(static_cast<size_t>(options.place.ranks)) {
    members_[0] = hello_of(options);
  }

  Meeting meet() {
    listen();
    const Clock::time_point deadline = Clock::now() + options_.limit;
    Clock::time_point says_next = Clock::now() + options_.first_word;
    while (missing().size() > 0) {
      if (Clock::now() >= says_next) {
        log_info("[ranks] rank 0 on {} port {} waits for {}; {} of {} are here", options_.host, port_,
                 ranks_text(missing()), members_.size() - missing().size(), members_.size());
        says_next = Clock::now() + kBetweenWords;
      }
      if (Clock::now() >= deadline) {
        tell_accepted(fmt::format(
            "[ranks] after {:.0f} s, {} not come to rank 0 on {} port {}; expected {} ranks",
            seconds(options_.limit), ranks_text(missing()) + (missing().size() == 1 ? " has" : " have"),
            options_.host, port_, options_.place.ranks));
        throw RankError(reason_to_fail_);
      }
      turn(std::min(deadline, says_next));
      if (!reason_to_fail_.empty()) {
        refuse_the_rest();
        throw RankError(reason_to_fail_);
      }
    }
    return start();
  }

 private:
  // Ranks that come a little later should hear the reason, too, instead of finding nobody.
  void refuse_the_rest() {
    const Clock::time_point deadline = Clock::now() + options_.handshake_limit;
    while (told_.size() + 1 < members_.size() && Clock::now() < deadline) turn(deadline);
  }

  static double seconds(std::chrono::milliseconds time) { return static_cast<double>(time.count()) / 1000; }

  void listen() {
    const int first = first_port(options_);
    const int backlog = std::min(options_.place.ranks + 16, 4096);
    for (port_ = first; port_ < first + kRendezvousPorts && port_ < 65536; ++port_) {
      std::optional<Socket> socket = listen_on(port_, options_.place.nodes() == 1, backlog);
      if (!socket) continue;
      listener_ = std::move(*socket);
      return;
    }
    throw RankError(fmt::format("[ranks] no free port from {} to {} for rank 0", first,
                                std::min(first + kRendezvousPorts, 65536) - 1));
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (size_t i = 0; i < members_.size(); ++i) {
      if (!members_[i]) ranks.push_back(static_cast<int>(i));
    }
    return ranks;
  }

  size_t unknown_guests() const {
    return static_cast<size_t>(
        std::ranges::count_if(guests_, [](const Guest& guest) { return !guest.accepted; }));
  }

  // Waits for something to happen, at most until a deadline, and deals with it.
  void turn(Clock::time_point deadline) {
    const size_t most_unknown = 2 * members_.size() + 16;
    std::vector<pollfd> polled;
    for (const Guest& guest : guests_) {
      polled.push_back({.fd = guest.socket.fd(), .events = POLLIN});
      if (!guest.accepted) deadline = std::min(deadline, guest.deadline);
    }
    // Others wait in the listener's queue until one of the unknown guests is known or dropped.
    const bool accepts = unknown_guests() < most_unknown;
    if (accepts) polled.push_back({.fd = listener_.fd(), .events = POLLIN});
    poll(polled.data(), polled.size(), poll_milliseconds(deadline));

    size_t index = 0;
    for (auto guest = guests_.begin(); guest != guests_.end();) {
      const bool has_input = polled[index++].revents != 0;
      const bool keep = !has_input || read(*guest);
      const bool is_late = !guest->accepted && Clock::now() >= guest->deadline;
      if (keep && is_late) {
        log_once("silent", fmt::format("[ranks] {} connected to rank 0 and did not say who it is within {} s",
                                       guest->address, seconds(options_.handshake_limit)));
      }
      guest = keep && !is_late ? std::next(guest) : guests_.erase(guest);
    }
    if (accepts && polled.back().revents != 0) welcome();
  }

  void welcome() {
    std::optional<Socket> socket = accept_from(listener_);
    if (!socket) return;
    // On one node there may be no secret: only processes of the same user are let in.
    if (const auto user = peer_user(*socket); user && *user != geteuid()) {
      log_once("user",
               fmt::format("[ranks] a process of user {} was refused; expected user {}", *user, geteuid()));
      return;
    }
    Guest guest{.socket = std::move(*socket)};
    guest.address = peer_address(guest.socket).numeric();
    guest.deadline = Clock::now() + options_.handshake_limit;
    if (send_now(guest, ChallengeMessage{guest.challenge})) guests_.push_back(std::move(guest));
  }

  // Small messages to a fresh connection fit into its buffer: who does not take them is dropped.
  template <class Message>
  static bool send_now(const Guest& guest, const Message& message) {
    const std::string frame = to_frame(message);
    return send_some(guest.socket, frame) == frame.size();
  }

  // False: the connection is to be closed.
  bool read(Guest& guest) {
    std::string bytes;
    const ReceiveStatus status = receive_some(guest.socket, bytes);
    if (status == ReceiveStatus::Nothing) return true;
    if (guest.accepted) {
      if (!reason_to_fail_.empty()) return false;
      tell_accepted(fmt::format("[ranks] rank {} on {} {} before all ranks had come", guest.accepted->rank,
                                printable(guest.accepted->host),
                                status == ReceiveStatus::Closed ? "ended" : "sent something unexpected"));
      return false;
    }
    if (status == ReceiveStatus::Closed) return false;
    guest.reader.append(bytes);
    try {
      const std::optional<Frame> frame = guest.reader.next();
      if (!frame) return true;
      if (frame->type != MessageType::Hello)
        throw MessageError(MessageProblem::Type, "[message] expected a hello");
      return judge(guest, from_body<HelloMessage>(frame->body));
    } catch (const MessageError& error) {
      log_once("malformed", fmt::format("[ranks] a connection from {} to rank 0 was closed: {}",
                                        guest.address, error.what()));
      return false;
    }
  }

  bool judge(Guest& guest, const HelloMessage& hello) {
    if (hello.job != job_hash(options_.job)) {
      send_now(guest, RefusedMessage{Refusal::OtherJob, "not your job"});
      return false;
    }
    if (!is_same_proof(hello.proof, client_proof(key_, guest.challenge, hello))) {
      log_once("secret", fmt::format("[ranks] a process at {} belongs to this job but has another secret",
                                     guest.address));
      send_now(guest, RefusedMessage{Refusal::OtherSecret, "another secret"});
      return false;
    }
    if (reason_to_fail_.empty()) {
      const std::string conflict = conflict_of(hello);
      if (!conflict.empty()) tell_accepted(conflict);
    }
    if (!reason_to_fail_.empty()) {
      told_.insert(hello.rank);
      send_now(guest, RefusedMessage{Refusal::Conflict, reason_to_fail_});
      return false;
    }
    if (!send_now(guest, AcceptedMessage{server_proof(key_, guest.challenge, hello)})) return false;
    guest.accepted = hello;
    members_[static_cast<size_t>(hello.rank)] = hello;
    return true;
  }

  // Why this rank cannot take part; "" if it can.
  std::string conflict_of(const HelloMessage& hello) const {
    const HelloMessage& first = *members_[0];
    const auto differ = [&](std::string_view what, const auto& theirs, const auto& ours) {
      return fmt::format(
          "[ranks] rank {} on {} has {} {}, rank 0 on {} has {}; expected the same on all ranks", hello.rank,
          printable(hello.host), what, theirs, printable(first.host), ours);
    };
    if (hello.ranks != first.ranks) return differ("the number of ranks", hello.ranks, first.ranks);
    if (hello.local_ranks != first.local_ranks)
      return differ("the number of ranks per node", hello.local_ranks, first.local_ranks);
    if (hello.version != first.version)
      return differ("the program version", printable(hello.version), printable(first.version));
    if (hello.config != first.config) {
      const auto [theirs, ours] = first_difference(hello.config, first.config);
      return differ("the configuration", printable(theirs), printable(ours));
    }
    if (hello.rank < 0 || hello.rank >= first.ranks)
      return fmt::format("[ranks] a process on {} is rank {}, expected 0 to {}", printable(hello.host),
                         hello.rank, first.ranks - 1);
    const std::optional<HelloMessage>& same = members_[static_cast<size_t>(hello.rank)];
    if (same) {
      return fmt::format("[ranks] two processes are rank {}: one on {}, one on {}; expected one of each rank",
                         hello.rank, printable(same->host), printable(hello.host));
    }
    for (const std::optional<HelloMessage>& other : members_) {
      if (!other || hello.gpu.empty() || other->gpu != hello.gpu || other->host != hello.host) continue;
      return fmt::format(
          "[ranks] ranks {} and {} on {} both use the GPU {}; expected a GPU for each rank, so at most as many "
          "ranks per node as GPUs",
          other->rank, hello.rank, printable(hello.host), printable(hello.gpu));
    }
    return {};
  }

  void tell_accepted(const std::string& reason) {
    reason_to_fail_ = reason;
    for (const Guest& guest : guests_) {
      if (!guest.accepted) continue;
      send_now(guest, RefusedMessage{Refusal::Conflict, reason});
      told_.insert(guest.accepted->rank);
    }
  }

  Meeting start() {
    Meeting meeting{.port = port_};
    meeting.peers.resize(members_.size());
    for (Guest& guest : guests_) {
      if (!guest.accepted) continue;
      const int rank = guest.accepted->rank;
      guest.reader.trust();
      // Ranks of this node may have reached us over loopback. Those of other nodes know the right interface.
      const bool is_remote = rank / options_.place.local_ranks != 0;
      if (is_remote && meeting.address.empty()) meeting.address = local_address(guest.socket).numeric();
      meeting.peers[static_cast<size_t>(rank)] = {std::move(guest.socket), std::move(guest.reader),
                                                  guest.accepted->host};
    }
    if (meeting.address.empty()) meeting.address = "127.0.0.1";
    for (size_t rank = 1; rank < meeting.peers.size(); ++rank) {
      const bool is_here = static_cast<int>(rank) < options_.place.local_ranks;
      const std::string frame = to_frame(StartMessage{is_here ? meeting.address : ""});
      if (!send_all(meeting.peers[rank].socket, frame, Clock::now() + options_.handshake_limit))
        throw RankError(fmt::format("[ranks] rank {} ended before the start", rank));
    }
    return meeting;
  }

  // A client that misbehaves again and again must not fill the log.
  void log_once(const std::string& kind, const std::string& text) {
    if (logged_.insert(kind).second) log_warning("{}", text);
  }

  const RendezvousOptions& options_;
  std::string key_;
  std::vector<std::optional<HelloMessage>> members_;  // by rank
  std::list<Guest> guests_;
  std::set<std::string> logged_;
  std::string reason_to_fail_;  // then everybody is refused
  std::set<int> told_;          // the ranks that know it
  Socket listener_;
  int port_ = 0;
};

}  // namespace

Meeting meet_as_first(const RendezvousOptions& options) {
  return FirstRank(options).meet();
}

}  // namespace octet
