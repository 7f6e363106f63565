#pragma once

#include <stdlib.h>

#include <string>

#include "support/places.h"
#include "support/process.h"

namespace octet::test {

// While it lives, Nvml::open() finds the fake library of tests/support/nvml with these values, in this process and in
// those that it starts.
class FakeNvml {
 public:
  explicit FakeNvml(const std::string& values) {
    set(values);
    setenv("FAKE_NVML_STATE", (folder_.path() + "/state").c_str(), 1);
    setenv("OCTET_NVML_LIBRARY", test::fake_nvml_library().c_str(), 1);
  }
  ~FakeNvml() {
    unsetenv("FAKE_NVML_STATE");
    unsetenv("OCTET_NVML_LIBRARY");
  }
  FakeNvml(const FakeNvml&) = delete;
  FakeNvml& operator=(const FakeNvml&) = delete;
  void set(const std::string& values) { folder_.write("state", values); }

 private:
  TemporaryFolder folder_;
};

}  // namespace octet::test
