// Ranks that look for each other on this machine, each in a thread, and strangers who knock in between.

#include "dist/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <functional>
#include <future>
#include <list>
#include <thread>

#include "support/captured_log.h"

namespace octet::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

// A key of its own for each call, so that tests which run side by side use other ports.
std::string new_job() {
  return random_hex(8);
}

RendezvousOptions options_of(const std::string& job, int rank, int ranks) {
  return {.place = {rank, ranks, rank, ranks},
          .job = job,
          .host = "here",
          .gpu = fmt::format("GPU-{}", rank),
          .config = "c1",
          .version = "v1",
          .limit = 20s,
          .handshake_limit = 10s,
          .first_word = 60s};
}

std::future<std::string> meet_in_thread(const RendezvousOptions& options) {
  return std::async(std::launch::async, [options] {
    try {
      const Meeting meeting = meet(options);
      return fmt::format("met {}", meeting.peers.size());
    } catch (const Error& error) {
      return std::string(error.what());
    }
  });
}

// What every one of them ended with.
std::vector<std::string> outcomes(const std::vector<RendezvousOptions>& all) {
  std::vector<std::future<std::string>> futures;
  for (const RendezvousOptions& options : all) futures.push_back(meet_in_thread(options));
  std::vector<std::string> texts;
  for (std::future<std::string>& future : futures) texts.push_back(future.get());
  return texts;
}

// A connection to rank 0, as soon as it listens.
Socket knock(const RendezvousOptions& options, int port_offset = 0) {
  std::string problem;
  SocketAddress address = node_address();
  address.set_port(first_port(options) + port_offset);
  for (int i = 0; i < 1000; ++i) {
    if (std::optional<Socket> socket = connect_to(address, Clock::now() + 5s, problem))
      return std::move(*socket);
    std::this_thread::sleep_for(10ms);
  }
  throw Error("nobody listens: " + problem);
}

// Reads until the other side closes the connection.
bool is_closed_within(const Socket& socket, std::chrono::seconds limit) {
  const Clock::time_point deadline = Clock::now() + limit;
  std::string bytes;
  while (wait_readable(socket, deadline)) {
    if (receive_some(socket, bytes) == ReceiveStatus::Closed) return true;
  }
  return false;
}

TEST(Rendezvous, AllRanksMeet) {
  for (const int ranks : {1, 2, 3, 5}) {
    const std::string job = new_job();
    std::vector<RendezvousOptions> all;
    for (int rank = ranks - 1; rank >= 0; --rank) all.push_back(options_of(job, rank, ranks));
    const std::vector<std::string> texts = outcomes(all);
    EXPECT_EQ(texts.back(), fmt::format("met {}", ranks));
    for (int i = 0; i + 1 < ranks; ++i) EXPECT_EQ(texts[static_cast<size_t>(i)], "met 1");
  }
}

TEST(Rendezvous, TheFirstRankSaysWhomItWaitsFor) {
  const std::string job = new_job();
  RendezvousOptions first = options_of(job, 0, 3);
  first.first_word = 50ms;
  CapturedLog log;
  std::future<std::string> waiting = meet_in_thread(first), here = meet_in_thread(options_of(job, 1, 3));
  std::this_thread::sleep_for(1s);
  const std::string last = meet_in_thread(options_of(job, 2, 3)).get();
  EXPECT_EQ(waiting.get(), "met 3");
  EXPECT_EQ(here.get(), "met 1");
  EXPECT_EQ(last, "met 1");
  ASSERT_FALSE(log.messages.empty());
  EXPECT_THAT(log.messages.front(), AllOf(HasSubstr("[ranks] rank 0 on here port "),
                                          HasSubstr(" waits for rank"), HasSubstr(" of 3 are here")));
}

