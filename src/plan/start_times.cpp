#include "plan/start_times.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>
#include <utility>

namespace octet {
namespace {

const Clock::time_point kLoaded = Clock::now();

}  // namespace

double process_seconds() {
  // Field 22 of the file is the start in clock ticks since the machine was started. The second field, a name in
  // brackets, may hold spaces.
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  std::istringstream fields(text.substr(std::min(text.rfind(')') + 1, text.size())));
  std::string skipped;
  double ticks = 0;
  for (int i = 3; i < 22; ++i) fields >> skipped;
  timespec now{};
  if (!(fields >> ticks) || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return seconds_since(kLoaded);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) -
         ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

std::string start_times_text(const StartTimes& times, double seconds) {
  constexpr double kNamed = 0.05;
  std::string text = fmt::format("{:.1f} s", seconds);
  double other = seconds;
  bool first = true;
  const auto add = [&](const char* what, double part) {
    if (part < kNamed) return;
    text += fmt::format("{} {} {:.1f}", first ? ":" : ",", what, part);
    first = false;
  };
  for (const auto& [what, part] :
       {std::pair{"device", times.device}, std::pair{"model", times.model}, std::pair{"data", times.data},
        std::pair{"plan", times.plan}, std::pair{"weights", times.weights},
        std::pair{"evaluation", times.evaluation}}) {
    add(what, part);
    other -= part;
  }
  if (!first) add("other", other);
  return text;
}

}  // namespace octet
