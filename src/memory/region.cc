#include "memory/region.h"

#include <exception>
#include <numeric>

#include "base/check.h"
#include "base/log.h"

namespace tandem::memory {

namespace {

std::vector<int64_t> slots_of(const ExtentPool& pool, const RegionOptions& options) {
  TANDEM_CHECK(options.bytes > 0, options.name, options.bytes);
  TANDEM_CHECK((options.content == Content::kRebuild) == static_cast<bool>(options.rebuild), options.name,
               "has a rebuild function if and only if its contents are rebuilt");
  std::vector<int64_t> slots(static_cast<size_t>(pool.extents_of(options.bytes)));
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

}  // namespace

Region::Region(ExtentPool& pool, HostArena& host_arena, RegionOptions options)
    : pool_(pool),
      host_arena_(host_arena),
      options_(std::move(options)),
      slots_(slots_of(pool, options_)),
      range_(pool.vmm(), pool.extent_bytes(), static_cast<int64_t>(slots_.size())) {
  if (options_.content != Content::kKeep) return;
  kept_ = host_arena.allocate(options_.bytes, options_.tag, options_.name);
  TANDEM_ENV_CHECK(kept_ != nullptr, "the host arena of", host_arena.bytes(), "bytes has no room for", options_.bytes,
                   "bytes of", options_.name + "; make it larger, or keep less on the host");
}

Region::~Region() {
  if (!is_paused()) {
    try {
      if (options_.synchronize) options_.synchronize();
    } catch (const std::exception& error) {
      base::log_error("waiting for the device: {}", error.what());
    }
    pool_.ledger().give_back(options_.tag, range_.bytes());
  }
  if (kept_ != nullptr) host_arena_.free(kept_);
}

std::byte* Region::data() const {
  TANDEM_CHECK(!is_paused(), options_.name, "is paused: resume it before use");
  return range_.data();
}

void Region::pause() {
  TANDEM_CHECK(!is_paused(), options_.name, "is paused already");
  if (options_.synchronize) options_.synchronize();
  if (options_.content == Content::kKeep) {
    has_kept_ = false;  // a copy that fails half-way leaves neither the old bytes nor the new
    host_arena_.memory().copy_to_host(kept_, range_.data(), options_.bytes);
    host_arena_.memory().synchronize();
    has_kept_ = true;
  }
  range_.unmap(slots_);
  loan_.reset();
  pool_.ledger().give_back(options_.tag, range_.bytes());
  pool_.ledger().note("pause " + options_.name);
}

bool Region::resume() {
  TANDEM_CHECK(is_paused(), options_.name, "is not paused");
  if (stale_loan_) {
    range_.unmap(range_.slots_in(AddressRange::State::kStale));
    stale_loan_.reset();
  }
  // All extents are borrowed first, so that a resume cannot stop half-way for lack of memory.
  std::optional<ExtentLoan> loan = pool_.borrow(static_cast<int64_t>(slots_.size()));
  if (!loan) return false;
  const auto undo = [&] {
    range_.unmap_or_leave_stale(range_.slots_in(AddressRange::State::kMapped));
    if (!range_.slots_in(AddressRange::State::kStale).empty()) stale_loan_ = std::move(loan);
  };
  try {
    if (!range_.map(slots_, loan->extents())) {
      undo();
      return false;
    }
    fill();
  } catch (...) {
    undo();
    throw;
  }
  loan_ = std::move(loan);
  pool_.ledger().take(options_.tag, range_.bytes());
  pool_.ledger().note("resume " + options_.name);
  return true;
}

void Region::fill() {
  device::HostMemory& copies = host_arena_.memory();
  switch (options_.content) {
    case Content::kDiscard: break;
    case Content::kZero: copies.zero(range_.data(), options_.bytes); break;
    case Content::kRebuild: options_.rebuild(range_.data(), options_.bytes); break;
    case Content::kKeep:
      if (has_kept_) copies.copy_to_device(range_.data(), kept_, options_.bytes);
      break;
  }
  copies.synchronize();
}

}  // namespace tandem::memory
