#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "dist/rank_progress.h"
#include "dist/ranks.h"
#include "dist/rendezvous.h"

namespace octet {

inline constexpr const char* kDeathReason = "its process has ended (the connection was closed)";

struct RankServiceOptions {
  std::chrono::milliseconds heartbeat{500};
  std::chrono::milliseconds silence{30'000};  // a rank that says nothing for so long has stopped
  std::chrono::milliseconds stall{
      100'000};  // no collective finished for so long, though one is queued: a hang
  std::chrono::milliseconds finish{300'000};  // for the other ranks to end after this one
};

// The connections between rank 0 and the others after the rendezvous, served by one thread per process: host messages,
// heartbeats, and the end of all ranks when one has failed. The thread ends the process with _exit: a rank that waits
// for a collective of a dead one cannot be woken in any other way.
class RankService final : public HostChannel {
 public:
  RankService(const RankPlace& place, Meeting meeting, std::string host, const RankServiceOptions& options,
              ProgressBoard& board);
  // Waits until all ranks are done. During an exception it tells the others that this rank has failed instead.
  ~RankService() override;

  int rank() const override { return place_.rank; }
  int size() const override { return place_.ranks; }
  using HostChannel::all_gather;
  std::vector<std::string> all_gather(const std::string& tag, const std::string& mine,
                                      std::chrono::milliseconds limit, std::span<const int> members) override;

  // Who takes part in the collectives of a lane. Lanes are told in their order.
  void add_lane(const std::string& name, std::span<const int> members);
  void set_failure_code(int code);
  [[noreturn]] void report_failure(const std::string& reason);
  void set_console(int file) { console_ = file; }

 private:
  struct Connection {
    int rank = 0;
    Peer peer;
    std::string out;
    size_t sent = 0;  // of `out`
    Clock::time_point heard, changed;
    HeartbeatMessage state;
    bool said_goodbye = false;
    bool has_reported = false;  // a failure
    bool is_closed = false;
    bool has_died() const { return is_closed && !said_goodbye && !has_reported; }
  };
  // A call of all_gather in this process.
  struct Call {
    bool is_done = false;
    std::string problem;
    std::vector<std::string> texts;
  };
  // On rank 0: what has come for one tag.
  struct Contribution {
    uint64_t call = 0;
    Clock::time_point deadline;
    std::chrono::milliseconds limit{};
    std::string text;
    bool gave_up = false;  // its caller has had an answer; kept so that nobody says it has not called
  };
  using GatherKey = std::pair<std::string, std::vector<int32_t>>;
  using Gathering = std::map<int, Contribution>;  // by rank
  struct LaneInfo {
    std::string name;
    std::vector<int> members;
  };

  // All of these are called with the mutex held.
  void serve(const std::vector<short>& events);
  bool read_from(Connection& connection);  // false: closed
  void handle(Connection& connection, const Frame& frame);
  void write_to(Connection& connection);
  template <class Message>
  void send(Connection& connection, const Message& message) {
    if (!connection.is_closed) connection.out += to_frame(message);
  }
  void contribute(int from, const GatherMessage& message);
  void settle(std::map<GatherKey, Gathering>::iterator entry);
  void answer(int to, uint64_t call, std::vector<std::string> texts);
  void answer_failure(int to, uint64_t call, const std::string& problem);
  void expire_gatherings();
  void check_silence();
  void check_progress();
  void say_farewell();
  bool all_others_done() const;
  bool everything_sent() const;
  std::string behind_text() const;
  std::string fault_block(const FaultMessage& fault) const;
  // Tells the other ranks, prints what is known and ends the process.
  [[noreturn]] void end_process(FaultMessage fault);
  void look_for_dead(FaultMessage& fault);
  bool someone_may_have_died() const;
  void tell_others(const FaultMessage& fault);
  void hear_others(const FaultMessage& fault);
  static void send_last(Connection& connection, const std::string& frame, Clock::time_point deadline);
  void hear_first(FaultMessage& fault);

  void run();
  void wake() const;
  Connection* connection_of(int rank);

  const RankPlace place_;
  const std::string host_;
  const RankServiceOptions options_;
  ProgressBoard& board_;
  std::atomic<int> console_ = -1;  // where the user reads, if the standard error is a file of this rank
  Clock::time_point last_round_ = Clock::now();
  std::optional<Clock::time_point>
      collective_failed_;  // when this rank's engine said that one can never finish
  const int exceptions_at_start_;
  Socket wake_;  // an eventfd

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // calls, said_farewell_, is_stopped_
  std::vector<Connection> connections_;
  std::map<uint64_t, Call> calls_;
  uint64_t next_call_ = 1;
  std::map<GatherKey, Gathering> gatherings_;
  std::vector<LaneInfo> lanes_;
  std::optional<FaultMessage> fault_;  // set by report_failure for the thread
  int failure_code_ = 1;
  bool is_leaving_ = false, said_farewell_ = false, stop_ = false, is_stopped_ = false;
  std::optional<Clock::time_point> stop_deadline_;
  Clock::time_point next_beat_, last_phase_, own_changed_;
  HeartbeatMessage own_state_;
  std::thread thread_;
};

}  // namespace octet