// Two jobs whose ports are the same: each finds its own.
TEST(Rendezvous, JobsDoNotMix) {
  const std::string one = new_job(), other = new_job();
  std::vector<RendezvousOptions> all = {options_of(one, 0, 2), options_of(other, 0, 2),
                                        options_of(other, 1, 2), options_of(one, 1, 2)};
  for (RendezvousOptions& options : all) {
    options.base_port = first_port(options_of(one, 0, 2));
    options.config = options.job;
  }
  EXPECT_THAT(outcomes(all), ElementsAre("met 2", "met 2", "met 1", "met 1"));
}

TEST(Rendezvous, APortOfAnotherProgramIsSkipped) {
  const std::string job = new_job();
  const RendezvousOptions first = options_of(job, 0, 2);
  const std::optional<Socket> squatter = listen_on(first_port(first), true, 16);
  ASSERT_TRUE(squatter);
  EXPECT_THAT(outcomes({first, options_of(job, 1, 2)}), ElementsAre("met 2", "met 1"));
}

// A rank whose thread has become another user: the system call, unlike the function of the C library, changes one thread.
std::future<std::string> meet_as_nobody(const RendezvousOptions& options) {
  return std::async(std::launch::async, [options] {
    if (syscall(SYS_setresuid, 65534, 65534, 65534) != 0) return std::string("is no other user");
    try {
      return fmt::format("met {}", meet(options).peers.size());
    } catch (const Error& error) {
      return std::string(error.what());
    }
  });
}

TEST(Rendezvous, OnOneNodeOtherUsersAreRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can start a thread of another user";
  const CapturedLog log;
  const std::string job = new_job();
  std::future<std::string> first = meet_in_thread(options_of(job, 0, 2));
  RendezvousOptions stranger = options_of(job, 1, 2);
  knock(stranger);  // rank 0 listens now
  stranger.limit = 3s;
  EXPECT_THAT(meet_as_nobody(stranger).get(), HasSubstr("belongs to user 0; expected user 65534"));
  EXPECT_EQ(meet_in_thread(options_of(job, 1, 2)).get(), "met 1");
  EXPECT_EQ(first.get(), "met 2");
}

// Somebody who knows the job waits in the place of rank 0. It learns nothing, and the ranks meet at the next port.
TEST(Rendezvous, ARank0OfAnotherUserIsPassedBy) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can start a thread of another user";
  const CapturedLog log;
  const std::string job = new_job();
  RendezvousOptions impostor = options_of(job, 0, 2);
  impostor.limit = 3s;
  std::future<std::string> fake = meet_as_nobody(impostor);
  knock(impostor);  // it listens now
  EXPECT_THAT(outcomes({options_of(job, 0, 2), options_of(job, 1, 2)}), ElementsAre("met 2", "met 1"));
  EXPECT_THAT(fake.get(), HasSubstr("rank 1 has not come"));
  EXPECT_THAT(log.messages, Contains(HasSubstr("of user 0 was refused; expected user 65534")));
}

// Rank 2 of 3 does not fit. All sides say so, rank 1 included, which has nothing to do with it.
std::vector<std::string> conflict(void (*change)(RendezvousOptions&)) {
  const std::string job = new_job();
  std::vector<RendezvousOptions> all = {options_of(job, 0, 3), options_of(job, 1, 3), options_of(job, 2, 3)};
  change(all[2]);
  all[0].handshake_limit = 2s;  // so long it waits for a rank that does not come
  return outcomes(all);
}

TEST(Rendezvous, OtherConfigurationIsNamedOnAllSides) {
  EXPECT_THAT(conflict([](RendezvousOptions& options) { options.config = "c2"; }),
              Each(AllOf(HasSubstr("rank 2 "), HasSubstr("configuration c2"), HasSubstr("rank 0 "),
                         HasSubstr("has c1"))));
}

TEST(Rendezvous, OtherVersionIsNamedOnAllSides) {
  EXPECT_THAT(
      conflict([](RendezvousOptions& options) { options.version = "v2"; }),
      Each(AllOf(HasSubstr("rank 2 "), HasSubstr("version v2"), HasSubstr("rank 0 "), HasSubstr("has v1"))));
}

