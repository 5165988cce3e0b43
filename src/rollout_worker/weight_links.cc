#include "rollout_worker/weight_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "base/bell.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/host_port.h"
#include "base/log.h"
#include "mesh/local_socket.h"
#include "mesh/network.h"
#include "mesh/secret.h"

namespace tandem::rollout_worker {

namespace {

constexpr size_t kWaitingBytes = size_t{64} << 20;
constexpr double kConnects = 10.0;  // seconds in which the worker before connects; it does nothing else then

std::string address_at(const std::string& address, int port) {
  return address.empty() ? "" : fmt::format("{}:{}", address, port);
}

std::unique_ptr<mesh::Channel> connect(const sampling::WeightDoor& door, const std::string& secret, double patience_s) {
  if (!door.name.empty()) {
    std::optional<mesh::OwnedDescriptor> socket = mesh::connect_locally(door.name);
    return socket ? std::make_unique<mesh::Channel>(std::move(*socket), patience_s) : nullptr;
  }
  const std::optional<base::HostPort> there = base::host_port(door.address);
  return there ? mesh::connect_channel(there->host, there->port, secret, patience_s) : nullptr;
}

}  // namespace

WeightLinks::WeightLinks(const mesh::Channel& run, std::string secret, double patience_s, int64_t most_bytes)
    : secret_(std::move(secret)),
      patience_s_(patience_s),
      most_bytes_(most_bytes),
      name_("weights-" + mesh::random_digits()),
      address_(mesh::network_address_of(run.descriptor())),
      listener_(name_, {.address = address_, .port = 0, .secret = secret_}, patience_s) {}

sampling::WeightDoor WeightLinks::door() const {
  return {.place = mesh::local_place(), .name = name_, .address = address_at(address_, listener_.port())};
}

bool WeightLinks::take_place(const sampling::Chain& chain, const TakePiece& take) {
  chain_ = chain.number;
  next_ = nullptr;
  try {
    // The worker before is answered first: it must not wait because the one after is frozen.
    const std::unique_ptr<mesh::Channel> previous = chain.is_first ? nullptr : wait_for_previous();
    if (!chain.next.is_none()) connect_to_next(chain.next);
    if (previous == nullptr) return true;  // its pieces come from the run
    while (true) {
      const std::optional<std::string> frame = previous->receive(patience_s_);
      if (!frame) return false;
      const sampling::Message message = sampling::message_of(*frame);
      const auto* const piece = std::get_if<sampling::Weights>(&message);
      TANDEM_ENV_CHECK(piece != nullptr, "the process before says something else than weights");
      const auto bytes = take_piece(*piece, *previous);
      if (take(*piece, *bytes)) return true;
    }
  } catch (const mesh::ChannelClosed&) {
    return false;
  }
}

void WeightLinks::connect_to_next(const sampling::WeightDoor& door) {
  try {
    std::unique_ptr<mesh::Channel> next = connect(door, secret_, patience_s_);
    if (!next) return;  // it is gone, which the run sees too
    next->send(std::to_string(chain_));
    next_ = std::make_unique<mesh::Relay>(std::move(next), kWaitingBytes);
  } catch (const mesh::ChannelClosed& error) {
    base::log_warning("the next process that samples gets no weights from this one: {}", error.what());
  }
}

// Returns whether the one who has connected is of this chain. One of an earlier chain may have closed already.
bool WeightLinks::is_of_chain(mesh::Channel& previous, double wait_s) const {
  try {
    return previous.receive(wait_s) == std::to_string(chain_);
  } catch (const mesh::ChannelClosed&) {
    return false;
  }
}

std::unique_ptr<mesh::Channel> WeightLinks::wait_for_previous() {
  const base::Clock::time_point begin = base::Clock::now();
  const double patience_s = std::min(patience_s_, kConnects);
  for (double left_s = patience_s; left_s > 0.0; left_s = patience_s - base::seconds_since(begin)) {
    std::unique_ptr<mesh::Channel> previous = listener_.accept();
    if (!previous) {
      base::wait_readable(listener_.descriptors(), left_s);
    } else if (is_of_chain(*previous, left_s)) {
      return previous;
    }
  }
  throw mesh::ChannelClosed(fmt::format("nobody has come for {:g} s", patience_s));
}

std::shared_ptr<const std::vector<std::byte>> WeightLinks::take_piece(const sampling::Weights& piece,
                                                                      mesh::Channel& from) {
  TANDEM_ENV_CHECK(piece.num_bytes > 0 && piece.num_bytes <= most_bytes_,
                   fmt::format("a piece of weights has {} bytes", piece.num_bytes));
  auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(piece.num_bytes));
  from.receive_bytes(*bytes);
  if (next_) next_->pass(to_bytes(piece), bytes);
  return bytes;
}

}  // namespace tandem::rollout_worker
