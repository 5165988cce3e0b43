// The interface between the program and a backend in a shared library of its own, libtandem_<name>.so, called a module.
// The library exports one function, kBackendEntry, which returns a Backend. A module is built with the program, from
// the same tree.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/checksum.h"
#include "device/communicator.h"
#include "device/device_ranks.h"
#include "device/kept_check.h"
#include "device/memory_driver.h"
#include "device/ops.h"
#include "device/vmm.h"

namespace tandem::device {

struct Backend {
  int64_t contract;  // value of kBackendContract when the module was built
  // Returns the number of devices that this process can use. If it is 0, why_none says why.
  int (*num_devices)(std::string& why_none);
  // Returns a name of device `index` that no other device of any machine has, and by which every process knows it.
  std::string (*device_id)(int index);
  // Returns names and versions of what computes on device `index`, for a report: {"GPU", "..."}, {"driver", "..."}. It
  // says nothing else of the machine, and does not depend on what was computed.
  Stack (*stack)(int index);
  // Makes the operations of device `index`. num_threads counts threads on the host; 0 means all cores. `rung` is one of
  // BackendRow::rungs, "" where there are none.
  std::unique_ptr<Ops> (*make_ops)(int index, int num_threads, const std::string& rung);
  // Returns the device's free and total bytes when its operations were created, without this process's own context. The
  // operations must have been created.
  DeviceBytes (*device_bytes)(int index);
  MemoryDriver (*open_memory)(int index);
  // Connects devices `index` of several processes; every rank calls it. Throws PeerLost if not all came within the
  // time, EnvironmentError if nothing can move bytes between these devices.
  std::unique_ptr<Communicator> (*make_communicator)(int index, const DeviceRanks& ranks);
  // Returns an IPC handle by which other processes of this machine can read the tensor's memory for as long as it
  // exists. The tensor is contiguous. The handle is empty if this memory cannot be exported.
  std::string (*show_memory)(const at::Tensor& tensor);
  // Maps the memory behind another process's IPC handle (show_memory) as a flat tensor of bytes that device `index` can
  // copy from. The mapping takes no memory, and it is removed when the last tensor of it is gone. Returns an undefined
  // tensor if this process cannot map it.
  at::Tensor (*map_memory)(int index, const std::string& word);
  // Returns the checksum of each tensor's bytes after all work that was queued before is done. The tensors are
  // contiguous and begin at multiples of 16 bytes.
  std::vector<Checksum> (*checksums)(const std::vector<at::Tensor>& tensors);
  // Copies mapped bytes (map_memory) over those of `to`, which are as many, and returns the checksums of its `parts` as
  // they are then; while one stretch is copied the one before is summed. The parts lie in `to` one after the other, and
  // are as checksums() wants them. It begins after all work that was queued before, and returns when all of it is done.
  // Any thread may call it: it runs beside what another one queues meanwhile.
  std::vector<Checksum> (*copy_mapped)(const at::Tensor& mapped, const at::Tensor& to,
                                       const std::vector<at::Tensor>& parts);
};

using BackendEntry = const Backend* (*)();
constexpr const char* kBackendEntry = "tandem_backend";
// This number grows with every change of device/ops.h, of the memory contracts or of this file that would break a
// module of an older build.
constexpr int64_t kBackendContract = 18;

}  // namespace tandem::device
