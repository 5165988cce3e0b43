// The common part of communicators between GPUs: exchanges are queued on a stream of their own, parallel to the
// device's computation, and watched, so that a rank that is gone ends them.
//
// An exchange's wait() makes the current stream wait, not the host. A lost rank is noticed by the timeout, by a call of
// abort(), or by the library that moves the bytes: work that the device had queued then ends with whatever is in the
// tensors, and the next call of the communicator throws PeerLost. So a caller who has waited for the device calls the
// communicator once more, an empty exchange is enough, before it uses the results.
//
// Exchanges may be recorded (Ops::record). One that is in flight is waited for before a recording is replayed.
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "device/communicator.h"
#include "device/cuda/event.h"
#include "device/cuda/ranks/wait_clock.h"
#include "device/exchange_pieces.h"

namespace tandem::device::cuda {

class StreamCommunicator : public Communicator {
 public:
  ~StreamCommunicator() override;
  int rank() const final { return rank_; }
  int size() const final { return size_; }
  std::unique_ptr<Exchange> start_exchange(TensorLists to, TensorLists from) final;
  void abort() noexcept final;
  Traffic traffic() final { return {.sent_bytes = sent_bytes_, .wait_s = waits_.seconds()}; }
  // Throws PeerLost once something has failed.
  void throw_if_failed();
  // Sets the timeout of exchanges that begin from now on.
  void set_timeout(double timeout_s);
  // Makes the current stream wait.
  void wait_for(const Event& done);

 protected:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  // `name` is the name, for messages, of the library that moves the bytes.
  StreamCommunicator(std::string name, int index, int rank, int size, double timeout_s);

  // Queues an exchange on stream().
  virtual void queue(const std::vector<Piece>& to, const std::vector<Piece>& from, Lock& lock) = 0;
  // Ends the exchanges that are queued on the device, however far they are. The caller holds the lock. It is called
  // when something has failed, and then again and again, since work that was queued before may begin only now.
  virtual void end_queued() noexcept = 0;
  // Returns the failure that the library knows of; empty: none. The caller holds the lock.
  virtual std::string trouble() { return {}; }

  // A derived class begins to watch when it is made, and ends it before it is destroyed.
  void begin_watching();
  void end_watching();
  // The caller holds the lock. The first failure stays.
  void fail(std::string why);

  std::string failure() const { return failure_; }  // needs the lock
  std::mutex& mutex() { return mutex_; }
  cudaStream_t stream() const { return stream_; }
  void count_sent(int64_t bytes) { sent_bytes_ += bytes; }
  c10::DeviceIndex index() const { return index_; }
  Clock::time_point deadline() const;

 private:
  // Shows an exchange to the thread that watches it.
  struct Watched {
    std::shared_ptr<Event> done;
    Clock::time_point deadline;
  };

  void watch();
  void watch_once();

  const std::string name_;
  const c10::DeviceIndex index_;
  const int rank_, size_;
  double timeout_s_;
  cudaStream_t stream_ = nullptr;
  Event ready_;
  int64_t sent_bytes_ = 0;
  WaitClock waits_;
  std::mutex mutex_;
  std::string failure_;  // empty: none
  bool is_closing_ = false;
  std::condition_variable changed_;
  std::deque<Watched> under_way_;
  std::thread watcher_;
};

}  // namespace tandem::device::cuda
