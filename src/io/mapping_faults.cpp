#include "io/mapping_faults.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "base/text.h"

namespace octet {
namespace {

// Never freed, because the handler walks the list without a lock. A node without a mapping has end 0 and is used again.
struct NamedMapping {
  std::atomic<uintptr_t> begin = 0, end = 0;
  std::string path;  // not changed while end is set
  NamedMapping* next = nullptr;
};

std::mutex change;
std::atomic<NamedMapping*> first = nullptr;
std::atomic<const char*> fault_advice = "";
std::atomic<int> fault_code = kExitFailure;
std::atomic<int> fault_console = -1;
struct sigaction previous;
static_assert(std::atomic<uintptr_t>::is_always_lock_free &&
                  std::atomic<NamedMapping*>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "a signal handler may use lock-free atomics only");

const NamedMapping* mapping_at(uintptr_t address) {
  const NamedMapping* mapping = first.load(std::memory_order_acquire);
  while (mapping && (address >= mapping->end.load(std::memory_order_acquire) || address < mapping->begin))
    mapping = mapping->next;
  return mapping;
}

void say_to(int file, const char* text, size_t size) {
  while (size > 0) {
    const ssize_t written = write(file, text, size);
    if (written <= 0) return;
    text += written;
    size -= static_cast<size_t>(written);
  }
}

void say(const char* text, size_t size) {
  say_to(STDERR_FILENO, text, size);
  if (const int console = fault_console; console >= 0) say_to(console, text, size);
}

void on_bus_error(int number, siginfo_t* info, void*) {
  const bool is_access = info->si_code == BUS_ADRERR || info->si_code == BUS_OBJERR;
  const NamedMapping* mapping = is_access ? mapping_at(reinterpret_cast<uintptr_t>(info->si_addr)) : nullptr;
  if (!mapping) {  // not one of ours: as without this handler
    sigaction(number, &previous, nullptr);
    raise(number);
    return;
  }
  constexpr char kBefore[] = "\nerror: [";
  constexpr char kAfter[] =
      "] cannot be read any more: it was made shorter while it was in use, or its disk failed";
  say(kBefore, sizeof kBefore - 1);
  say(mapping->path.data(), mapping->path.size());
  say(kAfter, sizeof kAfter - 1);
  const char* const advice = fault_advice.load();
  say(advice, std::strlen(advice));
  say("\n", 1);
  _exit(fault_code);
}

void install_handler() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, &previous);
}

}  // namespace

void name_mapping(const void* data, size_t size, const std::string& path) {
  const std::lock_guard lock(change);
  NamedMapping* mapping = first.load();
  if (!mapping) install_handler();
  while (mapping && mapping->end != 0) mapping = mapping->next;
  if (!mapping) {
    mapping = new NamedMapping;
    mapping->next = first.load();
    first.store(mapping, std::memory_order_release);
  }
  const auto begin = reinterpret_cast<uintptr_t>(data);
  mapping->path = printable(path);
  mapping->begin = begin;
  mapping->end.store(begin + size, std::memory_order_release);
}

void forget_mapping(const void* data) noexcept {
  const std::lock_guard lock(change);
  NamedMapping* mapping = first.load();
  while (mapping && (mapping->end == 0 || mapping->begin != reinterpret_cast<uintptr_t>(data)))
    mapping = mapping->next;
  if (mapping) mapping->end = 0;
}

void set_mapping_fault_advice(const char* advice, int exit_code) noexcept {
  fault_advice = advice;
  fault_code = exit_code;
}

void set_mapping_fault_console(int file) noexcept {
  fault_console = file;
}

}  // namespace octet
