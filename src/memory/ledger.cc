#include "memory/ledger.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "base/check.h"

namespace tandem::memory {

namespace {

size_t index_of(Tag tag) { return static_cast<size_t>(tag); }
size_t index_of(Phase phase) { return static_cast<size_t>(phase); }

int64_t steady_us() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(since).count();
}

}  // namespace

Ledger::Ledger(LedgerOptions options) : options_(std::move(options)), start_us_(steady_us()) {
  add_event({.kind = LedgerEvent::Kind::kEnter, .phase = phase_});
}

void Ledger::enter(Phase phase) {
  std::lock_guard lock(mutex_);
  phase_ = phase;
  add_event({.kind = LedgerEvent::Kind::kEnter, .phase = phase});
  // Bytes that are alive since the phase before count in this one too.
  auto& high_water = high_water_bytes_[index_of(phase)];
  for (size_t i = 0; i < kNumTags; ++i) {
    high_water[i] = std::max(high_water[i], current_bytes_[i]);
    if (current_bytes_[i] == last_event_bytes_[i]) continue;
    last_event_bytes_[i] = current_bytes_[i];
    add_event({.kind = LedgerEvent::Kind::kBytes, .tag = static_cast<Tag>(i), .bytes = current_bytes_[i]});
  }
  auto& sum = sum_high_water_bytes_[index_of(phase)];
  sum = std::max(sum, sum_bytes_);
}

Phase Ledger::phase() const {
  std::lock_guard lock(mutex_);
  return phase_;
}

void Ledger::take(Tag tag, int64_t bytes) {
  TANDEM_CHECK(bytes >= 0, bytes);
  std::lock_guard lock(mutex_);
  set(tag, current_bytes_[index_of(tag)] + bytes);
}

void Ledger::give_back(Tag tag, int64_t bytes) {
  std::lock_guard lock(mutex_);
  const int64_t current_bytes = current_bytes_[index_of(tag)];
  TANDEM_CHECK(bytes >= 0 && bytes <= current_bytes, bytes, "bytes come back to tag", to_string(tag), "that has",
               current_bytes);
  set(tag, current_bytes - bytes);
}

void Ledger::change_pool_bytes(int64_t change_bytes) {
  std::lock_guard lock(mutex_);
  TANDEM_CHECK(pool_bytes_ + change_bytes >= 0, pool_bytes_, change_bytes);
  pool_bytes_ += change_bytes;
}

int64_t Ledger::pool_bytes() const {
  std::lock_guard lock(mutex_);
  return pool_bytes_;
}

void Ledger::measure_device(int64_t used_bytes) {
  std::lock_guard lock(mutex_);
  set(Tag::kOverhead, std::max(used_bytes - pool_bytes_, int64_t{0}));
}

int64_t Ledger::current_bytes(Tag tag) const {
  std::lock_guard lock(mutex_);
  return current_bytes_[index_of(tag)];
}

int64_t Ledger::current_bytes() const {
  std::lock_guard lock(mutex_);
  return sum_bytes_;
}

int64_t Ledger::high_water_bytes(Tag tag, Phase phase) const {
  std::lock_guard lock(mutex_);
  return high_water_bytes_[index_of(phase)][index_of(tag)];
}

int64_t Ledger::high_water_bytes(Phase phase) const {
  std::lock_guard lock(mutex_);
  return sum_high_water_bytes_[index_of(phase)];
}

std::vector<LedgerEvent> Ledger::take_events() {
  std::lock_guard lock(mutex_);
  return std::exchange(events_, {});
}

void Ledger::set(Tag tag, int64_t bytes) {
  const size_t i = index_of(tag);
  sum_bytes_ += bytes - current_bytes_[i];
  current_bytes_[i] = bytes;
  auto& high_water = high_water_bytes_[index_of(phase_)][i];
  high_water = std::max(high_water, bytes);
  auto& sum_high_water = sum_high_water_bytes_[index_of(phase_)];
  sum_high_water = std::max(sum_high_water, sum_bytes_);
  if (std::abs(bytes - last_event_bytes_[i]) < options_.event_bytes) return;
  last_event_bytes_[i] = bytes;
  add_event({.kind = LedgerEvent::Kind::kBytes, .tag = tag, .bytes = bytes});
}

void Ledger::add_event(LedgerEvent event) {
  if (std::ssize(events_) >= options_.max_events) {
    const auto half = events_.begin() + std::ssize(events_) / 2;
    LedgerEvent dropped{.kind = LedgerEvent::Kind::kNote, .time_us = now_us()};
    dropped.text = std::to_string(half - events_.begin()) + " events before this were dropped: nobody took them";
    *(half - 1) = std::move(dropped);
    events_.erase(events_.begin(), half - 1);
  }
  event.time_us = now_us();
  events_.push_back(std::move(event));
}

int64_t Ledger::now_us() const { return options_.clock_us ? options_.clock_us() : steady_us() - start_us_; }

}  // namespace tandem::memory
