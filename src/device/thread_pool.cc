#include "device/thread_pool.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace tandem::device {
namespace {

constexpr int kLeftBits = 24;  // bits of a ticket that count the chunks left
constexpr uint64_t kLeftMask = (uint64_t{1} << kLeftBits) - 1;
constexpr int64_t kMaxChunks = int64_t{1} << 20;

// A wait that is shorter is met by spinning, since a thread that sleeps takes about that long to wake; in a longer one
// other processes get the core.
constexpr double kSpinSeconds = 50e-6;
constexpr int kPausesPerLook = 8;  // pauses between two looks at the clock

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Spins until is_over(), for at most kSpinSeconds; returns is_over().
template <typename IsOver>
bool spin_until(IsOver is_over) {
  const base::Clock::time_point begin = base::Clock::now();
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (is_over()) return true;
      pause();
    }
  } while (base::seconds_since(begin) < kSpinSeconds);
  return is_over();
}

}  // namespace

int usable_cores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));  // more cores than a cpu_set_t has
}

ThreadPool::ThreadPool(int num_threads) : owner_(getpid()) {
  TANDEM_CHECK(num_threads > 0, "threads of a pool:", num_threads);
  workers_.reserve(static_cast<size_t>(num_threads - 1));
  try {
    for (int thread = 1; thread < num_threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
  } catch (const std::system_error& error) {
    const size_t started = workers_.size() + 1;
    stop();
    throw EnvironmentError(
        fmt::format("only {} of {} threads could be started: {}; lower --num-threads, or raise the limits of processes "
                    "and memory (ulimit -u, ulimit -v)",
                    started, num_threads, error.code().message()));
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  is_stopping_ = true;
  ++num_alarms_;
  num_alarms_.notify_all();
  for (std::thread& worker : workers_) {
    if (owner_ == getpid()) {
      worker.join();
    } else {
      worker.detach();  // the thread exists in the parent process only
    }
  }
  workers_.clear();
}

void ThreadPool::run(Call call, const void* function, int64_t n, int64_t chunk) {
  TANDEM_CHECK(!is_running_.exchange(true), "a loop began while another was running on the same threads");
  chunk = std::max(chunk, (n + kMaxChunks - 1) / kMaxChunks);
  const int64_t num_chunks = (n + chunk - 1) / chunk;
  call_.store(call, std::memory_order_relaxed);
  function_.store(function, std::memory_order_relaxed);
  num_items_.store(n, std::memory_order_relaxed);
  chunk_items_.store(chunk, std::memory_order_relaxed);
  num_chunks_.store(num_chunks, std::memory_order_relaxed);
  num_finished_.store(0, std::memory_order_relaxed);
  const uint64_t number = (ticket_.load(std::memory_order_relaxed) >> kLeftBits) + 1;
  ticket_ = number << kLeftBits | static_cast<uint64_t>(num_chunks);
  wake_workers(num_chunks);

  const auto of_workers = static_cast<uint32_t>(num_chunks - take_chunks(/*thread=*/0));
  const auto is_finished = [&] { return num_finished_.load(std::memory_order_acquire) == of_workers; };
  if (!spin_until(is_finished)) {
    for (uint32_t seen = num_finished_; seen != of_workers; seen = num_finished_) num_finished_.wait(seen);
  }
  const bool has_failed = has_failed_.exchange(false);
  is_running_ = false;
  if (has_failed) std::rethrow_exception(std::exchange(failure_, nullptr));
}

// Wakes only as many workers as find something to do: the caller takes a chunk, too.
void ThreadPool::wake_workers(int64_t num_chunks) {
  const int64_t sleeping = num_sleeping_, wanted = num_chunks - 1;
  if (sleeping == 0) return;
  ++num_alarms_;
  if (wanted >= sleeping) {
    num_alarms_.notify_all();
  } else {
    for (int64_t i = 0; i < wanted; ++i) num_alarms_.notify_one();
  }
}

// Takes chunks of the loop until none is left. Returns how many it took.
int64_t ThreadPool::take_chunks(int thread) {
  int64_t num_taken = 0;
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while ((ticket & kLeftMask) != 0) {
    const Call call = call_.load(std::memory_order_relaxed);
    const void* const function = function_.load(std::memory_order_relaxed);
    const int64_t n = num_items_.load(std::memory_order_relaxed), items = chunk_items_.load(std::memory_order_relaxed);
    const int64_t num_chunks = num_chunks_.load(std::memory_order_relaxed);
    if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      continue;
    }
    const int64_t begin = (num_chunks - static_cast<int64_t>(ticket & kLeftMask)) * items;
    if (!has_failed_.load(std::memory_order_relaxed)) {
      call_chunk(call, function, begin, std::min(n, begin + items), thread);
    }
    ++num_taken;
    if (thread > 0) {
      num_finished_.fetch_add(1, std::memory_order_release);
      num_finished_.notify_one();
    }
    ticket = ticket_.load(std::memory_order_acquire);
  }
  return num_taken;
}

void ThreadPool::call_chunk(Call call, const void* function, int64_t begin, int64_t end, int thread) {
  try {
    call(function, begin, end, thread);
  } catch (...) {
    const std::scoped_lock lock(failure_mutex_);
    if (failure_ == nullptr) failure_ = std::current_exception();
    has_failed_ = true;
  }
}

bool ThreadPool::has_work() const { return (ticket_ & kLeftMask) != 0 || is_stopping_; }

void ThreadPool::work(int thread) {
  while (!is_stopping_) {
    if (!spin_until([this] { return has_work(); })) {
      // A thread that publishes a loop looks at num_sleeping_ afterwards: one of both sees what the other has written.
      const uint32_t seen = num_alarms_;
      ++num_sleeping_;
      if (!has_work()) num_alarms_.wait(seen);
      --num_sleeping_;
    }
    take_chunks(thread);
  }
}

}  // namespace tandem::device
