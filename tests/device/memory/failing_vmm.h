// Test doubles around a real device: one that counts the calls it passes on, and one that fails the k-th.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "device/host_memory.h"
#include "device/vmm.h"
#include "tandem/error.h"

namespace tandem::device {

enum class Outcome : uint8_t { kPass, kOutOfMemory, kDriverError };

// Calls before(), then passes every call on.
class ForwardingVmm : public Vmm {
 public:
  explicit ForwardingVmm(Vmm& real) : real_(real) {}
  int64_t granularity_bytes() const override { return real_.granularity_bytes(); }
  bool can_alias() const override { return real_.can_alias(); }
  DeviceBytes device_bytes() const override { return real_.device_bytes(); }
  VmmCounts counts() const override { return real_.counts(); }

  std::byte* reserve_addresses(int64_t bytes) override {
    return may("reserve_addresses", bytes) ? real_.reserve_addresses(bytes) : nullptr;
  }
  void free_addresses(std::byte* address, int64_t bytes) override {
    must("free_addresses", bytes);
    real_.free_addresses(address, bytes);
  }
  std::optional<ExtentId> create_extent(int64_t bytes) override {
    return may("create_extent", bytes) ? real_.create_extent(bytes) : std::nullopt;
  }
  void release_extent(ExtentId extent) override {
    must("release_extent", 0);
    real_.release_extent(extent);
  }
  bool map(std::byte* address, ExtentId extent) override { return may("map", 0) && real_.map(address, extent); }
  void unmap(std::byte* address, int64_t bytes) override {
    must("unmap", bytes);
    real_.unmap(address, bytes);
  }
  bool open_access(std::byte* address, int64_t bytes) override {
    return may("open_access", bytes) && real_.open_access(address, bytes);
  }

 protected:
  virtual Outcome before(const std::string& call) = 0;
  Vmm& real_;

 private:
  // may() serves calls that can be out of memory, must() those that cannot.
  bool may(const std::string& call, int64_t bytes) {
    const Outcome outcome = before(call);
    if (outcome == Outcome::kDriverError) fail(call, bytes);
    return outcome == Outcome::kPass;
  }
  void must(const std::string& call, int64_t bytes) {
    if (before(call) != Outcome::kPass) fail(call, bytes);
  }
  [[noreturn]] static void fail(const std::string& call, int64_t bytes) {
    throw EnvironmentError(call + " of " + std::to_string(bytes) + " bytes: injected; take the wrapper away");
  }
};

class CountingVmm : public ForwardingVmm {
 public:
  using ForwardingVmm::ForwardingVmm;
  int64_t num_calls() const { return num_calls_; }
  int64_t num_calls(const std::string& call) const { return calls_.contains(call) ? calls_.at(call) : 0; }

 protected:
  Outcome before(const std::string& call) override {
    ++num_calls_;
    ++calls_[call];
    return Outcome::kPass;
  }

 private:
  int64_t num_calls_ = 0;
  std::map<std::string, int64_t> calls_;
};

// Fails the k-th call from now (from 0), once or from then on. A call that cannot be out of memory fails as the
// driver's.
//
// Memory that a driver refuses to take back for good cannot be given back; its user only has to try. settle() releases
// what was tried and refused, so that anything still left afterwards has leaked.
class FailingVmm : public ForwardingVmm {
 public:
  explicit FailingVmm(Vmm& real) : ForwardingVmm(real) {}
  FailingVmm(Vmm& real, int64_t k, bool for_good, Outcome outcome) : FailingVmm(real) { arm(k, for_good, outcome); }

  void arm(int64_t k, bool for_good, Outcome outcome) {
    k_ = num_calls_ + k;
    for_good_ = for_good;
    outcome_ = outcome;
  }
  void disarm() { k_ = -1; }
  bool has_failed() const { return has_failed_; }
  int64_t num_calls() const { return num_calls_; }