TEST(Rendezvous, OtherNumberOfRanksIsNamedOnAllSides) {
  EXPECT_THAT(conflict([](RendezvousOptions& options) {
                options.place = {2, 4, 2, 4};
              }),
              Each(AllOf(HasSubstr("rank 2 "), HasSubstr("number of ranks 4"), HasSubstr("has 3"))));
}

TEST(Rendezvous, TheSameRankTwiceIsNamedOnAllSides) {
  EXPECT_THAT(conflict([](RendezvousOptions& options) {
                options.place.rank = options.place.local_rank = 1;
                options.gpu = "GPU-2";
                options.host = "there";
              }),
              Each(AllOf(HasSubstr("two processes are rank 1"), HasSubstr("here"), HasSubstr("there"))));
}

TEST(Rendezvous, TheSameGpuTwiceIsNamedOnAllSides) {
  EXPECT_THAT(conflict([](RendezvousOptions& options) { options.gpu = "GPU-0"; }),
              Each(AllOf(HasSubstr("ranks 0 and 2 "), HasSubstr("GPU-0"))));
}

TEST(Rendezvous, RanksWithoutGpuShareNothing) {
  const std::string job = new_job();
  std::vector<RendezvousOptions> all = {options_of(job, 0, 2), options_of(job, 1, 2)};
  for (RendezvousOptions& options : all) options.gpu = "";
  EXPECT_THAT(outcomes(all), ElementsAre("met 2", "met 1"));
}

// Two nodes, here both on this machine: then rank 0 listens on all interfaces.
RendezvousOptions node_options(const std::string& job, int rank, const std::optional<std::string>& secret) {
  RendezvousOptions options = options_of(job, rank, 2);
  options.place = {rank, 2, 0, 1};
  options.secret = secret;
  return options;
}

TEST(Rendezvous, SeveralNodesNeedASecret) {
  EXPECT_THAT(meet_in_thread(node_options(new_job(), 0, std::nullopt)).get(),
              AllOf(HasSubstr("2 nodes"), HasSubstr("OCTET_SECRET"), HasSubstr("openssl rand -hex 32")));
}

TEST(Rendezvous, SeveralNodesMeetWithASecret) {
  const std::string job = new_job();
  EXPECT_THAT(outcomes({node_options(job, 0, "a secret of all nodes"),
                        node_options(job, 1, "a secret of all nodes")}),
              ElementsAre("met 2", "met 1"));
}

TEST(Rendezvous, AnotherSecretIsRefused) {
  const CapturedLog log;
  const std::string job = new_job();
  RendezvousOptions first = node_options(job, 0, "a secret of all nodes");
  first.limit = 5s;
  const std::vector<std::string> texts = outcomes({first, node_options(job, 1, "a wrong secret")});
  EXPECT_THAT(texts[0], AllOf(HasSubstr("rank 1 has not come"), HasSubstr("after 5 s")));
  EXPECT_THAT(texts[1], AllOf(HasSubstr("rank 1 and rank 0"), HasSubstr("different secrets")));
  EXPECT_THAT(log.messages,
              ElementsAre(HasSubstr("has another secret")));  // once, though it tried three times
}

TEST(Rendezvous, MissingRanksAreNamed) {
  const std::string job = new_job();
  std::vector<RendezvousOptions> all = {options_of(job, 0, 5), options_of(job, 2, 5)};
  all[0].limit = 1s;
  EXPECT_THAT(outcomes(all), Each(HasSubstr("after 1 s, ranks 1, 3 and 4 have not come")));
}

TEST(Rendezvous, AMissingRank0IsNamed) {
  RendezvousOptions options = options_of(new_job(), 1, 2);
  options.limit = 300ms;
  EXPECT_THAT(meet_in_thread(options).get(),
              AllOf(HasSubstr("rank 1 on here"), HasSubstr("no rank 0 of its job")));
}

