#include "memory/extent_pool.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace tandem::memory {

using device::ExtentId;

ExtentLoan::ExtentLoan(ExtentLoan&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), extents_(std::move(other.extents_)) {}

ExtentLoan& ExtentLoan::operator=(ExtentLoan&& other) noexcept {
  if (this == &other) return *this;
  if (pool_ != nullptr) pool_->take_back(extents_);
  pool_ = std::exchange(other.pool_, nullptr);
  extents_ = std::move(other.extents_);
  return *this;
}

ExtentLoan::~ExtentLoan() {
  if (pool_ != nullptr) pool_->take_back(extents_);
}

ExtentPool::ExtentPool(device::Vmm& vmm, Ledger& ledger, int64_t extent_bytes)
    : vmm_(vmm), ledger_(ledger), extent_bytes_(extent_bytes) {
  TANDEM_CHECK(extent_bytes > 0 && extent_bytes % vmm.granularity_bytes() == 0, "extents of", extent_bytes,
               "bytes on a device of granularity", vmm.granularity_bytes());
}

ExtentPool::~ExtentPool() {
  for (const ExtentId extent : free_) {
    try {
      vmm_.release_extent(extent);
    } catch (const EnvironmentError& error) {  // the extent is freed when the process ends
      base::log_error("an extent was not given back: {}", error.what());
    }
    --num_extents_;
    ledger_.change_pool_bytes(-extent_bytes_);
  }
  if (num_extents_ > 0) base::log_error("bug: {} extents are still lent when their pool ends", num_extents_);
}

std::optional<ExtentLoan> ExtentPool::borrow(int64_t num_extents) {
  TANDEM_CHECK(num_extents >= 0, num_extents);
  std::lock_guard lock(mutex_);
  const int64_t num_missing = num_extents - std::ssize(free_);
  // A new extent is recorded at once: whatever happens to the next, this one is ours and free. When the next fails,
  // they are released, since other processes may use memory that is too little here.
  int64_t num_created = 0;
  const auto release_created = [&] {
    for (; num_created > 0; --num_created) {
      try {
        vmm_.release_extent(free_.front());
      } catch (const EnvironmentError& error) {
        base::log_error("an extent stays in the pool: {}", error.what());
        return;
      }
      free_.erase(free_.begin());
      --num_extents_;
      ledger_.change_pool_bytes(-extent_bytes_);
    }
  };
  try {
    for (; num_created < num_missing; ++num_created) {
      const std::optional<ExtentId> extent = vmm_.create_extent(extent_bytes_);
      if (!extent) {
        release_created();
        return std::nullopt;
      }
      free_.insert(free_.begin(), *extent);
      ++num_extents_;
      ledger_.change_pool_bytes(extent_bytes_);
    }
  } catch (const EnvironmentError&) {
    release_created();
    throw;
  }
  std::vector<ExtentId> lent(free_.rbegin(), free_.rbegin() + num_extents);
  free_.resize(free_.size() - static_cast<size_t>(num_extents));
  return ExtentLoan(*this, std::move(lent));
}

int64_t ExtentPool::num_extents() const {
  std::lock_guard lock(mutex_);
  return num_extents_;
}

int64_t ExtentPool::num_free() const {
  std::lock_guard lock(mutex_);
  return std::ssize(free_);
}

void ExtentPool::take_back(std::span<const ExtentId> extents) {
  std::lock_guard lock(mutex_);
  free_.insert(free_.end(), extents.begin(), extents.end());
  std::sort(free_.begin(), free_.end(), std::greater<>());
}

}  // namespace tandem::memory
