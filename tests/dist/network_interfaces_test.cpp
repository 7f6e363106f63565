#include "dist/network_interfaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
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

}  // namespace
}  // namespace octet::test
