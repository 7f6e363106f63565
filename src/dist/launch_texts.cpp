// The texts inside launchers' variables: addresses, secrets, SLURM's lists.

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "dist/launch_environment.h"

namespace octet {
namespace {

constexpr size_t kShortestSecret = 16, kLongestSecret = 4096;

bool is_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; });
}

std::string checked_secret(std::string secret, const std::string& place) {
  while (!secret.empty() && std::isspace(static_cast<unsigned char>(secret.back()))) secret.pop_back();
  if (secret.size() < kShortestSecret || secret.size() > kLongestSecret) {
    fail_config(
        "[launch] the secret of {} has {} characters; expected {} to {}, for example from 'openssl rand "
        "-hex 32'",
        place, secret.size(), kShortestSecret, kLongestSecret);
  }
  return secret;
}

std::string secret_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_config("[launch] the file '{}' of OCTET_SECRET_FILE cannot be read", printable(path));
  struct stat status {};
  if (stat(path.c_str(), &status) == 0 && (status.st_mode & (S_IRGRP | S_IROTH)) != 0)
    log_warning("the secret in '{}' can be read by other users; 'chmod 600' hides it", printable(path));
  std::string text(kLongestSecret + 64, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return checked_secret(std::move(text), fmt::format("the file '{}'", printable(path)));
}

}  // namespace

std::optional<std::string> read_secret(const EnvironmentLookup& environment) {
  const std::string secret = environment("OCTET_SECRET").value_or("");
  const std::string file = environment("OCTET_SECRET_FILE").value_or("");
  if (!secret.empty()) return checked_secret(secret, "OCTET_SECRET");
  if (!file.empty()) return secret_of_file(file);
  return std::nullopt;
}

HostAndPort parse_host_and_port(const std::string& text, std::string_view what) {
  const auto refuse = [&] [[noreturn]] {
    fail_config("[launch] {} is '{}'; expected host:port, with a port from 1 to 65535", what,
                printable(text));
  };
  HostAndPort result;
  std::string_view rest = text;
  if (rest.starts_with('[')) {
    const size_t end = rest.find(']');
    if (end == std::string_view::npos) refuse();
    result.host = rest.substr(1, end - 1);
    rest.remove_prefix(end + 1);
  } else if (std::ranges::count(rest, ':') > 1) {  // a bare IPv6 address
    result.host = rest;
    rest = {};
  } else {
    const size_t end = std::min(rest.find(':'), rest.size());
    result.host = rest.substr(0, end);
    rest.remove_prefix(end);
  }
  if (!rest.empty()) {
    const std::string_view digits = rest.substr(1);
    if (rest.front() != ':' || !is_digits(digits) || digits.size() > 5) refuse();
    result.port = static_cast<int>(*parse_int(digits));
    if (result.port < 1 || result.port > 65535) refuse();
  }
  const bool is_clean = std::ranges::all_of(
      result.host, [](unsigned char c) { return std::isalnum(c) || (c != '\0' && std::strchr(".-_:%", c)); });
  if (result.host.empty() || result.host.size() > 255 || !is_clean) refuse();
  return result;
}

std::string first_host_of(const std::string& node_list, std::string_view what) {
  const auto refuse = [&] [[noreturn]] {
    fail_config("[launch] {} is '{}'; expected node names such as n[01-04],login", what,
                printable(node_list));
  };
  std::string host;
  for (size_t i = 0; i < node_list.size() && node_list[i] != ','; ++i) {
    if (node_list[i] != '[') {
      host += node_list[i];
      continue;
    }
    // "[01-04,7]": the first number, with its zeros.
    const size_t end = node_list.find(']', i);
    if (end == std::string::npos) refuse();
    const std::string_view numbers = std::string_view(node_list).substr(i + 1, end - i - 1);
    const std::string_view first = numbers.substr(0, numbers.find_first_of("-,"));
    if (!is_digits(first)) refuse();
    host += first;
    i = end;
  }
  const bool is_clean = std::ranges::all_of(
      host, [](unsigned char c) { return std::isalnum(c) || c == '.' || c == '-' || c == '_'; });
  if (host.empty() || host.size() > 255 || !is_clean) refuse();
  return host;
}

std::vector<int> tasks_per_node(const std::string& text, std::string_view what) {
  const auto refuse = [&] [[noreturn]] {
    fail_config("[launch] {} is '{}'; expected numbers of tasks such as 4(x2),3", what, printable(text));
  };
  const auto number = [&](std::string_view digits) {
    if (!is_digits(digits) || digits.size() > 5) refuse();
    const int value = static_cast<int>(*parse_int(digits));
    if (value < 1 || value > kMostRanks) refuse();
    return value;
  };
  std::vector<int> tasks;
  std::string_view rest = text;
  while (true) {
    const size_t comma = std::min(rest.find(','), rest.size());
    std::string_view part = rest.substr(0, comma);
    int times = 1;
    const size_t bracket = part.find("(x");
    if (bracket != std::string_view::npos) {
      if (!part.ends_with(')')) refuse();
      times = number(part.substr(bracket + 2, part.size() - bracket - 3));
      part = part.substr(0, bracket);
    }
    if (static_cast<size_t>(times) + tasks.size() > static_cast<size_t>(kMostRanks)) refuse();
    tasks.insert(tasks.end(), static_cast<size_t>(times), number(part));
    if (comma == rest.size()) return tasks;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace octet
