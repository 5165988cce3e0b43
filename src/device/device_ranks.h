// The arguments from which a communicator between devices is made.
#pragma once

#include <string>

#include "device/communicator.h"

namespace tandem::device {

struct DeviceRanks {
  // This communicator connects the hosts of the same ranks in the same order. It is used only while the new one is
  // made.
  Communicator& hosts;
  bool shares_memory = false;  // true: the ranks are processes of one host and may map each other's memory
  double timeout_s = 600;      // timeout of joining, and of an exchange with the device work before it
  std::string interface = {};  // network interface over which ranks find each other; empty: the library chooses
};

}  // namespace tandem::device
