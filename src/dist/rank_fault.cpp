// The end of all ranks after one has failed.

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "base/safe_text.h"
#include "dist/rank_service.h"
#include "dist/rendezvous_detail.h"

namespace octet {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kForTheLastWords{2000};
// A dead process may close the connections of its collectives long before this one: the GPU is given back in between.
constexpr milliseconds kForTheCause{1000};
// Rank 0 first looks for the cause. It may be slow on a busy machine.
constexpr milliseconds kForTheAnswer{5000};

constexpr int kUsageCode = 2;    // kExitUsage
constexpr int kResumeCode = 75;  // kExitRequeue of base/exit_codes.h

}  // namespace

// The ranks that have queued fewer collectives than the others: probably the ones that hang. Empty: none.
std::string RankService::behind_text() const {
  const auto state_of = [&](int rank) -> const HeartbeatMessage& {
    for (const Connection& connection : connections_) {
      if (connection.rank == rank) return connection.state;
    }
    return own_state_;
  };
  for (size_t lane = 0; lane < static_cast<size_t>(ProgressBoard::kMostLanes); ++lane) {
    std::map<int, uint64_t> counts;  // by rank
    for (int rank = 0; rank < place_.ranks; ++rank) {
      if (lane < lanes_.size() && std::ranges::count(lanes_[lane].members, rank) == 0) continue;
      const std::vector<LaneState>& lanes = state_of(rank).lanes;
      counts[rank] = lane < lanes.size() ? lanes[lane].queued : 0;
    }
    uint64_t most = 0;
    for (const auto& [rank, count] : counts) most = std::max(most, count);
    std::vector<int> behind;
    for (const auto& [rank, count] : counts) {
      if (count < most) behind.push_back(rank);
    }
    if (behind.empty()) continue;
    return fmt::format(
        "{} behind: {} of {} collectives of {} queued",
        ranks_text(behind) + (behind.size() == 1 ? " is" : " are"), counts[behind.front()], most,
        lane < lanes_.size() ? fmt::format("'{}'", lanes_[lane].name) : fmt::format("lane {}", lane));
  }
  return {};
}

std::string RankService::fault_block(const FaultMessage& fault) const {
  // A wrong configuration is no failure of a rank: the rank that found it says so, in one line.
  if (fault.code == kUsageCode)
    return fault.rank == place_.rank ? fmt::format("error: {}\n", clean_text(fault.reason)) : "";
  std::vector<std::string> names;
  for (const LaneInfo& lane : lanes_) names.push_back(lane.name);
  std::string text = "\n";
  if (fault.rank < 0) {
    text += fmt::format("error: [ranks] the ranks hang: {}\n", clean_text(fault.reason));
  } else {
    text += fmt::format("error: [ranks] rank {} of {} failed: {}\n", fault.rank, place_.ranks,
                        clean_text(fault.reason));
  }
  text += fmt::format("  this is rank {} on {}: {}\n", place_.rank, clean_text(host_),
                      describe_progress(board_.state(), names));
  if (place_.is_first()) {
    // Ranks in the same state share a line.
    std::map<std::string, std::vector<int>> states;
    states[describe_progress(own_state_, names)].push_back(0);
    for (const Connection& connection : connections_)
      states[describe_progress(connection.state, names)].push_back(connection.rank);
    text += "  last known of all ranks (of a dead one, from its last heartbeat):\n";
    for (const auto& [state, ranks] : states) text += fmt::format("    {}: {}\n", ranks_text(ranks), state);
  }
  text += fault.code == kResumeCode
              ? "  there is a checkpoint: the same command with --resume latest continues the run"
              : "  there is no checkpoint to continue from";
  text += fmt::format(" (exit code {})\n", fault.code);
  return text;
}

bool RankService::someone_may_have_died() const {
  return std::ranges::any_of(connections_,
                             [](const Connection& each) { return !each.said_goodbye && !each.has_reported; });
}