  bool map(std::byte* address, ExtentId extent) override {
    const bool good = ForwardingVmm::map(address, extent);
    if (good) mappings_[address] = sizes_.at(extent);
    return good;
  }
  std::optional<ExtentId> create_extent(int64_t bytes) override {
    const std::optional<ExtentId> extent = ForwardingVmm::create_extent(bytes);
    if (extent) sizes_[*extent] = bytes;
    return extent;
  }
  void unmap(std::byte* address, int64_t bytes) override {
    const auto first = mappings_.lower_bound(address), last = mappings_.lower_bound(address + bytes);
    for (auto mapping = first; mapping != last; ++mapping) refused_mappings_.insert(mapping->first);
    ForwardingVmm::unmap(address, bytes);
    for (auto mapping = first; mapping != last; ++mapping) refused_mappings_.erase(mapping->first);
    mappings_.erase(first, last);
  }
  void release_extent(ExtentId extent) override {
    refused_extents_.insert(extent);
    ForwardingVmm::release_extent(extent);
    refused_extents_.erase(extent);
  }
  std::byte* reserve_addresses(int64_t bytes) override {
    std::byte* const address = ForwardingVmm::reserve_addresses(bytes);
    if (address != nullptr) reservations_[address] = bytes;
    return address;
  }
  void free_addresses(std::byte* address, int64_t bytes) override {
    refused_reservations_.insert(address);
    ForwardingVmm::free_addresses(address, bytes);
    refused_reservations_.erase(address);
    reservations_.erase(address);
  }

  void settle() {
    disarm();
    for (std::byte* const mapping : refused_mappings_) {
      real_.unmap(mapping, mappings_.at(mapping));
      mappings_.erase(mapping);
      // Addresses with something mapped cannot be freed: not trying was right.
      refused_reservations_.insert(std::prev(reservations_.upper_bound(mapping))->first);
    }
    for (const ExtentId extent : refused_extents_) real_.release_extent(extent);
    for (std::byte* const address : refused_reservations_) real_.free_addresses(address, reservations_.at(address));
    refused_mappings_.clear();
    refused_extents_.clear();
    refused_reservations_.clear();
  }

 protected:
  Outcome before(const std::string&) override {
    const int64_t call = num_calls_++;
    if (k_ < 0 || call < k_ || (call > k_ && !for_good_)) return Outcome::kPass;
    has_failed_ = true;
    return outcome_;
  }

 private:
  int64_t k_ = -1, num_calls_ = 0;
  bool for_good_ = false, has_failed_ = false;
  Outcome outcome_ = Outcome::kDriverError;
  std::map<ExtentId, int64_t> sizes_;
  std::map<std::byte*, int64_t> mappings_, reservations_;
  std::set<std::byte*> refused_mappings_, refused_reservations_;
  std::set<ExtentId> refused_extents_;
};

// Fails the k-th call of host memory in the same way: allocations return null, the rest throws.
class FailingHostMemory : public HostMemory {
 public:
  FailingHostMemory(HostMemory& real, int64_t k, bool for_good) : real_(real), k_(k), for_good_(for_good) {}
  bool has_failed() const { return has_failed_; }
  std::byte* allocate(int64_t bytes) override { return fails() ? nullptr : real_.allocate(bytes); }
  // Frees all the same: its user only has to survive the error.
  void free(std::byte* host, int64_t bytes) override {
    real_.free(host, bytes);
    check("free");
  }
  void copy_to_host(std::byte* host, const std::byte* device, int64_t bytes) override {
    check("copy_to_host");
    real_.copy_to_host(host, device, bytes);
  }
  void copy_to_device(std::byte* device, const std::byte* host, int64_t bytes) override {
    check("copy_to_device");
    real_.copy_to_device(device, host, bytes);
  }
  void synchronize() override {
    check("synchronize");
    real_.synchronize();
  }

 private:
  bool fails() {
    const int64_t call = num_calls_++;
    const bool fails = k_ >= 0 && (call == k_ || (for_good_ && call > k_));
    has_failed_ = has_failed_ || fails;
    return fails;
  }
  void check(const std::string& call) {
    if (fails()) throw EnvironmentError(call + ": injected; take the wrapper away");
  }
  HostMemory& real_;
  int64_t k_, num_calls_ = 0;
  bool for_good_, has_failed_ = false;
};

}  // namespace tandem::device
