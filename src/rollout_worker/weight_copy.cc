#include "rollout_worker/weight_copy.h"

#include <chrono>
#include <exception>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace tandem::rollout_worker {

void WeightCopy::start(uint64_t version, std::function<void()> copy) {
  TANDEM_ENV_CHECK(!is_running(), "the run sends new weights before the last ones are copied");
  version_ = version;
  const auto work = [this, copy = std::move(copy)] {
    try {
      copy();
    } catch (...) {
      bell_.ring();
      throw;
    }
    bell_.ring();
  };
  try {
    copy_ = std::async(std::launch::async, work);
  } catch (const std::system_error& error) {
    throw EnvironmentError(
        std::string("no thread can be started for new weights: ") + error.what() +
        "; raise the limit of processes and threads (ulimit -u, or the pids limit of the container)");
  }
}

void WeightCopy::wait() {
  if (!is_running()) return;
  copy_.wait();
  bell_.silence();
  copy_.get();
}

std::optional<uint64_t> WeightCopy::done() {
  if (!is_running() || copy_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return std::nullopt;
  wait();
  return version_;
}

}  // namespace tandem::rollout_worker