TEST(Rendezvous, ARankThatLeavesEarlyIsNamed) {
  const std::string job = new_job();
  const RendezvousOptions leaving = options_of(job, 1, 3);
  RendezvousOptions options = options_of(job, 0, 3);
  options.handshake_limit = 1s;
  std::future<std::string> first = meet_in_thread(options);
  // Says the right things, waits until it is accepted, and leaves.
  Socket socket = knock(leaving);
  FrameReader reader;
  const auto next = [&] {
    while (true) {
      if (std::optional<Frame> frame = reader.next()) return std::move(*frame);
      wait_readable(socket, Clock::now() + 10s);
      std::string bytes;
      require(receive_some(socket, bytes) == ReceiveStatus::Data, "closed");
      reader.append(bytes);
    }
  };
  const auto challenge = from_body<ChallengeMessage>(next().body);
  HelloMessage hello{.job = job_hash(job), .rank = 1, .ranks = 3, .local_ranks = 3};
  hello.host = "here";
  hello.config = "c1";
  hello.version = "v1";
  hello.proof = client_proof(proof_key(job, std::nullopt), challenge.nonce, hello);
  ASSERT_TRUE(send_all(socket, to_frame(hello), Clock::now() + 10s));
  EXPECT_EQ(next().type, MessageType::Accepted);
  socket.close();
  EXPECT_THAT(first.get(), HasSubstr("rank 1 on here ended before all ranks had come"));
}

// Strangers are dropped, logged once per kind, and do not keep the ranks from meeting.
TEST(Rendezvous, StrangersDoNotDisturb) {
  const CapturedLog log;
  const std::string job = new_job();
  RendezvousOptions first = options_of(job, 0, 2);
  first.handshake_limit = 500ms;
  std::future<std::string> met = meet_in_thread(first);

  const Socket silent = knock(first);
  std::list<Socket> garbage;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(send_all(garbage.emplace_back(knock(first)), "GET / HTTP/1.1\r\n\r\n", Clock::now() + 5s));
  }
  // A gather of 64 MiB, and a hello that is too long: closed at the header.
  const Socket early = knock(first), oversized = knock(first);
  std::string header = to_frame(GatherMessage{}).substr(0, kMessageHeaderBytes);
  header[11] = 4;
  ASSERT_TRUE(send_all(early, header, Clock::now() + 5s));
  header[5] = static_cast<char>(MessageType::Hello);
  ASSERT_TRUE(send_all(oversized, header, Clock::now() + 5s));

  for (const Socket& socket : garbage) EXPECT_TRUE(is_closed_within(socket, 20s));
  EXPECT_TRUE(is_closed_within(early, 20s));
  EXPECT_TRUE(is_closed_within(oversized, 20s));
  EXPECT_TRUE(is_closed_within(silent, 20s));
  EXPECT_EQ(meet_in_thread(options_of(job, 1, 2)).get(), "met 1");
  EXPECT_EQ(met.get(), "met 2");
  EXPECT_THAT(log.messages,
              UnorderedElementsAre(HasSubstr("was closed: [message]"), HasSubstr("did not say who it is")));
}

// More silent clients than are let in at a time: the rank gets its turn when they have been dropped.
TEST(Rendezvous, ACrowdOfSilentClientsOnlyDelays) {
  const CapturedLog log;
  const std::string job = new_job();
  RendezvousOptions first = options_of(job, 0, 2);
  first.handshake_limit = 300ms;
  std::future<std::string> met = meet_in_thread(first);
  std::list<Socket> crowd;
  for (int i = 0; i < 25; ++i) crowd.push_back(knock(first));
  EXPECT_EQ(meet_in_thread(options_of(job, 1, 2)).get(), "met 1");
  EXPECT_EQ(met.get(), "met 2");
}

}  // namespace
}  // namespace octet::test
