#include "base/host_port.h"

#include <charconv>

namespace tandem::base {

std::optional<HostPort> host_port(std::string_view text) {
  constexpr int kMaxPort = 65535;
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  HostPort result = {.host = std::string(text.substr(0, colon))};
  const char* const end = text.data() + text.size();
  const auto [behind, error] = std::from_chars(text.data() + colon + 1, end, result.port);
  if (error != std::errc() || behind != end || result.port < 1 || result.port > kMaxPort) return std::nullopt;
  return result;
}

}  // namespace tandem::base
