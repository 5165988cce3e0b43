// The virtual memory of a device, as a contract: addresses are reserved, memory is created in extents, and an extent is
// mapped at as many addresses as its users need. No torch.
//
// A call may end in these ways:
//   out of memory    an outcome: nullptr, std::nullopt or false, and nothing has changed
//   misuse           a bug: BugError before the device is asked, and nothing has changed
//   anything else    EnvironmentError, one line that names the call, the bytes, the device's words and a remedy
//
// Every size and address is a multiple of granularity_bytes(). Calls may come from any thread. None of them waits for
// the device: the caller of unmap() has waited for the work that uses the mapping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace tandem::device {

enum class ExtentId : int64_t {};

struct DeviceBytes {
  int64_t free = 0;
  int64_t total = 0;
};

// Counts of what a Vmm has given out and not got back.
struct VmmCounts {
  int64_t num_reservations = 0;
  int64_t num_extents = 0;  // extents created and not yet released
  int64_t num_mappings = 0;
  bool operator==(const VmmCounts&) const = default;
};

class Vmm {
 public:
  virtual ~Vmm() = default;

  virtual int64_t granularity_bytes() const = 0;
  // Returns whether one extent may be mapped at several addresses at once. If not, map() of a mapped extent is misuse.
  virtual bool can_alias() const = 0;
  virtual DeviceBytes device_bytes() const = 0;
  virtual VmmCounts counts() const = 0;

  // Returns addresses without memory, or nullptr if none are left. Touching them faults.
  virtual std::byte* reserve_addresses(int64_t bytes) = 0;
  // Frees a whole reservation with nothing mapped in it.
  virtual void free_addresses(std::byte* address, int64_t bytes) = 0;

  // Creates memory without an address, with undefined contents. Returns std::nullopt if the device is out of memory.
  virtual std::optional<ExtentId> create_extent(int64_t bytes) = 0;
  // Releasing a mapped extent is legal: its bytes go back to the device with the last mapping.
  virtual void release_extent(ExtentId extent) = 0;

  // Maps the whole extent onto addresses of one reservation where nothing is mapped. It cannot be touched before
  // open_access(). Returns false if there is no memory for page tables.
  virtual bool map(std::byte* address, ExtentId extent) = 0;
  // Unmaps whole mappings that lie side by side, in one call.
  virtual void unmap(std::byte* address, int64_t bytes) = 0;
  // Lets the device read and write whole mappings that lie side by side. Returns false if there is no memory for page
  // tables; the access is then undefined until it is opened again.
  virtual bool open_access(std::byte* address, int64_t bytes) = 0;
};

}  // namespace tandem::device
