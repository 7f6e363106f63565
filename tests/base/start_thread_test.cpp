#include "base/start_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>

#include "base/error.h"

namespace octet {
namespace {

TEST(StartThread, OneThatCannotBeStartedIsNamedWithTheLimit) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer ends a program that gets no thread";
#endif
  const auto start = [] {
    const rlimit none{0, 0};
    // The limit does not hold for root.
    if (setrlimit(RLIMIT_NPROC, &none) != 0 || (getuid() == 0 && setuid(65534) != 0)) _exit(9);
    try {
      start_thread("reading", [] {}).join();
    } catch (const Error& error) {
      std::fputs(error.what(), stderr);
      _exit(1);
    }
    _exit(0);
  };
  EXPECT_EXIT(start(), testing::ExitedWithCode(1), "a thread for reading .* may have 0 .*ulimit -u");
}

}  // namespace
}  // namespace octet
