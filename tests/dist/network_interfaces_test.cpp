#include "dist/network_interfaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/error.h"
#include "support/captured_log.h"
#include "support/error_of.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Field;
using testing::HasSubstr;

const std::vector<NetworkInterface> kPresent = {{"lo", "127.0.0.1"},
                                                {"docker0", "172.17.0.1"},
                                                {"eth0", "10.0.0.3"},
                                                {"ib0", "10.1.0.3"},
                                                {"ib1", "10.1.0.4"}};

std::string chosen(const char* variable, const char* names) {
  return choose_address({variable, names}, "10.0.0.3", kPresent);
}

TEST(NetworkInterfaces, TheWishOfTheUserCounts) {
  EXPECT_EQ(choose_address({}, "10.0.0.3", kPresent), "10.0.0.3");
  EXPECT_EQ(chosen("GLOO_SOCKET_IFNAME", "ib1"), "10.1.0.4");
  EXPECT_EQ(chosen("GLOO_SOCKET_IFNAME", "lo"), "127.0.0.1");
  EXPECT_EQ(chosen("NCCL_SOCKET_IFNAME", "ib"), "10.1.0.3");
  EXPECT_EQ(chosen("NCCL_SOCKET_IFNAME", "=ib1"), "10.1.0.4");
  EXPECT_EQ(chosen("NCCL_SOCKET_IFNAME", "ib,eth"), "10.0.0.3");  // octet's own choice stays if it may
  EXPECT_EQ(chosen("NCCL_SOCKET_IFNAME", "^docker,lo"), "10.0.0.3");
  EXPECT_EQ(chosen("NCCL_SOCKET_IFNAME", "^=eth0,docker0"), "10.1.0.3");
}

TEST(NetworkInterfaces, AnInterfaceThatIsNotThereIsAnErrorThatNamesThoseThatAre) {
  for (const auto& [variable, names] : std::vector<std::pair<const char*, const char*>>{
           {"GLOO_SOCKET_IFNAME", "ib"}, {"NCCL_SOCKET_IFNAME", "=ib"}, {"NCCL_SOCKET_IFNAME", "eno1"}}) {
    EXPECT_THAT(error_of([&] { chosen(variable, names); }),
                AllOf(HasSubstr(variable), HasSubstr(names), HasSubstr("lo, docker0, eth0, ib0, ib1")));
  }
}

TEST(NetworkInterfaces, ThisMachineHasLoopback) {
  EXPECT_THAT(network_interfaces(), Contains(Field(&NetworkInterface::address, "127.0.0.1")));
}

// Without a wish the run goes on, but the user knows why others cannot find this machine.
TEST(NetworkInterfaces, AListThatCannotBeMadeIsSaid) {
  const CapturedLog log;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::vector<NetworkInterface> found = network_interfaces();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(found.empty());
  EXPECT_THAT(log.messages, testing::ElementsAre(HasSubstr("could not be listed")));
}

}  // namespace
}  // namespace octet::test
