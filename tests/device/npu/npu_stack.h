// Sets up the stand-in for CANN (fake_cann) for one test, and checks that the test gave back all that it took.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <utility>

#include "device/npu/acl_calls.h"
#include "tests/device/npu/fake_cann/fake_cann.h"

namespace tandem::device {

class NpuStack {
 public:
  using Option = std::pair<const char*, std::string>;

  // Sets options of fake_cann.h for as long as this object lives.
  explicit NpuStack(std::initializer_list<Option> options = {}) {
    for (const auto& [name, value] : options) fake_cann_set(name, value.c_str());
  }
  ~NpuStack() {
    for (const char* what : {"reservations", "handles", "mappings", "blocks", "host_blocks", "streams"})
      EXPECT_EQ(fake_cann_count(what), 0) << what;
    for (const auto& [name, value] : {Option{"devices", "8"},
                                      {"bytes", "4294967296"},
                                      {"host_bytes", "1099511627776"},
                                      {"late", "0"},
                                      {"aliases", "yes"},
                                      {"uuid", "yes"},
                                      {"version", "9.1.0"},
                                      {"visible", ""},
                                      {"fail", ""}})
      fake_cann_set(name, value.c_str());
  }
  NpuStack(const NpuStack&) = delete;
  NpuStack& operator=(const NpuStack&) = delete;

  // The calls of the stand-in, which is linked to the test.
  const npu::AclCalls& acl() const { return acl_; }

  // Lets call number `k` from now on of `call` ("*": any) fail with a code of AscendCL.
  static void fail(const std::string& call, int64_t k, npu::AclResult code) {
    fake_cann_set("fail", (call + ":" + std::to_string(k) + ":" + std::to_string(code)).c_str());
  }
  static void stop_failing() { fake_cann_set("fail", ""); }

 private:
  npu::AclCalls acl_ = npu::load_acl_calls();
};

}  // namespace tandem::device
