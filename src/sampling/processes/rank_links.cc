#include "sampling/processes/rank_links.h"

#include <fmt/format.h>

#include <optional>
#include <random>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "device/communicator.h"
#include "memory/arena_allocator.h"
#include "mesh/channel_connector.h"
#include "mesh/hosts.h"
#include "mesh/local_socket.h"

namespace tandem::sampling {

namespace {

std::string drawn_name() {
  std::random_device random;
  return fmt::format("ranks-{:08x}{:08x}{:08x}", random(), random(), random());
}

// Containers of one machine may share no folder for local sockets: then the network is the way, as between machines.
std::unique_ptr<mesh::Channel> connect(const base::Json& where, const LinkSettings& settings) {
  if (where.at("machine") == mesh::machine_id()) {
    if (std::optional<mesh::OwnedDescriptor> socket = mesh::connect_locally(where.at("name")))
      return std::make_unique<mesh::Channel>(std::move(*socket), settings.timeout_s);
  }
  if (where.at("port") == 0) return nullptr;
  return mesh::connect_channel(where.at("address"), where.at("port"), settings.door.secret, settings.timeout_s);
}

}  // namespace

RankLinks link_ranks(mesh::Mesh& mesh, const LinkSettings& settings) {
  RankLinks links;
  const mesh::Group replicas = mesh.data();
  if (replicas.size() == 1) return links;
  base::Json where = nullptr;
  if (mesh.rank() == 0) {
    const std::string name = drawn_name();
    links.connections = std::make_unique<Connections>(
        Connections::Settings{.address = name, .door = settings.door, .silence_s = settings.timeout_s}, nullptr);
    where = {{"name", name},
             {"machine", mesh::machine_id()},
             {"address", settings.door.address},
             {"port", links.connections->port()}};
  }
  const memory::BypassArena message;
  where = base::parse_json(device::broadcast_text(mesh.host(), 0, base::dump_json(where)), "rank 0's address");
  if (mesh.rank() == 0) {
    links.connections->wait_for_ranks(replicas.size() - 1, settings.timeout_s);
  } else if (mesh.tensor().rank() == 0) {
    links.rank0 = connect(where, settings);
    TANDEM_ENV_CHECK(links.rank0,
                     fmt::format("rank {} does not reach rank 0 at {}", mesh.rank(), base::dump_json(where)));
    links.rank0->send(to_bytes(RankHello{.rank = mesh.rank()}));
  }
  return links;
}

}  // namespace tandem::sampling
