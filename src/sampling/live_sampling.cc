#include "sampling/live_sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/message_text.h"
#include "sampling/in_flight_drawing.h"

namespace tandem::sampling {

namespace {

constexpr std::chrono::milliseconds kBetweenLooks(100);  // at the stop signal

}  // namespace

void LiveSampling::resume(const RolloutRequest& request, uint64_t number) {
  TANDEM_CHECK(!is_running());
  request_ = request;
  wants_ = is_pausing_ = has_ended_ = false;
  taken_.reset();
  thread_ = std::thread([this, number] {
    try {
      work(number);
    } catch (...) {
      const std::scoped_lock lock(mutex_);
      error_ = std::current_exception();
    }
    const std::scoped_lock lock(mutex_);
    has_ended_ = true;
    changed_.notify_all();
  });
}

void LiveSampling::work(uint64_t number) {
  const InFlightRequest& asked = *request_->in_flight;
  groups::InFlight& in_flight = *asked.groups;
  Coordinator coordinator(*request_, number, in_flight.pool, /*own=*/nullptr,
                          Coordinator::Others{.connections = connections_, .timeout_s = timeout_s_},
                          asked.groups_at_once * request_->n_samples_per_prompt);
  LiveDrawing drawing(*request_, &lengths_);
  const std::array<int, 1> news = {bell_.descriptor()};
  SamplerNumbers before = {};  // at the last rollout that was taken in this period
  bool is_pausing = false, has_paused = false;
  while (true) {
    bell_.silence();
    if (!is_pausing) drawing.draw();
    {
      const std::scoped_lock lock(mutex_);
      const bool is_alone = in_flight.pool.num_samplers() == 0;
      // Where completions are not paused, the groups of the next rollout must begin with the weights that are newest
      // now. A resumed run may have all groups of this rollout before any worker has joined: it waits for one, since a
      // worker that joins after the rollout was taken gets the weights of the next step.
      if (wants_ && drawing.is_over() && (asked.pauses_completions || !is_alone)) {
        Coordinator::Numbers numbers = coordinator.numbers();
        numbers.counted = numbers.counted - std::exchange(before, numbers.counted);
        numbers.counted += std::exchange(earlier_, {});
        taken_ = Taken{.groups = drawing.take(),
                       .numbers = numbers,
                       .seconds = base::seconds_since(std::exchange(since_, base::Clock::now()))};
        wants_ = false;
        changed_.notify_all();
        continue;  // there is room for other groups now, and nobody may say anything before they are drawn
      }
      if (is_ending_) return;
      is_pausing = is_pausing_ && !connections_.are_copying();  // they sample until they have copied new weights
      // Workers that join are given the weights that this pause is for: nobody waits for them before.
      if (is_pausing && (asked.pauses_completions || is_stopping_ || is_alone) && !std::exchange(has_paused, true)) {
        coordinator.pause();
      }
      if (is_pausing && is_alone) break;
      num_ended_ = in_flight.schedule.num_kept();
      num_in_flight_ = in_flight.schedule.num_in_flight();
      num_tokens_ = coordinator.numbers().counted.stats.generated_tokens;
    }
    if (is_pausing && in_flight.pool.is_idle()) break;
    coordinator.serve(news);
    drawing.decide(coordinator);
  }
  earlier_ += coordinator.numbers().counted - before;
}

std::optional<LiveSampling::Taken> LiveSampling::take(const std::function<bool()>& is_stopped, report::Report& report) {
  std::unique_lock lock(mutex_);
  wants_ = true;
  bell_.ring();
  const int64_t num_wanted = request_->in_flight->num_groups;
  while (!changed_.wait_for(lock, kBetweenLooks, [this] { return taken_.has_value() || has_ended_; })) {
    if (is_stopped()) {
      wants_ = false;
      return std::nullopt;
    }
    report.progress(
        request_->title, std::min(num_ended_, num_wanted), num_wanted,
        fmt::format("groups ended of {} in flight, {} tokens", num_in_flight_, base::with_commas(num_tokens_)));
  }
  lock.unlock();
  throw_error();
  connections_.hold_weights();
  return std::exchange(taken_, std::nullopt);
}

void LiveSampling::pause(const std::function<bool()>& is_stopped) {
  {
    std::unique_lock lock(mutex_);
    is_pausing_ = true;
    bell_.ring();
    while (!changed_.wait_for(lock, kBetweenLooks, [this] { return has_ended_; })) {
      is_stopping_ = is_stopped();
      bell_.ring();
    }
  }
  thread_.join();
  throw_error();
}

void LiveSampling::throw_error() {
  std::exception_ptr error;
  {
    const std::scoped_lock lock(mutex_);
    error = std::exchange(error_, nullptr);
  }
  if (!error) return;
  end_thread();
  std::rethrow_exception(error);
}

void LiveSampling::end_thread() {
  if (!thread_.joinable()) return;
  {
    const std::scoped_lock lock(mutex_);
    is_ending_ = true;
    bell_.ring();
  }
  thread_.join();
}

}  // namespace tandem::sampling
