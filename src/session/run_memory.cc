#include "session/run_memory.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "memory/ledger_events.h"

namespace tandem::session {

namespace {

using memory::Phase;
using memory::Tag;
using memory::View;

constexpr std::ptrdiff_t kTraceEvents = 4096;  // events that a trace has at least, if there were so many
constexpr double kGiB = int64_t{1} << 30;
constexpr std::array<Phase, memory::kNumPhases> kPhases = {Phase::kLoad, Phase::kRollout, Phase::kTrain};

// A tag gets a point in the timeline when it has moved by a hundredth of the peak.
memory::LedgerOptions ledger_options(const plan::TrainPlan& plan) {
  return {.event_bytes = std::max<int64_t>(plan.peak_bytes() / 100, 1)};
}

base::Json tag_bytes(const auto& bytes_of) {
  base::Json tags = base::Json::object();
  for (int i = 0; i < memory::kNumTags; ++i) {
    const auto tag = static_cast<Tag>(i);
    if (const int64_t bytes = bytes_of(tag); bytes > 0) tags[memory::to_string(tag)] = bytes;
  }
  return tags;
}

}  // namespace

RunMemory::RunMemory(const config::MemoryOptions& config, const plan::TrainPlan& plan, const device::DeviceSpec& device)
    : plan_(plan.memory),
      kv_bytes_(plan.memory.bytes(Tag::kKv, Phase::kRollout)),
      driver_(device::open_memory(device)),
      ledger_(ledger_options(plan)),
      pool_(*driver_.vmm, ledger_, plan.extent_bytes),
      arena_(pool_, {.num_extents = plan.arena_bytes / plan.extent_bytes,
                     .hide_idle_view = config.debug_unmap_idle_view,
                     .synchronize = driver_.synchronize,
                     .size_flag = "--kv-cache-bytes or --max-tokens-per-gpu",
                     .slack_flag = "--arena-slack"}),
      tensors_(arena_) {
  if (!driver_.note.empty()) base::log_info("{}", driver_.note);
  if (device::footprint_of(device).shares_host_memory && (config.offloads_optimizer() || config.offloads_reference())) {
    base::log_info("--offload-*: saves nothing with --device {}, where the host's memory is the device's",
                   device.backend);
  }
  driver_.set_tensor_source(&tensors_);
}

RunMemory::~RunMemory() {
  if (has_kv_) arena_.free(kv());
  driver_.set_tensor_source(nullptr);
}

void RunMemory::add_persistent(Tag tag, int64_t bytes) {
  ledger_.take(tag, bytes);
  ledger_.change_pool_bytes(bytes);
}

void RunMemory::enter(Phase phase) {
  TANDEM_CHECK(phase != Phase::kLoad, "a run loads once");
  const Phase before = ledger_.phase();
  if (phase == before) return;
  if (before == Phase::kLoad && driver_.release_unused != nullptr) driver_.release_unused();
  driver_.synchronize();  // the work that the previous phase has queued counts as its own time
  measure();
  const base::Clock::time_point begin = base::Clock::now();
  if (std::exchange(has_kv_, false)) arena_.free(kv());
  arena_.enter(phase);
  if (phase == Phase::kRollout && kv_bytes_ > 0) {
    std::byte* const address = arena_.allocate(View::kRollout, kv_bytes_, Tag::kKv, "keys and values");
    has_kv_ = address == kv();
    TANDEM_CHECK(has_kv_, "keys and values lie at the arena's low end");
  }
  (phase == Phase::kRollout ? to_rollout_s_ : to_train_s_) = base::seconds_since(begin);
}

void RunMemory::measure() { ledger_.measure_device(driver_.used_bytes(pool_.num_extents() * pool_.extent_bytes())); }

std::string RunMemory::trace() const { return memory::chrome_trace(events_); }

report::Metrics RunMemory::metrics() const {
  report::Metrics metrics = {{"perf/memory_to_rollout_time", to_rollout_s_},
                             {"perf/memory_to_train_time", to_train_s_}};
  for (const Phase phase : {Phase::kRollout, Phase::kTrain}) {
    const std::string name = std::string("perf/memory_") + memory::to_string(phase);
    metrics[name + "_gib"] = static_cast<double>(ledger_.high_water_bytes(phase)) / kGiB;
    metrics[name + "_plan_gib"] = static_cast<double>(plan_.bytes(phase)) / kGiB;
  }
  metrics["perf/memory_overhead_gib"] = static_cast<double>(ledger_.current_bytes(Tag::kOverhead)) / kGiB;
  return metrics;
}

std::vector<std::string> RunMemory::timeline(int64_t step) {
  std::vector<std::string> lines;
  for (memory::LedgerEvent& event : ledger_.take_events()) {
    lines.push_back(memory::timeline_line(event));
    events_.push_back(std::move(event));
  }
  // A run may be long, and its memory must not grow with it.
  if (std::ssize(events_) > 2 * kTraceEvents) events_.erase(events_.begin(), events_.end() - kTraceEvents);
  base::Json line = {{"event", "step"}, {"step", step}};
  for (const Phase phase : kPhases) {
    base::Json& of_phase = line["phases"][memory::to_string(phase)];
    of_phase["most"] = tag_bytes([&](Tag tag) { return ledger_.high_water_bytes(tag, phase); });
    of_phase["planned"] = tag_bytes([&](Tag tag) { return plan_.bytes(tag, phase); });
    of_phase["most_at_once"] = ledger_.high_water_bytes(phase);
    of_phase["planned_at_once"] = plan_.bytes(phase);
  }
  lines.push_back(base::dump_json(line));
  return lines;
}

}  // namespace tandem::session
