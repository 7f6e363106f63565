#include "base/python.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/environment.h"
#include "base/process.h"

namespace octet {
namespace {

// "/a:b::/c" as "/a:/c".
std::string absolute_places(std::string_view places) {
  std::string kept;
  while (!places.empty()) {
    const size_t end = std::min(places.find(':'), places.size());
    if (places.front() == '/') kept.append(kept.empty() ? "" : ":").append(places.substr(0, end));
    places.remove_prefix(std::min(end + 1, places.size()));
  }
  return kept;
}

}  // namespace

std::string python_program() {
  return environment_value("OCTET_PYTHON").value_or("python3");
}

std::vector<std::string> python_environment() {
  return python_environment(environment_entries());
}

std::vector<std::string> python_environment(std::span<const std::string> given) {
  // Folders that Python imports from, or finds compiled files in.
  constexpr std::string_view kPlaces[] = {"PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE",
                                          "PYTHONPYCACHEPREFIX"};
  std::vector<std::string> result;
  for (const std::string& entry : given) {
    const std::string_view name = std::string_view(entry).substr(0, entry.find('='));
    if (name == "PYTHONSAFEPATH") continue;
    if (std::ranges::find(kPlaces, name) == std::end(kPlaces)) {
      result.push_back(entry);
      continue;
    }
    const std::string kept = absolute_places(std::string_view(entry).substr(name.size() + 1));
    if (!kept.empty()) result.push_back(std::string(name) + "=" + kept);
  }
  result.emplace_back("PYTHONSAFEPATH=1");
  return result;
}

std::string python_answer(std::string_view script) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return "";
  const Descriptor reader(ends[0]);
  Descriptor writer(ends[1]);
  pid_t child = 0;
  const int code = start_program({.words = {python_program(), "-c", std::string(kPythonStart).append(script)},
                                  .environment = python_environment(),
                                  .files = {-1, writer.get(), -1}},
                                 child);
  ::close(writer.release());
  std::string answer(code == 0 ? 4096 : 0, '\0');
  size_t size = 0;
  while (size < answer.size()) {
    const ssize_t count = ::read(ends[0], answer.data() + size, answer.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    size += static_cast<size_t>(count);
  }
  answer.resize(size);
  int status = 1;
  while (code == 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status == 0 ? answer : "";
}

}  // namespace octet
