#include "scorer/address.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/env.h"
#include "base/sha256.h"
#include "mesh/local_socket.h"
#include "mesh/network.h"
#include "mesh/secret.h"

namespace tandem::scorer {

namespace {

bool is_made_of_letters(const std::string& text, std::string_view and_of) {
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           and_of.find(c) != std::string_view::npos;
  });
}

bool is_sound(const Address& address) {
  constexpr size_t kMaxLength = 32;
  if (address.place) return is_made_of_letters(address.place->host, "-._");
  return address.text.size() <= kMaxLength && is_made_of_letters(address.text, "-");
}

}  // namespace

std::string Address::local_name() const {
  constexpr size_t kDigits = 32;
  return "scorer-" + base::sha256(text).substr(0, kDigits);
}

Address address_of(const std::string& text, const std::string& flag) {
  Address address{.text = text, .place = base::host_port(text)};
  const bool is_number = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  TANDEM_USER_CHECK(!is_number,
                    fmt::format("{} {}: is a number alone; give HOST:{} with the name or address of the machine, or a "
                                "name with a letter for a process on the same machine",
                                flag, text, text));
  TANDEM_USER_CHECK(is_sound(address),
                    fmt::format("{} {}: is no address; give HOST:PORT, or a name of 1 to 32 letters, digits and '-' "
                                "for a process on the same machine",
                                flag, text));
  return address;
}

std::string own_secret() {
  const std::string file = base::secret_file();
  return file.empty() ? "" : mesh::read_secret(file);
}

void check_guarded(const Address& address, bool has_secret, bool trust_network, const std::string& flag) {
  TANDEM_USER_CHECK(!address.place || has_secret || trust_network,
                    fmt::format("{} {}: whoever is at the other end would be believed; set TANDEM_SECRET_FILE for the "
                                "run and for tandem scorer, or give --trust-network if nobody else is on the network",
                                flag, address.text));
}

std::unique_ptr<mesh::Channel> connect_here(const Address& address, double patience_s) {
  std::optional<mesh::OwnedDescriptor> socket = mesh::connect_locally(address.local_name());
  return socket ? std::make_unique<mesh::Channel>(std::move(*socket), patience_s) : nullptr;
}

std::unique_ptr<mesh::ChannelConnector> connect_there(const Address& address, const std::string& secret,
                                                      double patience_s) {
  if (!address.place) return nullptr;
  const std::string host = mesh::address_of_host(address.place->host, /*wait_s=*/0.0, "--opd-teacher-address");
  return std::make_unique<mesh::ChannelConnector>(host, address.place->port, secret, patience_s);
}

}  // namespace tandem::scorer
