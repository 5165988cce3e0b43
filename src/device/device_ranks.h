// What a communicator between devices is made from.
#pragma once

#include <string>

#include "device/communicator.h"

namespace tandem::device {

struct DeviceRanks {
  // The same ranks in the same order, between their hosts. Only while the communicator is made.
  Communicator& hosts;
  bool shares_memory = false;  // the ranks are processes of one host: they may map each other's memory
  double timeout_s = 600;      // of joining, and of an exchange with what the device computes before it
  std::string interface = {};  // of the network that ranks find each other over; empty: the library chooses
};

}  // namespace tandem::device
