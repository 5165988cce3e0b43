// What a backend that is a module of its own, libtandem_<name>.so, shows the program that loads it: one exported
// function, kBackendEntry, and what it returns. A module is built with the program, from the same tree.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/checksum.h"
#include "device/communicator.h"
#include "device/device_ranks.h"
#include "device/memory_driver.h"
#include "device/ops.h"
#include "device/vmm.h"

namespace tandem::device {

struct Backend {
  int64_t contract;  // kBackendContract, as the module was built
  // Devices that this process can use; where that is 0, why.
  int (*num_devices)(std::string& why_none);
  // A name of device `index` that no other device of any machine has, and by which every process knows it.
  std::string (*device_id)(int index);
  // Of device `index` of them. num_threads: on the host; 0: all cores.
  std::unique_ptr<Ops> (*make_ops)(int index, int num_threads);
  // Of a device whose operations were made: its bytes as they were then, this process's own context not counted.
  DeviceBytes (*device_bytes)(int index);
  MemoryDriver (*open_memory)(int index);
  // Between devices `index` of several processes. Every rank calls it. PeerLost: not all came within the time.
  // EnvironmentError: nothing moves bytes between these devices.
  std::unique_ptr<Communicator> (*make_communicator)(int index, const DeviceRanks& ranks);
  // A word by which other processes of this machine can read the tensor's memory for as long as it is there. The tensor
  // is contiguous. Empty: this memory cannot be shown.
  std::string (*show_memory)(const at::Tensor& tensor);
  // Maps the memory that another process's word names (show_memory), as a flat tensor of bytes that device `index` can
  // copy from. That takes no memory; it is unmapped when the last tensor of it is gone. Undefined: this process cannot
  // map it.
  at::Tensor (*map_memory)(int index, const std::string& word);
  // The checksum of each tensor's bytes, as they are when all work that was queued before is done. The tensors are
  // contiguous and begin at multiples of 16 bytes.
  std::vector<Checksum> (*checksums)(const std::vector<at::Tensor>& tensors);
};

using BackendEntry = const Backend* (*)();
constexpr const char* kBackendEntry = "tandem_backend";
// Grows with every change of device/ops.h, of the memory contracts or of this file that a module of an older build
// would not survive.
constexpr int64_t kBackendContract = 9;

}  // namespace tandem::device
