// Which backend a run computes on: --device, turned into its operations. The CPU's are in the program; the others are
// modules that are looked for and loaded here, when one is asked for.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/checksum.h"
#include "device/communicator.h"
#include "device/device_ranks.h"
#include "device/memory_driver.h"
#include "device/ops.h"

namespace tandem::device {

// "cpu", "cuda", "cuda:1".
struct DeviceSpec {
  std::string backend = "cpu";
  int index = 0;
};

// UserError for any other text: what may be given.
DeviceSpec parse_device(const std::string& text);

// What the host's side of every backend takes. isa is the CPU backend's alone.
struct HostOptions {
  std::string isa = "auto";
  int num_threads = 0;  // 0: all cores
};

// How many devices this process sees; 0 where there is none, or no module that could use it. Of the CPU, 1.
int num_devices(const std::string& backend);
// What no other device of any machine has, of a device whose operations were made; "" for the CPU.
std::string device_id(const DeviceSpec& device);

// Loads the backend's module where it has one; it stays loaded. UserError: no device of that index, or an instruction
// set that the machine lacks. EnvironmentError: no module, or it cannot be loaded, or no device that it could use; the
// message says what to do.
std::unique_ptr<Ops> make_ops(const DeviceSpec& device, const HostOptions& host);

// Of a device whose operations were made: its bytes as they were then, this process's own context not counted.
// std::nullopt for the CPU, whose memory is the machine's (base/machine_memory).
std::optional<DeviceBytes> device_bytes(const DeviceSpec& device);

// Of a device whose operations were made.
MemoryDriver open_memory(const DeviceSpec& device);

// Between devices; for the CPU, whose ranks talk host to host (mesh/socket_communicator.h), a BugError. Of a
// device whose operations were made. EnvironmentError: no library that could move tensors; PeerLost: not all ranks came
// within the time.
std::unique_ptr<Communicator> make_communicator(const DeviceSpec& device, const DeviceRanks& ranks);

// The memory of a tensor for other processes of this machine, of a device whose operations were made: a word by which
// they map it, for as long as it is there. Empty where it cannot be shown: the CPU's, an arena's.
std::string show_memory(const DeviceSpec& device, const at::Tensor& tensor);
// What another process's word shows, as a flat tensor of bytes to copy from. It takes no memory, and is unmapped when
// the last tensor of it is gone. Undefined where this process cannot map it: another kind of device, another container.
at::Tensor map_memory(const DeviceSpec& device, const std::string& word);

// Of each tensor's bytes (checksum.h), when what was queued by now is done. Contiguous, each 16-byte aligned.
std::vector<Checksum> checksums(const DeviceSpec& device, const std::vector<at::Tensor>& tensors);

// Stands in for a backend, whatever --device says; for tests. What is empty is not replaced.
struct FakeBackend {
  std::function<std::unique_ptr<Ops>()> make_ops = {};
  std::optional<DeviceBytes> bytes = {};
  std::function<MemoryDriver()> open_memory = {};
  std::function<std::string(const at::Tensor& tensor)> show_memory = {};
  std::function<at::Tensor(const std::string& word)> map_memory = {};
};

// Puts a stand-in in use for as long as this lives.
class ScopedFakeBackend {
 public:
  explicit ScopedFakeBackend(FakeBackend stand_in);
  ~ScopedFakeBackend();
  ScopedFakeBackend(const ScopedFakeBackend&) = delete;
  ScopedFakeBackend& operator=(const ScopedFakeBackend&) = delete;
};

// Where a module is looked for, first to last: beside the program, and in the build folder that the program is from.
std::string module_path(const std::string& program_folder, const std::string& backend);

}  // namespace tandem::device
