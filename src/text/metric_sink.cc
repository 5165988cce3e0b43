#include "text/metric_sink.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "worker/worker.h"

namespace tandem::text {
namespace {

constexpr size_t kMaxQueuedEvents = 1024;
constexpr int kMaxAttempts = 2;  // each event is tried with the child that is there, then with a fresh one
constexpr double kDrainSeconds = 5.0;

base::Json to_json(const std::map<std::string, double>& values) {
  base::Json json = base::Json::object();
  // The names are distinct, so none is looked for among those before it, as operator[] would.
  auto& members = json.get_ref<base::Json::object_t&>();
  for (const auto& [name, value] : values) {
    if (std::isfinite(value)) {
      members.emplace_back(name, value);
    } else {
      members.emplace_back(name, std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");  // JSON has no such numbers
    }
  }
  return json;
}

}  // namespace

struct MetricSink::Impl {
  struct Event {
    int64_t step = 0;
    double wall_time_s = 0;
    base::Json values;
  };

  explicit Impl(const SinkTarget& sink_target) : target(sink_target) {}

  const SinkTarget target;
  worker::Worker worker{
      {.make = [this] { return std::make_unique<worker::ChildProcess>(target.config, target.worker); },
       .load = [this](worker::ChildProcess& child) { child.call("open", target.open, target.config.deadline_s); }}};
  mutable std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::deque<Event> queue;
  bool busy = false;  // an event is on its way
  bool stopping = false;
  int64_t num_dropped = 0;
  std::atomic<bool> warned = false;
  std::thread thread;

  void warn_once(const std::string& what) {
    if (warned.exchange(true)) return;
    base::log_warning("{}: {}; training continues", target.what, what);
  }

  // Returns whether the event was delivered.
  bool deliver(const Event& event) {
    for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
      try {
        if (!worker.has_process()) worker.start();
        worker.call("write", {{"step", event.step}, {"values", event.values}, {"wall_time_s", event.wall_time_s}},
                    target.config.deadline_s);
        return true;
      } catch (const std::runtime_error& error) {
        worker.drop();
        warn_once(error.what());
        const std::lock_guard lock(mutex);
        if (stopping) return false;
      }
    }
    return false;
  }

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stopping || !queue.empty(); });
      if (stopping) return;
      const Event event = std::move(queue.front());
      queue.pop_front();
      busy = true;
      lock.unlock();
      const bool delivered = deliver(event);
      lock.lock();
      busy = false;
      if (!delivered) ++num_dropped;
      changed.notify_all();
    }
  }

  // Makes the last call, after the thread's end.
  void finish() {
    if (target.finish_s <= 0 || !worker.has_process()) return;
    try {
      worker.call("finish", base::Json::object(), target.finish_s);
    } catch (const std::runtime_error& error) {
      warn_once(error.what());
    }
  }

  void wait_until_idle(double deadline_s) {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, std::chrono::duration<double>(deadline_s), [&] { return queue.empty() && !busy; });
  }
};

SinkTarget tensorboard_target(const worker::WorkerConfig& config, const std::string& directory) {
  SinkTarget target{.name = "the TensorBoard writer",
                    .what = "TensorBoard events in " + directory,
                    .worker = "sink",
                    .config = config,
                    .open = {{"directory", directory}}};
  target.config.writable.reset();  // its folder is yet to be made, and no code of the user's runs there
  return target;
}

MetricSink::MetricSink(const SinkTarget& target) : impl_(std::make_unique<Impl>(target)) {
  try {
    impl_->worker.start();
  } catch (const worker::WorkerError& error) {
    throw EnvironmentError(fmt::format("cannot start {}: {}", target.name, error.what()));
  }
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

MetricSink::~MetricSink() {
  impl_->wait_until_idle(kDrainSeconds);
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
    if (impl_->busy) impl_->worker.stop();
    const size_t num_left = impl_->queue.size() + (impl_->busy ? 1 : 0);
    if (num_left > 0)
      impl_->warn_once(fmt::format("the last {} were not delivered in {:g} s", num_left, kDrainSeconds));
  }
  impl_->changed.notify_all();
  impl_->thread.join();
  impl_->finish();
}

void MetricSink::write(int64_t step, const std::map<std::string, double>& values) {
  const double now_s = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  Impl::Event event{step, now_s, to_json(values)};
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->queue.size() >= kMaxQueuedEvents) {
      ++impl_->num_dropped;
      return;
    }
    impl_->queue.push_back(std::move(event));
  }
  impl_->changed.notify_all();
}

void MetricSink::flush(double deadline_s) { impl_->wait_until_idle(deadline_s); }

int64_t MetricSink::dropped() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->num_dropped;
}

const std::string& MetricSink::dropped_metric() const { return impl_->target.dropped_metric; }

int64_t MetricSink::restarts() const { return impl_->worker.restarts(); }

int64_t MetricSink::process_id() const { return impl_->worker.process_id(); }

}  // namespace tandem::text
