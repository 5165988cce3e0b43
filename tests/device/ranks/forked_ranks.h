// Ranks that are processes: forks of the test program, which must have no threads of LibTorch yet.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace tandem::device {

// Runs `body` in `size` processes and returns, by rank, what it returned there; "killed" where SIGKILL ended it. All
// are killed after a minute and a half, and with this process. `started` is called here when all of them run.
std::vector<std::string> run_forked(
    int size, const std::function<std::string(int rank)>& body, const std::function<void()>& started = [] {});

}  // namespace tandem::device
