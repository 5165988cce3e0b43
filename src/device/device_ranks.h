// What a communicator between devices is made from.
#pragma once

#include <string>

namespace tandem::device {

struct DeviceRanks {
  std::string id;  // which rank 0 made (make_communicator_id) and gave to the others
  int rank = 0;
  int size = 1;
  double timeout_s = 600;      // of joining, and of an exchange with what the device computes before it
  bool adds_up = false;        // Communicator::sum() will be called: ranks of one host
  std::string interface = {};  // of the network that ranks find each other over; empty: the library chooses
};

}  // namespace tandem::device
