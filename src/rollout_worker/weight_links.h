// The places of a rollout worker in chains of workers by which new weights travel (sampling::Chain): where the worker
// before connects to, and the one after, to which each piece is passed on. Weights so leave the trainers' machine once,
// however many workers there are on others. Connections are as those between a run and its workers: local sockets on
// one machine, TLS with the run's secret between machines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mesh/channel.h"
#include "mesh/channel_listener.h"
#include "mesh/relay.h"
#include "sampling/messages.h"

namespace tandem::rollout_worker {

class WeightLinks {
 public:
  using Bytes = std::span<const std::byte>;

  // `run` is the connection to the run: where it goes over the network, other workers reach this one at its address
  // here. A link on which nothing moves for `patience_s` is given up. A piece has at most `most_bytes`. Throws
  // EnvironmentError.
  WeightLinks(const mesh::Channel& run, std::string secret, double patience_s, int64_t most_bytes);

  // Returns where the worker before connects to.
  sampling::WeightDoor door() const;

  // Takes the place of a new chain. Connects to the worker after, if there is one that can be reached. Unless this
  // place is the first, it takes all pieces from the worker before, and gives each to `take`, which returns whether
  // that was the last one; it returns false if they stop coming before.
  using TakePiece = std::function<bool(const sampling::Weights& piece, Bytes bytes)>;
  bool take_place(const sampling::Chain& chain, const TakePiece& take);

  // Reads the bytes of a piece, all of them before any is used, and passes it on to the worker after, if there is one.
  // Throws ChannelClosed if `from` is gone, and EnvironmentError if the piece's size is none.
  std::shared_ptr<const std::vector<std::byte>> take_piece(const sampling::Weights& piece, mesh::Channel& from);

 private:
  void connect_to_next(const sampling::WeightDoor& door);
  std::unique_ptr<mesh::Channel> wait_for_previous();
  bool is_of_chain(mesh::Channel& previous, double wait_s) const;

  const std::string secret_;
  const double patience_s_;
  const int64_t most_bytes_;
  const std::string name_;     // of the local socket
  const std::string address_;  // of the network; "": none
  mesh::ChannelListener listener_;
  uint64_t chain_ = 0;  // its number
  std::unique_ptr<mesh::Relay> next_;
};

}  // namespace tandem::rollout_worker
