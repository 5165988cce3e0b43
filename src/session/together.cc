#include "session/together.h"

#include <algorithm>

#include "checkpoint/saving_ranks.h"
#include "memory/arena_allocator.h"
#include "session/stop_signal.h"

namespace tandem::session {

namespace {

checkpoint::SavingRanks ranks_of(device::Communicator& hosts) {
  return {.rank = hosts.rank(), .size = hosts.size(), .all_gather = [&hosts](const std::string& mine) {
            const memory::BypassArena outside;
            return device::all_gather_text(hosts, mine);
          }};
}

}  // namespace

std::vector<std::string> together(device::Communicator& hosts, const std::function<std::string()>& work) {
  return ranks_of(hosts).together(work);
}

bool of_conductor(device::Communicator& hosts, const std::function<bool()>& question) {
  return ranks_of(hosts).of_conductor(question);
}

int stop_signal_of_any(device::Communicator& hosts) {
  int signal = stop_signal();
  if (hosts.size() == 1) return signal;
  const memory::BypassArena outside;
  const double own = signal;
  for (const std::vector<double>& of_rank : device::all_gather_numbers(hosts, {&own, 1}))
    signal = std::max(signal, static_cast<int>(of_rank[0]));
  return signal;
}

}  // namespace tandem::session
