// "10.0.0.7:29600", "gpu01:29600": where on a network somebody listens.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tandem::base {

struct HostPort {
  std::string host;  // a name or an address
  int port = 0;      // 1 to 65535
};

// Nothing where the text is none.
std::optional<HostPort> host_port(std::string_view text);

}  // namespace tandem::base
