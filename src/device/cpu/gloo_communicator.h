// A communicator of the hosts' ranks over TCP: c10d's Gloo, which is in LibTorch's wheel.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <memory>
#include <string>

#include "device/communicator.h"

namespace c10d {
class Store;
}

namespace tandem::device {

struct GlooSettings {
  int rank = 0;
  int size = 1;
  double timeout_s = 600;             // timeout of joining
  double wait_s = timeout_s;          // timeout of one wait for another rank
  std::string address = "127.0.0.1";  // address or host name of this rank, on which alone it listens
  std::string interface = {};         // network interface whose address is used instead of `address`
  // Called once, from any thread, when this communicator can no longer be used. It must not call the communicator.
  std::function<void()> on_failure = {};
};

// Every rank calls it with the same name, which is this communicator's in the store and in messages; the store is not
// used afterwards. Returns when all ranks are connected with each other. Throws PeerLost, which names the missing
// ranks, if not all came within the time; EnvironmentError if nothing can listen at that address.
//
// A rank that dies is noticed at once by all others. A rank that destroys its communicator is missed only by ranks that
// begin, or have begun, an exchange that it has not. Exchanges must not outlive their communicator.
std::unique_ptr<Communicator> make_gloo_communicator(c10::intrusive_ptr<c10d::Store> store, const std::string& name,
                                                     const GlooSettings& settings);

}  // namespace tandem::device
