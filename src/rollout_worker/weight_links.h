// The places of a rollout worker in chains of workers by which new weights travel (sampling::Chain): the connection to
// the run by which they come to the first, where the worker before connects to, and the one after, to which each piece
// is passed on. Weights so leave the trainers' machine once, however many workers there are on others. A thread
// receives them, so that they come while the worker samples; it takes them when it wants. Connections are as those
// between a run and its workers: local sockets on one machine, TLS with the run's secret between machines.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/bell.h"
#include "mesh/channel.h"
#include "mesh/channel_listener.h"
#include "mesh/relay.h"
#include "sampling/processes/messages.h"

namespace tandem::rollout_worker {

class WeightLinks {
 public:
  struct Settings {
    std::string secret;       // the run's
    double patience_s = 0.0;  // a link on which nothing moves for so long is given up
    int64_t num_parts = 1;    // parts of the weights, one for each rank of the engine
    int64_t whole_bytes = 0;  // of all parts together: more do not wait here, and no piece is larger
  };
  // `run` is the connection to the run: where it goes over the network, other workers reach this one at its address
  // here. Throws EnvironmentError.
  WeightLinks(const mesh::Channel& run, Settings settings);
  ~WeightLinks();
  WeightLinks(const WeightLinks&) = delete;
  WeightLinks& operator=(const WeightLinks&) = delete;

  // Returns where the worker before connects to.
  sampling::WeightDoor door() const;
  // Takes a second connection to the run, on which the weights come where this worker is the first of a chain.
  void connect_to_run(std::unique_ptr<mesh::Channel> line);

  // Takes the place of a new chain, and begins to receive. Nobody sends for the chain before any more.
  void take_place(const sampling::Chain& chain);
  // Says whether pieces are left waiting here: then as many may wait as all weights have, and otherwise few.
  void let_wait(bool waits);

  // A piece that has come, or, without bytes, the end of a chain that has broken: no more pieces come of it.
  struct Arrival {
    sampling::Weights piece;
    std::shared_ptr<const std::vector<std::byte>> bytes;
  };
  // Returns what has come next, or nullopt if nothing has.
  std::optional<Arrival> next();
  // This descriptor is readable when next() has something.
  int descriptor() const { return news_.descriptor(); }

 private:
  // The functions of the thread, which ends soon once `end` is asked for.
  void receive(const std::stop_token& end, const sampling::Chain& chain);
  void receive_from(const std::stop_token& end, mesh::Channel& previous, bool is_run);
  std::optional<sampling::Message> next_message(const std::stop_token& end, mesh::Channel& previous, bool is_run);
  std::shared_ptr<const std::vector<std::byte>> read(const sampling::Weights& piece, mesh::Channel& from);
  std::unique_ptr<mesh::Channel> wait_for_previous(const std::stop_token& end, uint64_t chain);
  std::unique_ptr<mesh::Relay> connect_to_next(const sampling::Chain& chain) const;
  void add(const std::stop_token& end, Arrival arrival);
  void end_thread();

  const Settings settings_;
  const std::string name_;     // of the local socket
  const std::string address_;  // of the network; "": none
  mesh::ChannelListener listener_;
  std::unique_ptr<mesh::Channel> line_;  // to the run

  base::Bell news_, end_;  // end_ wakes the thread when it is to end
  std::mutex mutex_;
  std::condition_variable_any changed_;
  // mutex_ is locked where these are used.
  std::deque<Arrival> arrivals_;
  int64_t waiting_bytes_ = 0;
  bool lets_wait_ = false;
  int reads_from_ = -1;  // descriptor on which the thread may wait for bytes of a piece

  std::unique_ptr<mesh::Relay> next_;  // the thread makes it, and it sends on when the thread has ended
  std::jthread thread_;                // of the newest chain; the last member: it ends before what it uses
};

}  // namespace tandem::rollout_worker
