// Samples while the run trains: a thread of rank 0 lends groups to rollout workers from when they have new weights
// until they are paused for the next ones, and the run takes a rollout's groups when they are there. Between pause()
// and resume() there is no thread, and the groups in flight rest. No torch.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/bell.h"
#include "base/clock.h"
#include "report/report.h"
#include "sampling/coordinator.h"
#include "sampling/drawing.h"
#include "sampling/rollout_request.h"

namespace tandem::sampling {

class LiveSampling {
 public:
  // Holds what a rollout is made of, and the samplers' numbers since the one before.
  struct Taken {
    TakenGroups groups;
    Coordinator::Numbers numbers;
    double seconds = 0.0;  // since the rollout before was taken
  };

  // The connections and the lengths are borrowed.
  LiveSampling(Connections& connections, double timeout_s, groups::LengthHistory& lengths)
      : connections_(connections), timeout_s_(timeout_s), lengths_(lengths) {}
  ~LiveSampling() { end_thread(); }
  LiveSampling(const LiveSampling&) = delete;
  LiveSampling& operator=(const LiveSampling&) = delete;

  // Goes on with the newest weights. `number` is that of no other rollout. All that the request points at, and what its
  // functions use, belongs to the thread until pause().
  void resume(const RolloutRequest& request, uint64_t number);
  // Waits for the groups of the next rollout, and takes them; then workers that join get no weights, because the run
  // changes them, until pause(). Returns nullopt once `is_stopped` says so. Throws what ended the thread.
  std::optional<Taken> take(const std::function<bool()>& is_stopped, report::Report& report);
  // Makes the samplers give back what they have, as it is or, where completions are not to be paused, when it has
  // ended, and ends the thread. Once `is_stopped` says so they give it back as it is. Nobody waits for samplers if none
  // is there. Throws what ended the thread before.
  void pause(const std::function<bool()>& is_stopped);
  bool is_running() const { return thread_.joinable(); }

 private:
  void work(uint64_t number);
  void throw_error();
  void end_thread();

  Connections& connections_;
  const double timeout_s_;
  groups::LengthHistory& lengths_;
  std::optional<RolloutRequest> request_;
  base::Bell bell_;  // wakes the thread
  base::Clock::time_point since_ = base::Clock::now();
  SamplerNumbers earlier_ = {};  // of periods that are over, and of no rollout yet

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // mutex_ is locked where these are used.
  bool wants_ = false, is_pausing_ = false, is_stopping_ = false, is_ending_ = false;
  bool has_ended_ = false;
  std::optional<Taken> taken_;
  std::exception_ptr error_;
  int64_t num_ended_ = 0, num_in_flight_ = 0, num_tokens_ = 0;  // for the live line

  std::thread thread_;
};

}  // namespace tandem::sampling
