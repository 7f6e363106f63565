// Host messages at rank 0: contributions with the same tag and members are brought together.

#include <algorithm>

#include "dist/rank_service.h"
#include "dist/rendezvous_detail.h"

namespace octet {

void RankService::contribute(int from, const GatherMessage& message) {
  const auto is_rank = [&](int32_t member) { return member >= 0 && member < place_.ranks; };
  if (!std::ranges::all_of(message.members, is_rank) || std::ranges::count(message.members, from) != 1) {
    answer_failure(from, message.call, fmt::format("[ranks] '{}': wrong members", message.tag));
    return;
  }
  const auto entry = gatherings_.try_emplace({message.tag, message.members}).first;
  // At most a day, so that no time overflows.
  const std::chrono::milliseconds limit{std::clamp<int64_t>(message.limit_ms, 0, 86'400'000)};
  Contribution& mine = entry->second[from];
  if (mine.call != 0 && !mine.gave_up) {
    answer_failure(from, message.call,
                   fmt::format("[ranks] '{}': rank {} calls it twice at the same time", message.tag, from));
    return;
  }
  mine = {message.call, Clock::now() + limit, limit, message.text};
  settle(entry);
}

// Answers the callers if everybody has called, or if somebody never will.
void RankService::settle(std::map<GatherKey, Gathering>::iterator entry) {
  const std::string tag = entry->first.first;
  const std::vector<int32_t> members = entry->first.second;
  std::vector<int> gone;
  for (const int member : members) {
    if (entry->second.contains(member) || member == 0) continue;
    if (connection_of(member)->said_goodbye) gone.push_back(member);
  }
  const auto waiting =
      std::ranges::count_if(entry->second, [](const auto& item) { return !item.second.gave_up; });
  if (gone.empty() && static_cast<size_t>(waiting) < members.size()) return;
  Gathering gathering = std::move(entry->second);
  gatherings_.erase(entry);  // first: a caller may use the tag again as soon as it has the answer
  std::string problem;
  if (!gone.empty()) {
    problem = fmt::format("[ranks] '{}': {} ended without calling it", tag,
                          ranks_text(gone) + (gone.size() == 1 ? " has" : " have"));
  }
  size_t bytes = 16;
  for (const auto& [rank, contribution] : gathering) bytes += contribution.text.size() + 4;
  if (bytes > kMostGatherBytes)
    problem =
        fmt::format("[ranks] '{}' has {} bytes in all, expected at most {}", tag, bytes, kMostGatherBytes);
  if (!problem.empty()) {
    for (const auto& [rank, contribution] : gathering) {
      if (!contribution.gave_up) answer_failure(rank, contribution.call, problem);
    }
    return;
  }
  std::vector<std::string> texts;
  for (const int member : members) texts.push_back(std::move(gathering[member].text));
  for (const auto& [rank, contribution] : gathering) answer(rank, contribution.call, texts);
}

void RankService::answer(int to, uint64_t number, std::vector<std::string> texts) {
  if (to != 0) {
    send(*connection_of(to), GatheredMessage{number, std::move(texts)});
    write_to(*connection_of(to));
    return;
  }
  const auto call = calls_.find(number);
  if (call == calls_.end()) return;
  call->second.texts = std::move(texts);
  call->second.is_done = true;
  changed_.notify_all();
}

void RankService::answer_failure(int to, uint64_t number, const std::string& problem) {
  if (to != 0) {
    send(*connection_of(to), GatherFailedMessage{number, problem.substr(0, 8192)});
    write_to(*connection_of(to));
    return;
  }
  const auto call = calls_.find(number);
  if (call == calls_.end()) return;
  call->second.problem = problem;
  call->second.is_done = true;
  changed_.notify_all();
}

void RankService::expire_gatherings() {
  const Clock::time_point now = Clock::now();
  for (auto entry = gatherings_.begin(); entry != gatherings_.end();) {
    const auto& [tag, members] = entry->first;
    std::vector<int> missing;
    for (const int member : members) {
      if (!entry->second.contains(member)) missing.push_back(member);
    }
    bool somebody_waits = false;
    for (auto& [rank, contribution] : entry->second) {
      if (!contribution.gave_up && now >= contribution.deadline) {
        const std::string who = missing.empty()       ? "other ranks have"
                                : missing.size() == 1 ? ranks_text(missing) + " has"
                                                      : ranks_text(missing) + " have";
        contribution.gave_up = true;
        answer_failure(rank, contribution.call,
                       fmt::format("[ranks] '{}': {} not called it within {:.1f} s, rank {} waited for it",
                                   tag, who, static_cast<double>(contribution.limit.count()) / 1000, rank));
      }
      somebody_waits |= !contribution.gave_up;
    }
    entry = somebody_waits ? std::next(entry) : gatherings_.erase(entry);
  }
}

}  // namespace octet
