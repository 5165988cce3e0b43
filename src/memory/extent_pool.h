// The pool holds the extents of one device, all of one size: it creates each once and lends it again and again. No
// torch.
#pragma once

#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "device/vmm.h"
#include "memory/ledger.h"

namespace tandem::memory {

class ExtentPool;

// Holds extents on loan, which return to the pool when it is destroyed. By then none of them may be mapped.
class ExtentLoan {
 public:
  ExtentLoan(ExtentPool& pool, std::vector<device::ExtentId> extents) : pool_(&pool), extents_(std::move(extents)) {}
  ExtentLoan(ExtentLoan&& other) noexcept;
  ExtentLoan& operator=(ExtentLoan&& other) noexcept;
  ~ExtentLoan();
  std::span<const device::ExtentId> extents() const { return extents_; }

 private:
  ExtentPool* pool_;
  std::vector<device::ExtentId> extents_;
};

// It is thread-safe. Outlives its loans; borrows the Vmm and the ledger, to which it reports how many bytes it holds.
class ExtentPool {
 public:
  // `extent_bytes` is a multiple of the granularity. Large extents make driver calls few (64 GiB in extents of 512 MiB
  // are mapped in 7 ms, in extents of 32 MiB in 56 ms), small ones let memory move in small steps.
  ExtentPool(device::Vmm& vmm, Ledger& ledger, int64_t extent_bytes);
  ~ExtentPool();  // releases all extents to the device
  ExtentPool(const ExtentPool&) = delete;
  ExtentPool& operator=(const ExtentPool&) = delete;

  // Lends all or none: free extents first, in the order in which they were created; the missing ones are created.
  // Returns std::nullopt if the device does not have enough left; the pool is then as before.
  std::optional<ExtentLoan> borrow(int64_t num_extents);

  device::Vmm& vmm() const { return vmm_; }
  Ledger& ledger() const { return ledger_; }
  int64_t extent_bytes() const { return extent_bytes_; }
  int64_t num_extents() const;
  int64_t num_free() const;

 private:
  friend class ExtentLoan;
  void take_back(std::span<const device::ExtentId> extents);

  device::Vmm& vmm_;
  Ledger& ledger_;
  const int64_t extent_bytes_;
  mutable std::mutex mutex_;
  int64_t num_extents_ = 0;
  std::vector<device::ExtentId> free_;  // newest first, so that the oldest is lent first
};

}  // namespace tandem::memory
