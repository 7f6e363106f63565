#include "dist/process_ranks.h"

#include <algorithm>
#include <set>

#include "dist/engines.h"
#include "dist/rank_service.h"
#include "dist/rendezvous.h"

namespace octet {
namespace {

class ProcessRanks final : public Ranks {
 public:
  ProcessRanks(const LaunchEnvironment& launch, Meeting meeting, const std::string& host,
               const RankServiceOptions& options)
      : launcher_(launch.launcher),
        place_(launch.place),
        address_(meeting.address),
        service_(launch.place, std::move(meeting), host, options, board_) {}

  const RankPlace& place() const override { return place_; }
  HostChannel& host() override { return service_; }
  Progress& progress() override { return board_; }

  std::string description() const override {
    std::string text = fmt::format("{} {}", place_.ranks, place_.ranks == 1 ? "rank" : "ranks");
    if (place_.nodes() > 1) text += fmt::format(" on {} nodes", place_.nodes());
    if (!engine_.empty()) text += ", " + engine_;
    if (!launcher_.empty()) text += ", started by " + launcher_;
    return text;
  }

  std::unique_ptr<Communicator> make_communicator(Device& device, const std::string& name,
                                                  std::span<const int> members) override {
    require(names_.insert(name).second, "[ranks] there is already a group '{}', expected a new name", name);
    for (const int member : members) {
      require(member >= 0 && member < place_.ranks && std::ranges::count(members, member) == 1,
              "[ranks] group '{}': member {}, expected each rank from 0 to {} at most once", name, member,
              place_.ranks - 1);
    }
    // All ranks count all groups, so that a lane has the same number everywhere.
    const int lane = next_lane_++;
    service_.add_lane(name, members);
    if (std::ranges::count(members, place_.rank) == 0) return nullptr;
    const GroupRequest request{.host = service_,
                               .progress = board_,
                               .lane = lane,
                               .name = name,
                               .members = {members.begin(), members.end()},
                               .address = address_};
    if (device.name() == "cpu") {
      engine_ = gloo_description();
      return make_gloo_communicator(request);
    }
    require(device.name() == "cuda", "[ranks] there are no groups on the device {}, expected cpu or cuda",
            device.name());
    engine_ = nccl_description();
    return make_nccl_communicator(device, request);
  }

  void set_failure_code(int code) override { service_.set_failure_code(code); }
  void set_console(int file) override { service_.set_console(file); }
  void report_failure(const std::string& reason) override {
    if (place_.ranks > 1) service_.report_failure(reason);
  }

 private:
  const std::string launcher_;
  const RankPlace place_;
  const std::string address_;
  ProgressBoard board_;
  RankService service_;
  std::set<std::string> names_;
  int next_lane_ = 0;
  std::string engine_;
};

}  // namespace

std::unique_ptr<Ranks> make_process_ranks(const LaunchEnvironment& launch,
                                          const ProcessRanksOptions& options) {
  const std::string host = options.host.empty() ? host_name() : options.host;
  const std::vector<NetworkInterface> interfaces = network_interfaces();
  choose_address(launch.interface, "", interfaces);  // a wrong name is said before waiting for other ranks
  Meeting meeting = meet({.place = launch.place,
                          .job = launch.job,
                          .master_host = launch.master_host,
                          .base_port = launch.base_port,
                          .secret = launch.secret,
                          .host = host,
                          .gpu = options.gpu,
                          .config = options.config,
                          .version = options.version,
                          .limit = options.rendezvous,
                          .handshake_limit = options.handshake});
  meeting.address = choose_address(launch.interface, meeting.address, interfaces);
  return std::make_unique<ProcessRanks>(launch, std::move(meeting), host,
                                        RankServiceOptions{.heartbeat = options.heartbeat,
                                                           .silence = options.silence,
                                                           .stall = options.stall,
                                                           .finish = options.finish});
}

}  // namespace octet
