#include "dist/rank_service.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <exception>

#include "base/log.h"
#include "base/start_thread.h"
#include "dist/rendezvous_detail.h"

namespace octet {
namespace {

using std::chrono::milliseconds;

// A connection that takes nothing gets no more heartbeats.
constexpr size_t kMostWaitingBytes = size_t{1} << 20;

bool same_work(const HeartbeatMessage& a, const HeartbeatMessage& b) {
  return a.step == b.step && a.phase == b.phase && a.lanes == b.lanes;
}

}  // namespace

RankService::RankService(const RankPlace& place, Meeting meeting, std::string host,
                         const RankServiceOptions& options, ProgressBoard& board)
    : place_(place),
      host_(std::move(host)),
      options_(options),
      board_(board),
      exceptions_at_start_(std::uncaught_exceptions()),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  require(wake_.is_open(), "[ranks] no eventfd, expected a free descriptor");
  const Clock::time_point now = Clock::now();
  next_beat_ = last_phase_ = own_changed_ = now;
  for (size_t i = place.is_first() ? 1 : 0; i < meeting.peers.size(); ++i) {
    Connection& connection = connections_.emplace_back();
    connection.rank = static_cast<int>(i);
    connection.peer = std::move(meeting.peers[i]);
    connection.heard = connection.changed = now;
  }
  // Signals are for the main thread.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = start_thread("watching the other ranks", [this] { run(); });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

RankService::~RankService() {
  std::unique_lock lock(mutex_);
  if (std::uncaught_exceptions() > exceptions_at_start_) {
    // The exception is reported by whoever catches it. The thread only tells the others.
    fault_ = FaultMessage{.rank = place_.rank, .code = failure_code_, .reason = "it ended with an error"};
    stop_ = true;
  } else {
    is_leaving_ = true;
    if (!place_.is_first()) send(connections_.front(), GoodbyeMessage{});
  }
  wake();
  const auto done = [&] { return said_farewell_ || is_stopped_; };
  if (!changed_.wait_for(lock, options_.finish, done)) {
    if (place_.is_first()) {
      std::vector<int> running;
      for (const Connection& connection : connections_) {
        if (!connection.said_goodbye) running.push_back(connection.rank);
      }
      const std::string reason = fmt::format("it has ended, but {} still running after {} s",
                                             ranks_text(running) + (running.size() == 1 ? " is" : " are"),
                                             options_.finish.count() / 1000);
      log_warning("[ranks] rank 0: {}", reason);
      fault_ = FaultMessage{.rank = 0, .code = failure_code_, .reason = reason};
    } else {
      log_warning("[ranks] rank {} ends; other ranks are still running after {} s", place_.rank,
                  options_.finish.count() / 1000);
    }
  }
  stop_ = true;
  lock.unlock();
  wake();
  thread_.join();
}

void RankService::wake() const {
  const uint64_t one = 1;
  // A full counter wakes the thread as well.
  if (write(wake_.fd(), &one, sizeof one) < 0) return;
}

RankService::Connection* RankService::connection_of(int rank) {
  for (Connection& connection : connections_) {
    if (connection.rank == rank) return &connection;
  }
  return nullptr;
}

std::vector<std::string> RankService::all_gather(const std::string& tag, const std::string& mine,
                                                 milliseconds limit, std::span<const int> members) {
  GatherMessage message{.limit_ms = limit.count(), .tag = tag, .text = mine};
  message.members.assign(members.begin(), members.end());
  for (int i = 0; members.empty() && i < place_.ranks; ++i) message.members.push_back(i);
  for (size_t i = 0; i < message.members.size(); ++i) {
    const int member = message.members[i];
    require(member >= 0 && member < place_.ranks && std::ranges::count(message.members, member) == 1,
            "[ranks] '{}': member {}, expected each rank from 0 to {} at most once", tag, member,
            place_.ranks - 1);
  }
  require(std::ranges::count(message.members, place_.rank) == 1,
          "[ranks] '{}': rank {} is not a member, expected only members to call", tag, place_.rank);

  constexpr size_t kLongestTag = 256;
  const size_t bytes = mine.size() + tag.size() + 4 * message.members.size() + 64;
  require(tag.size() <= kLongestTag && bytes <= kMostGatherBytes,
          "[ranks] '{}' has {} bytes, expected at most {}", tag.substr(0, kLongestTag), bytes,
          kMostGatherBytes);

  std::unique_lock lock(mutex_);
  message.call = next_call_++;
  Call& call = calls_[message.call];  // map nodes stay where they are
  if (place_.is_first()) {
    contribute(0, message);
  } else {
    send(connections_.front(), message);
  }
  wake();
  // Rank 0 knows who is missing, and answers at the limit.
  constexpr milliseconds kForTheAnswer{10'000};
  const bool answered = changed_.wait_for(lock, limit + kForTheAnswer, [&] { return call.is_done; });
  const auto node = calls_.extract(message.call);
  if (!answered)
    throw RankError(fmt::format("[ranks] '{}': rank 0 has not answered within {} ms", tag, limit.count()));
  if (!call.problem.empty()) throw RankError(call.problem);
  return std::move(call.texts);
}

void RankService::add_lane(const std::string& name, std::span<const int> members) {
  const std::lock_guard lock(mutex_);
  lanes_.push_back({name, {members.begin(), members.end()}});
}

void RankService::set_failure_code(int code) {
  const std::lock_guard lock(mutex_);
  failure_code_ = code;
}

void RankService::report_failure(const std::string& reason) {
  std::unique_lock lock(mutex_);
  const int code = failure_code_;
  if (!fault_) fault_ = FaultMessage{.rank = place_.rank, .code = code, .reason = reason.substr(0, 8192)};
  wake();
  // The thread ends the process.
  changed_.wait_for(lock, milliseconds{20'000}, [] { return false; });
  _exit(code);
}

void RankService::run() {
  std::vector<pollfd> polled;
  std::vector<short> events;
  while (true) {
    Clock::time_point deadline;
    {
      const std::lock_guard lock(mutex_);
      deadline = next_beat_;
      for (const auto& [key, gathering] : gatherings_) {
        for (const auto& [rank, contribution] : gathering) {
          if (!contribution.gave_up) deadline = std::min(deadline, contribution.deadline);
        }
      }
      polled.assign(1, {.fd = wake_.fd(), .events = POLLIN});
      for (const Connection& connection : connections_) {
        const int writes = connection.out.empty() ? 0 : POLLOUT;
        // poll skips negative descriptors.
        polled.push_back({.fd = connection.is_closed ? -1 : connection.peer.socket.fd(),
                          .events = static_cast<short>(POLLIN | writes)});
      }
    }
    poll(polled.data(), polled.size(), poll_milliseconds(deadline));
    uint64_t count = 0;
    if (read(wake_.fd(), &count, sizeof count) < 0) count = 0;
    events.clear();
    for (const pollfd& each : polled) events.push_back(each.revents);

    const std::lock_guard lock(mutex_);
    serve(events);
    if (stop_ && !stop_deadline_) stop_deadline_ = Clock::now() + milliseconds{2000};
    if (stop_ && (fault_ || everything_sent() || Clock::now() >= *stop_deadline_)) {
      if (fault_) tell_others(*fault_);
      is_stopped_ = true;
      changed_.notify_all();
      return;
    }
    if (fault_) end_process(*fault_);
  }
}

void RankService::serve(const std::vector<short>& events) {
  // A process that was stopped finds the others gone. It must not blame them.
  const Clock::time_point round = Clock::now();
  if (!fault_ && !stop_ && round - last_round_ > options_.silence) {
    fault_ = FaultMessage{.rank = place_.rank,
                          .code = failure_code_,
                          .reason = fmt::format("it was stopped for {:.1f} s, longer than other ranks wait",
                                                seconds_since(last_round_))};
    return;
  }
  last_round_ = round;
  for (size_t i = 0; i < connections_.size(); ++i) {
    Connection& connection = connections_[i];
    if (connection.is_closed) continue;
    bool is_open = true;
    if (events[i + 1] != 0) is_open = read_from(connection);
    if (is_open) write_to(connection);
    if (is_open) continue;
    connection.is_closed = true;
    connection.out.clear();
    connection.peer.socket.close();
    const bool is_normal = place_.is_first() ? connection.said_goodbye : said_farewell_;
    if (!is_normal && !fault_) {
      fault_ = FaultMessage{.rank = connection.rank, .code = failure_code_, .reason = kDeathReason};
    }
  }
  if (fault_) return;
  const Clock::time_point now = Clock::now();
  // A dead peer breaks collectives of its neighbours: its closed connection, seen above, is blamed first.
  if (const std::string failure = board_.failure(); !failure.empty()) {
    if (!collective_failed_) collective_failed_ = now;
    constexpr milliseconds kPatience{1000};
    if (now - *collective_failed_ > kPatience) {
      fault_ = FaultMessage{.rank = place_.rank, .code = failure_code_, .reason = failure};
      return;
    }
  }
  HeartbeatMessage state = board_.state();
  if (!same_work(state, own_state_)) own_changed_ = now;
  own_state_ = std::move(state);
  if (now >= next_beat_) {
    next_beat_ = now + options_.heartbeat;
    for (Connection& connection : connections_) {
      if (connection.out.size() - connection.sent < kMostWaitingBytes) send(connection, own_state_);
      if (!connection.is_closed) write_to(connection);
    }
    check_silence();
    if (place_.is_first()) check_progress();
  }
  if (place_.is_first()) {
    expire_gatherings();
    say_farewell();
  }
}

bool RankService::read_from(Connection& connection) {
  try {
    while (true) {
      std::string bytes;
      const ReceiveStatus status = receive_some(connection.peer.socket, bytes);
      if (status == ReceiveStatus::Nothing) return true;
      if (status == ReceiveStatus::Closed) return false;
      connection.heard = Clock::now();
      connection.peer.reader.append(bytes);
      while (const std::optional<Frame> frame = connection.peer.reader.next()) handle(connection, *frame);
      if (fault_) return true;
    }
  } catch (const MessageError& error) {
    fault_ = FaultMessage{.rank = connection.rank,
                          .code = failure_code_,
                          .reason = fmt::format("it sent what cannot be read: {}", error.what())};
    return true;
  }
}

void RankService::handle(Connection& connection, const Frame& frame) {
  const auto refuse = [&] [[noreturn]] {
    throw MessageError(MessageProblem::Type, fmt::format("type {}", static_cast<int>(frame.type)));
  };
  const auto call_of = [&](uint64_t number) -> Call* {
    const auto call = calls_.find(number);
    return call == calls_.end() ? nullptr : &call->second;  // none: it has given up
  };
  if (frame.type == MessageType::Heartbeat) {
    auto state = from_body<HeartbeatMessage>(frame.body);
    if (!same_work(state, connection.state)) connection.changed = Clock::now();
    connection.state = std::move(state);
  } else if (frame.type == MessageType::Fault) {
    connection.has_reported = true;
    // Rank 0's message holds for all: it also knows why this rank has failed.
    if (!fault_ || !place_.is_first()) fault_ = from_body<FaultMessage>(frame.body);
    if (fault_->rank < -1 || fault_->rank >= place_.ranks) fault_->rank = connection.rank;
    // Only the code of rank 0 counts for all.
    if (place_.is_first()) fault_->code = failure_code_;
  } else if (place_.is_first()) {
    if (frame.type == MessageType::Gather) {
      contribute(connection.rank, from_body<GatherMessage>(frame.body));
    } else if (frame.type == MessageType::Goodbye) {
      connection.said_goodbye = true;
      // Nobody need wait for it any more.
      for (auto entry = gatherings_.begin(); entry != gatherings_.end();) settle(entry++);
    } else {
      refuse();
    }
  } else if (frame.type == MessageType::Gathered) {
    auto message = from_body<GatheredMessage>(frame.body);
    if (Call* const call = call_of(message.call)) {
      call->texts = std::move(message.texts);
      call->is_done = true;
    }
    changed_.notify_all();
  } else if (frame.type == MessageType::GatherFailed) {
    const auto message = from_body<GatherFailedMessage>(frame.body);
    if (Call* const call = call_of(message.call)) {
      call->problem = clean_text(message.reason);
      call->is_done = true;
    }
    changed_.notify_all();
  } else if (frame.type == MessageType::Farewell) {
    said_farewell_ = true;
    changed_.notify_all();
  } else {
    refuse();
  }
}

void RankService::write_to(Connection& connection) {
  if (connection.out.empty()) return;
  const std::string_view rest = std::string_view(connection.out).substr(connection.sent);
  // A broken connection is noticed by the reader, which may still find the reason in it.
  connection.sent += send_some(connection.peer.socket, rest).value_or(0);
  if (connection.sent < connection.out.size()) return;
  connection.out.clear();
  if (connection.out.capacity() > kMostWaitingBytes) connection.out.shrink_to_fit();
  connection.sent = 0;
}

void RankService::check_silence() {
  const Clock::time_point now = Clock::now();
  for (const Connection& connection : connections_) {
    if (connection.is_closed || connection.said_goodbye || now - connection.heard < options_.silence ||
        fault_)
      continue;
    fault_ = FaultMessage{.rank = connection.rank,
                          .code = failure_code_,
                          .reason = fmt::format("its process has stopped: no heartbeat for {:.1f} s",
                                                seconds_since(connection.heard))};
  }
}

// Rank 0 judges for all: it alone knows whether some rank is in a phase that may take long.
// In a phase, work without collectives may take long on some rank. It has a limit, too, because collectives may also hang
// there.
void RankService::check_progress() {
  constexpr milliseconds kLeastPhaseLimit{600'000};
  const Clock::time_point now = Clock::now();
  bool in_phase = !own_state_.phase.empty();
  for (const Connection& connection : connections_) in_phase |= !connection.state.phase.empty();
  if (in_phase) last_phase_ = now;
  const auto limit = in_phase ? std::max<milliseconds>(6 * options_.stall, kLeastPhaseLimit) : options_.stall;
  const auto check = [&](int rank, const HeartbeatMessage& state, Clock::time_point since) {
    if (!in_phase) since = std::max(since, last_phase_);
    if (fault_ || now - since < limit) return;
    for (const LaneState& lane : state.lanes) {
      if (lane.queued <= lane.finished) continue;
      const std::string behind = behind_text();
      fault_ = FaultMessage{.rank = -1, .code = failure_code_};
      fault_->reason =
          fmt::format("no collective has finished for {:.1f} s; rank {} waits in '{}' of step {}. {}",
                      seconds_since(since), rank, clean_text(lane.last_queued), state.step,
                      behind.empty() ? "No rank is behind: all have queued the same" : behind);
      return;
    }
  };
  check(0, own_state_, own_changed_);
  for (const Connection& connection : connections_) {
    if (!connection.said_goodbye) check(connection.rank, connection.state, connection.changed);
  }
}

void RankService::say_farewell() {
  if (!is_leaving_ || said_farewell_ || !all_others_done()) return;
  for (Connection& connection : connections_) {
    send(connection, FarewellMessage{});
    if (!connection.is_closed) write_to(connection);
  }
  said_farewell_ = true;
  changed_.notify_all();
}

bool RankService::all_others_done() const {
  return std::ranges::all_of(connections_, [](const Connection& each) { return each.said_goodbye; });
}

bool RankService::everything_sent() const {
  return std::ranges::all_of(connections_, [](const Connection& each) { return each.out.empty(); });
}

}  // namespace octet