// A rank that fails because another one died may report it before rank 0 has looked at that connection, or in the same
// round in which rank 0 found it closed. The dead one is the cause.
void RankService::look_for_dead(FaultMessage& fault) {
  const Clock::time_point deadline = Clock::now() + kForTheCause;
  std::vector<pollfd> polled;
  while (true) {
    const auto dead = std::ranges::find_if(connections_, &Connection::has_died);
    if (dead != connections_.end()) {
      fault.reason = fmt::format("{}; rank {} reported: {}", kDeathReason, fault.rank, fault.reason);
      fault.rank = dead->rank;
      return;
    }
    if (!someone_may_have_died() || Clock::now() >= deadline) return;
    polled.clear();
    for (const Connection& connection : connections_)
      polled.push_back({.fd = connection.is_closed ? -1 : connection.peer.socket.fd(), .events = POLLIN});
    poll(polled.data(), polled.size(), poll_milliseconds(deadline));
    for (size_t i = 0; i < connections_.size(); ++i) {
      Connection& connection = connections_[i];
      if (!connection.is_closed && polled[i].revents != 0) connection.is_closed = !read_from(connection);
    }
  }
}

void RankService::send_last(Connection& connection, const std::string& frame, Clock::time_point deadline) {
  if (connection.is_closed) return;
  // A message that was begun must be finished first.
  const std::string_view rest = std::string_view(connection.out).substr(connection.sent);
  if (send_all(connection.peer.socket, rest, deadline)) send_all(connection.peer.socket, frame, deadline);
  connection.out.clear();
  connection.sent = 0;
}

void RankService::tell_others(const FaultMessage& fault) {
  const Clock::time_point deadline = Clock::now() + kForTheLastWords;
  const std::string frame = to_frame(fault);
  for (Connection& connection : connections_) send_last(connection, frame, deadline);
}

// The other ranks answer with what they do at this moment, and end. Waiting for that also keeps a reset of the
// connection from overtaking the message to them.
void RankService::hear_others(const FaultMessage& fault) {
  own_state_ = board_.state();
  const Clock::time_point deadline = Clock::now() + kForTheLastWords / 2;
  for (Connection& connection : connections_) {
    if (connection.is_closed || connection.rank == fault.rank) continue;
    std::string bytes;
    try {
      while (wait_readable(connection.peer.socket, deadline) &&
             receive_some(connection.peer.socket, bytes) != ReceiveStatus::Closed) {
        connection.peer.reader.append(bytes);
        bytes.clear();
        while (const std::optional<Frame> frame = connection.peer.reader.next()) {
          if (frame->type == MessageType::Heartbeat)
            connection.state = from_body<HeartbeatMessage>(frame->body);
        }
      }
    } catch (const MessageError&) {  // then the last heartbeat must do
    }
  }
}

// Rank 0 may know more than this rank: which rank is behind, and the code with which all end.
void RankService::hear_first(FaultMessage& fault) {
  Connection& first = connections_.front();
  const Clock::time_point deadline = Clock::now() + kForTheAnswer;
  std::string bytes;
  try {
    while (!first.is_closed && wait_readable(first.peer.socket, deadline)) {
      first.is_closed = receive_some(first.peer.socket, bytes) == ReceiveStatus::Closed;
      first.peer.reader.append(bytes);
      bytes.clear();
      while (const std::optional<Frame> frame = first.peer.reader.next()) {
        if (frame->type != MessageType::Fault) continue;
        fault = from_body<FaultMessage>(frame->body);
        return;
      }
    }
  } catch (const MessageError&) {  // then this rank's own words must do
  }
  if (!first.is_closed) return;
  fault.reason = fmt::format("{}; rank {} reported: {}", kDeathReason, fault.rank, fault.reason);
  fault.rank = 0;
}

namespace {

void write_all(int file, std::string_view rest) {
  while (!rest.empty()) {
    const ssize_t count = write(file, rest.data(), rest.size());
    if (count <= 0) return;
    rest.remove_prefix(static_cast<size_t>(count));
  }
}

}  // namespace

void RankService::end_process(FaultMessage fault) {
  if (place_.is_first()) {
    const bool is_reported = fault.rank == 0 || (fault.rank > 0 && connection_of(fault.rank)->has_reported);
    if (is_reported) look_for_dead(fault);
    tell_others(fault);
    hear_others(fault);
  } else {
    if (fault.rank == place_.rank && !connections_.front().has_reported) {
      tell_others(fault);
      hear_first(fault);
    }
    send_last(connections_.front(), to_frame(board_.state()), Clock::now() + kForTheLastWords);
  }
  const std::string text = terminal_safe(fault_block(fault));
  write_all(STDERR_FILENO, text);
  // If the first rank cannot tell the user, the second one does.
  const int console = console_;
  if (fault.rank == 0 && place_.rank == 1 && console >= 0) write_all(console, text);
  _exit(fault.code);
}

}  // namespace octet
