#include "mesh/channel_seal.h"

#include <fmt/format.h>

#include "base/hmac.h"
#include "base/poly1305.h"

namespace tandem::mesh {

ChannelSeal::ChannelSeal(std::string_view secret, ChannelEnd end, const Digits& digits) {
  const auto key_of = [&](std::string_view who) {
    return base::hmac_sha256_bytes(
        secret, fmt::format("tandem channel\nfrom the end that {}\n{} {}\n{}{}", who, digits.of_listening.size(),
                            digits.of_connecting.size(), digits.of_listening, digits.of_connecting));
  };
  own_.key = key_of(end == ChannelEnd::kListens ? "listens" : "connects");
  other_.key = key_of(end == ChannelEnd::kListens ? "connects" : "listens");
}

std::string ChannelSeal::next_tag(Direction& direction, Kind kind, std::string_view bytes) {
  const std::string one_time_key =
      base::hmac_sha256_bytes(direction.key, fmt::format("{} {}", static_cast<int>(kind), direction.num_said++));
  return base::poly1305(one_time_key, bytes);
}

std::string ChannelSeal::tag_of(Kind kind, std::string_view said) { return next_tag(own_, kind, said); }

bool ChannelSeal::is_tag_of(Kind kind, std::string_view heard, std::string_view tag) {
  return base::are_equal_secrets(next_tag(other_, kind, heard), tag);
}

}  // namespace tandem::mesh
