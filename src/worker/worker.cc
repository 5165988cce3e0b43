#include "worker/worker.h"

#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>

namespace tandem::worker {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kRetryPause = std::chrono::milliseconds(20);

}  // namespace

void Worker::start(double retry_s) {
  const auto give_up = Clock::now() + std::chrono::duration<double>(retry_s);
  while (true) {
    try {
      try_to_start();
      return;
    } catch (const std::runtime_error&) {
      const std::lock_guard lock(mutex_);
      if (stopping_ || !was_started_ || Clock::now() >= give_up) throw;
    }
    std::this_thread::sleep_for(kRetryPause);
  }
}

void Worker::try_to_start() {
  auto made = steps_.make();
  ChildProcess& started = *made;
  {
    const std::lock_guard lock(mutex_);
    child_ = std::move(made);
    if (stopping_) started.interrupt();
  }
  try {
    steps_.load(started);
  } catch (...) {
    drop();
    throw;
  }
  const std::lock_guard lock(mutex_);
  if (was_started_ && !succeeds_spent_) ++num_restarts_;
  was_started_ = true;
  succeeds_spent_ = false;
}

void Worker::make_ready(double retry_s) {
  if (child_ != nullptr && !(child_->alive() && is_tidy())) drop();
  if (child_ == nullptr) start(retry_s);
}

bool Worker::is_tidy() {
  const std::string left = child_->what_is_left();
  if (left.empty()) return true;
  if (steps_.warn_of_leftovers) steps_.warn_of_leftovers(left);
  return false;
}

base::Json Worker::call(std::string_view name, const base::Json& arguments, double deadline_s) {
  try {
    return child_->call(name, arguments, deadline_s);
  } catch (const ChildLost&) {
    drop();
    throw;
  }
}

void Worker::drop() {
  std::unique_ptr<ChildProcess> ended;  // ending it takes its time, outside the lock
  {
    const std::lock_guard lock(mutex_);
    ended = std::move(child_);
  }
  retiring_ = false;
}

void Worker::rest(bool is_spent) {
  if (child_ == nullptr) return;
  if (retiring_) {
    drop();
    succeeds_spent_ = is_spent;
  } else {
    child_->ask_what_is_left();
  }
}

void Worker::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  if (child_ != nullptr) child_->interrupt();
}

int64_t Worker::process_id() const {
  const std::lock_guard lock(mutex_);
  return child_ == nullptr ? -1 : child_->process_id();
}

int64_t Worker::restarts() const {
  const std::lock_guard lock(mutex_);
  return num_restarts_;
}

}  // namespace tandem::worker
