#include "device/thread_probe.h"

#include <fmt/format.h>

#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#include "base/check.h"

namespace tandem::device {

void probe_threads(int num_threads) {
  std::atomic<bool> all_started = false;
  std::vector<std::thread> threads;
  std::string why;
  for (int i = 1; i < num_threads && why.empty(); ++i) {  // the caller is one of them
    try {
      threads.emplace_back([&all_started] { all_started.wait(false); });
    } catch (const std::system_error& error) {
      why = error.code().message();
    }
  }
  all_started = true;
  all_started.notify_all();
  for (std::thread& thread : threads) thread.join();
  TANDEM_ENV_CHECK(
      why.empty(),
      fmt::format("only {} of {} threads could be started: {}; lower --num-threads, or raise the limits of "
                  "processes and memory (ulimit -u, ulimit -v)",
                  threads.size() + 1, num_threads, why));
}

}  // namespace tandem::device
