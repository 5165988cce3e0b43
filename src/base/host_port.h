// Parses network addresses: "10.0.0.7:29600", "gpu01:29600".
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tandem::base {

struct HostPort {
  std::string host;  // name or address
  int port = 0;      // 1 to 65535
};

// Returns nullopt if the text is no such address.
std::optional<HostPort> host_port(std::string_view text);

}  // namespace tandem::base
