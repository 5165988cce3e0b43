// An address must have both HOST and PORT, or it is refused.
#include "base/host_port.h"

#include <gtest/gtest.h>

namespace tandem::base {
namespace {

TEST(HostPort, IsAHostAndAPort) {
  const std::optional<HostPort> read = host_port("gpu01:29600");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->host, "gpu01");
  EXPECT_EQ(read->port, 29600);
  for (const char* text : {"", "gpu01", ":1", "gpu01:", "gpu01:0", "gpu01:65536", "gpu01:80a", "gpu01: 80", "a:-1"})
    EXPECT_FALSE(host_port(text)) << text;
}

}  // namespace
}  // namespace tandem::base
