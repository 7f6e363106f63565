#include "base/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace octet {
namespace {

void (*handler_of(int number))(int) {
  struct sigaction action {};
  sigaction(number, nullptr, &action);
  return action.sa_handler;
}

void own_handler(int) {}

// Runs `body` in a child and returns its wait status; the child exits with 0 where body returns.
template <class Body>
int status_of_child(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    if (freopen("/dev/null", "w", stderr) == nullptr) _exit(99);
    body();
    _exit(0);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(StopSignal, TheFirstSignalOnlySetsTheFlag) {
  signal(SIGHUP, SIG_DFL);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGXCPU}) {
    const StopSignal stop;
    EXPECT_FALSE(stop.requested());
    EXPECT_EQ(stop.number(), 0);
    raise(number);
    EXPECT_TRUE(stop.requested());
    EXPECT_EQ(stop.number(), number);
  }
  EXPECT_FALSE(StopSignal().requested());  // a later one starts anew
}

TEST(StopSignal, ASecondSignalExitsAtOnce) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "after a fork next to other threads, the thread sanitizer holds signals back";
#endif
  for (const int number : {SIGINT, SIGTERM}) {
    const int status = status_of_child([number] {
      const StopSignal stop;
      raise(SIGTERM);
      usleep(80'000);
      raise(number);
      _exit(7);  // not reached
    });
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), number == SIGINT ? 130 : 143);
  }
}

TEST(StopSignal, UnderNohupAHangupStaysIgnored) {
  signal(SIGHUP, SIG_IGN);
  {
    const StopSignal stop;
    raise(SIGHUP);
    EXPECT_FALSE(stop.requested());
  }
  signal(SIGHUP, SIG_DFL);
}

// Whoever presses Ctrl-C after a warning of the system asks for the first time.
TEST(StopSignal, AfterASignalOfTheSystemAPersonAsksFirstAndEndsSecond) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "after a fork next to other threads, the thread sanitizer holds signals back";
#endif
  for (const bool again : {false, true}) {
    const int status = status_of_child([again] {
      const StopSignal stop;
      raise(SIGXCPU);
      usleep(80'000);
      raise(SIGTERM);
      usleep(80'000);
      if (again) raise(SIGINT);
      _exit(stop.number() == SIGXCPU ? 42 : 1);
    });
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), again ? 130 : 42);
  }
}

// A terminal that closes sends SIGHUP, and then the shell does. SIGXCPU comes every second.
TEST(StopSignal, WhatTheSystemRepeatsIsOneRequest) {
  for (const int number : {SIGHUP, SIGXCPU}) {
    const int status = status_of_child([number] {
      signal(SIGHUP, SIG_DFL);
      const StopSignal stop;
      raise(number);
      usleep(80'000);
      raise(number);
      _exit(stop.number() == number ? 42 : 1);
    });
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 42);
  }
}

TEST(BrokenPipes, AreSurvivedHereAndNotByStartedPrograms) {
  const int status = status_of_child([] {
    signal(SIGPIPE, SIG_DFL);
    survive_broken_pipes();
    int ends[2];
    if (pipe(ends) != 0) _exit(1);
    close(ends[0]);
    if (write(ends[1], "x", 1) != -1 || errno != EPIPE) _exit(2);
    execl("/bin/sh", "sh", "-c", "kill -PIPE $$", nullptr);
  });
  ASSERT_TRUE(WIFSIGNALED(status)) << "exit code " << WEXITSTATUS(status);
  EXPECT_EQ(WTERMSIG(status), SIGPIPE);
}

// Both are held back and let go together, so that a busy machine cannot put time between them.
TEST(StopSignal, TheSameRequestDeliveredTwiceCountsOnce) {
  const int status = status_of_child([] {
    const StopSignal stop;
    sigset_t both;
    sigemptyset(&both);
    sigaddset(&both, SIGINT);
    sigaddset(&both, SIGTERM);
    sigprocmask(SIG_BLOCK, &both, nullptr);
    raise(SIGINT);
    raise(SIGTERM);
    sigprocmask(SIG_UNBLOCK, &both, nullptr);
    _exit(stop.requested() ? 42 : 1);
  });
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 42);
}

TEST(StopSignal, PutsTheHandlersBack) {
  signal(SIGINT, own_handler);
  signal(SIGTERM, SIG_IGN);
  {
    const StopSignal stop;
    EXPECT_NE(handler_of(SIGINT), own_handler);
    EXPECT_NE(handler_of(SIGTERM), SIG_IGN);
  }
  EXPECT_EQ(handler_of(SIGINT), own_handler);
  EXPECT_EQ(handler_of(SIGTERM), SIG_IGN);
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
}

TEST(StopSignal, AfterDestructionTheDefaultActionEndsTheProgram) {
  const int status = status_of_child([] {
    { const StopSignal stop; }
    raise(SIGTERM);
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
}

TEST(StopSignal, AReadInFlightGoesOn) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const StopSignal stop;
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    usleep(20'000);
    kill(parent, SIGINT);
    usleep(20'000);
    _exit(write(ends[1], "x", 1) == 1 ? 0 : 1);
  }
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
  EXPECT_EQ(stop.number(), SIGINT);
  waitpid(child, nullptr, 0);
  close(ends[0]);
  close(ends[1]);
}

TEST(StopSignal, OneAtATime) {
  const StopSignal stop;
  EXPECT_THROW(StopSignal(), Error);
  raise(SIGINT);
  EXPECT_TRUE(stop.requested());  // the first is still in charge
}

}  // namespace
}  // namespace octet
