#include "dist/rank_progress.h"

#include "dist/rendezvous_detail.h"

namespace octet {
namespace {

constexpr size_t kLongestName = 200;

}  // namespace

ProgressBoard::Lane* ProgressBoard::lane_at(int lane) {
  if (lane < 0 || lane >= kMostLanes) return nullptr;
  const auto index = static_cast<size_t>(lane);
  if (index >= lanes_.size()) lanes_.resize(index + 1);
  return &lanes_[index];
}

void ProgressBoard::begin_step(int64_t step) {
  const std::lock_guard lock(mutex_);
  step_ = step;
}

void ProgressBoard::begin_phase(std::string_view phase) {
  const std::lock_guard lock(mutex_);
  phase_ = phase.substr(0, kLongestName);
}

void ProgressBoard::queued(int lane, std::string_view what) {
  const std::lock_guard lock(mutex_);
  if (Lane* const state = lane_at(lane))
    state->names[state->queued++ % kNames] = what.substr(0, kLongestName);
}

void ProgressBoard::finished(int lane) {
  const std::lock_guard lock(mutex_);
  if (Lane* const state = lane_at(lane)) ++state->finished;
}

void ProgressBoard::failed(int, std::string_view reason) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = reason.substr(0, kLongestName);
}

std::string ProgressBoard::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

HeartbeatMessage ProgressBoard::state() const {
  const std::lock_guard lock(mutex_);
  HeartbeatMessage message{.step = step_, .phase = phase_};
  for (const Lane& lane : lanes_) {
    LaneState state{.queued = lane.queued, .finished = lane.finished};
    if (lane.queued > 0) state.last_queued = lane.names[(lane.queued - 1) % kNames];
    const bool has_name =
        lane.finished > 0 && lane.finished <= lane.queued && lane.queued - lane.finished < kNames;
    if (has_name) state.last_finished = lane.names[(lane.finished - 1) % kNames];
    message.lanes.push_back(std::move(state));
  }
  return message;
}

std::string describe_progress(const HeartbeatMessage& state, const std::vector<std::string>& lane_names) {
  std::string text = state.step < 0 ? "no step yet" : fmt::format("step {}", state.step);
  if (!state.phase.empty()) text += ", " + clean_text(state.phase);
  for (size_t i = 0; i < state.lanes.size(); ++i) {
    const LaneState& lane = state.lanes[i];
    if (lane.queued == 0) continue;
    const std::string name = i < lane_names.size() ? lane_names[i] : fmt::format("lane {}", i);
    text += fmt::format("; {}: {} queued, last '{}', {} finished", name, lane.queued,
                        clean_text(lane.last_queued), lane.finished);
    if (!lane.last_finished.empty()) text += fmt::format(", last '{}'", clean_text(lane.last_finished));
  }
  return text;
}

}  // namespace octet
