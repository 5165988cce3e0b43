// Chooses the backend of a run: turns --device into its operations. The CPU's are in the program; the others are
// modules that are found and loaded here when one is asked for.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/backends.h"
#include "device/checksum.h"
#include "device/communicator.h"
#include "device/device_ranks.h"
#include "device/kept_check.h"
#include "device/memory_driver.h"
#include "device/ops.h"

namespace tandem::device {

// These are options of every backend.
struct HostOptions {
  // On the CPU the instruction set; on a backend that has rungs one of these, and "auto" is the one of the kept check,
  // or the first.
  std::string isa = "auto";
  int num_threads = 0;  // 0: all cores
};

// Returns the number of devices that this process sees: 0 where there is none, or no module that could use it; 1 for
// the CPU.
int num_devices(const std::string& backend);
// Returns a name that no other device of any machine has, or "" for the CPU. The device's operations must have been
// created.
std::string device_id(const DeviceSpec& device);

// Returns names and versions of what computes, for a report: {"LibTorch", "2.11.0"}. It says nothing else of the
// machine. Loads the backend's module where it has one. Throws as make_ops() does.
Stack stack(const DeviceSpec& device);
// Returns the ways to compute that only the device itself can tell apart (BackendRow::rungs); none of a test's stand-in.
std::span<const char* const> rungs_of(const DeviceSpec& device);

// Loads the backend's module where it has one; it stays loaded. Throws UserError if there is no device of that index,
// or if the machine lacks the instruction set. Throws EnvironmentError, which says what to do, if there is no module,
// if it cannot be loaded, or if it finds no device that it could use.
std::unique_ptr<Ops> make_ops(const DeviceSpec& device, const HostOptions& host);

// Returns the device's free and total bytes when its operations were created, without this process's own context. The
// operations must have been created. std::nullopt for the CPU, whose memory is the machine's (base/machine_memory).
std::optional<DeviceBytes> device_bytes(const DeviceSpec& device);

// The device's operations must have been created.
MemoryDriver open_memory(const DeviceSpec& device);

// Connects devices of several processes, whose operations must have been created. It is a BugError for the CPU, whose
// ranks talk host to host (mesh/socket_communicator.h). Throws EnvironmentError if no library can move tensors,
// PeerLost if not all ranks came within the time.
std::unique_ptr<Communicator> make_communicator(const DeviceSpec& device, const DeviceRanks& ranks);

// Returns an IPC handle by which other processes of this machine map the tensor's memory for as long as it exists. It
// is empty where memory cannot be exported: the CPU's, an arena's. The device's operations must have been created.
std::string show_memory(const DeviceSpec& device, const at::Tensor& tensor);
// Maps the memory behind another process's IPC handle as a flat tensor of bytes to copy from. The mapping takes no
// memory, and it is removed when the last tensor of it is gone. Returns an undefined tensor where this process cannot
// map it: another kind of device, another container.
at::Tensor map_memory(const DeviceSpec& device, const std::string& word);

// Returns the checksum of each tensor's bytes (checksum.h) after all work queued so far is done. The tensors are
// contiguous and 16-byte aligned.
std::vector<Checksum> checksums(const DeviceSpec& device, const std::vector<at::Tensor>& tensors);

// Copies the bytes of `mapped` (map_memory) over those of `to`, which are as many, and returns the checksums that its
// `parts` have then. The parts lie in `to` one after the other, and are as checksums() wants them. It begins after all
// work that was queued before, and returns when all of it is done. Any thread may call it: it runs beside what another
// one queues meanwhile.
std::vector<Checksum> copy_mapped(const DeviceSpec& device, const at::Tensor& mapped, const at::Tensor& to,
                                  const std::vector<at::Tensor>& parts);

// Replaces a backend, whatever --device says, in tests. Empty fields replace nothing.
struct FakeBackend {
  std::function<std::unique_ptr<Ops>()> make_ops = {};
  std::optional<DeviceBytes> bytes = {};
  std::function<MemoryDriver()> open_memory = {};
  std::function<std::string(const at::Tensor& tensor)> show_memory = {};
  std::function<at::Tensor(const std::string& word)> map_memory = {};
};

// Installs a stand-in for as long as this object lives.
class ScopedFakeBackend {
 public:
  explicit ScopedFakeBackend(FakeBackend stand_in);
  ~ScopedFakeBackend();
  ScopedFakeBackend(const ScopedFakeBackend&) = delete;
  ScopedFakeBackend& operator=(const ScopedFakeBackend&) = delete;
};

// Returns the paths where a module is looked for, first to last: beside the program, and in the build folder that the
// program is from.
std::string module_path(const std::string& program_folder, const std::string& backend);

}  // namespace tandem::device
