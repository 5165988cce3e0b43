#include "rollout/shared_steps.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "device/waits_for_samples.h"
#include "memory/arena_allocator.h"

namespace tandem::rollout {

namespace {

// While no rank has rows, all wait for rewards, and ask each other again after this time.
constexpr std::chrono::milliseconds kNobodyWorks{1};

}  // namespace

SharedSteps::Agreed SharedSteps::agree(const Plan& plan) {
  const std::array<double, 3> mine = {static_cast<double>(plan.rows), plan.is_by_itself ? 1.0 : 0.0,
                                      plan.has_left ? 1.0 : 0.0};
  Agreed agreed = {.rows = 0, .all_left = true};
  bool is_shared = true;
  {
    const memory::BypassArena message;
    const device::WaitsForSamples as_long_as_it_takes(hosts_);  // a rank may be at work on a long prompt
    for (const std::vector<double>& of_rank : device::all_gather_numbers(hosts_, mine)) {
      agreed.rows = std::max(agreed.rows, static_cast<int64_t>(of_rank[0]));
      is_shared &= of_rank[1] == 0.0;
      agreed.all_left &= of_rank[2] != 0.0;
    }
  }
  if (!is_shared) agreed.rows = 0;
  if (is_shared && agreed.rows == 0 && !agreed.all_left) std::this_thread::sleep_for(kNobodyWorks);
  return agreed;
}

}  // namespace tandem::rollout
