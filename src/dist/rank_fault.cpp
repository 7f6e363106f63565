// The end of all ranks after one has failed.

#include <unistd.h>

#include <algorithm>
#include <map>

#include "dist/rank_service.h"
#include "dist/rendezvous_detail.h"

namespace octet {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kForTheLastWords{2000};

constexpr int kResumeCode = 75;  // kExitRequeue of train/exit_codes.h

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
    text += "  last known of all ranks:\n";
    for (const auto& [state, ranks] : states) text += fmt::format("    {}: {}\n", ranks_text(ranks), state);
    const std::string behind = behind_text();
    if (!behind.empty()) text += fmt::format("    {}\n", behind);
  }
  text += fault.code == kResumeCode
              ? "  there is a checkpoint: the same command with --resume latest continues the run"
              : "  there is no checkpoint to continue from";
  text += fmt::format(" (exit code {})\n", fault.code);
  return text;
}

void RankService::tell_others(const FaultMessage& fault) {
  const Clock::time_point deadline = Clock::now() + kForTheLastWords;
  const std::string frame = to_frame(fault);
  for (Connection& connection : connections_) {
    if (connection.is_closed) continue;
    // A message that was begun must be finished first.
    const std::string_view rest = std::string_view(connection.out).substr(connection.sent);
    if (send_all(connection.peer.socket, rest, deadline)) send_all(connection.peer.socket, frame, deadline);
  }
}

// Rank 0 may know more than this rank: which rank is behind, and the code with which all end.
void RankService::hear_first(FaultMessage& fault) {
  Connection& first = connections_.front();
  const Clock::time_point deadline = Clock::now() + kForTheLastWords;
  try {
    while (!first.is_closed && wait_readable(first.peer.socket, deadline)) {
      std::string bytes;
      if (receive_some(first.peer.socket, bytes) == ReceiveStatus::Closed) return;
      first.peer.reader.append(bytes);
      while (const std::optional<Frame> frame = first.peer.reader.next()) {
        if (frame->type != MessageType::Fault) continue;
        fault = from_body<FaultMessage>(frame->body);
        return;
      }
    }
  } catch (const MessageError&) {  // then this rank's own words must do
  }
}

void RankService::end_process(FaultMessage fault) {
  const bool from_first = !place_.is_first() && fault.rank != place_.rank;
  if (!from_first) tell_others(fault);
  if (!from_first && !place_.is_first()) hear_first(fault);
  const std::string text = fault_block(fault);
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t count = write(STDERR_FILENO, rest.data(), rest.size());
    if (count <= 0) break;
    rest.remove_prefix(static_cast<size_t>(count));
  }
  if (place_.is_first()) {
    // The others end as soon as they have read the message. A reset of the connection must not overtake it.
    const Clock::time_point deadline = Clock::now() + milliseconds{1000};
    for (Connection& connection : connections_) {
      std::string ignored;
      while (!connection.is_closed && connection.rank != fault.rank &&
             wait_readable(connection.peer.socket, deadline)) {
        if (receive_some(connection.peer.socket, ignored) == ReceiveStatus::Closed) break;
        ignored.clear();
      }
    }
  }
  _exit(fault.code);
}

}  // namespace octet
