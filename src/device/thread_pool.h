// Threads that share the items of one loop after another, also on a machine whose cores are busy. No torch.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace tandem::device {

// Returns the number of cores that this process may run on.
int usable_cores();

// The caller of for_each() and the workers that are awake take chunks of items until none is left. So the caller never
// waits for a worker that has not begun: one that gets a core late finds nothing to do. At the end the caller waits for
// the chunks that workers have begun and not finished. All waits spin for some microseconds and then sleep.
//
// A chunk's limits depend on the loop, not on the number of threads. There is one loop at a time; a loop within a loop
// is a bug. In a process that was forked while a pool existed, the pool has no workers and the caller does all chunks.
class ThreadPool {
 public:
  // num_threads counts the caller and num_threads - 1 workers, which live as long as the pool. Throws EnvironmentError,
  // which names the limits to raise, where the machine refuses a thread.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls f(i) or f(i, thread) for i in [0, n), in any order; `thread`, below num_threads(), is the same for calls that
  // do not overlap. `chunk` items are taken at a time. The caller alone does a loop of at most one chunk, since waking
  // a thread costs some microseconds. Throws what f throws, after the chunks that have begun are finished; where
  // several calls throw, one of their exceptions.
  template <typename Function>
  void for_each(int64_t n, int64_t chunk, const Function& f) {
    if (workers_.empty() || n <= chunk) {
      call_items(f, 0, n, 0);
      return;
    }
    const auto call = [](const void* function, int64_t begin, int64_t end, int thread) {
      call_items(*static_cast<const Function*>(function), begin, end, thread);
    };
    run(call, &f, n, chunk);
  }

  // Calls f(begin, count) for pieces of at most `piece` items that make up [0, n), each once, in any order.
  template <typename Function>
  void for_pieces(int64_t n, int64_t piece, const Function& f) {
    for_each((n + piece - 1) / piece, 1, [&](int64_t i) { f(i * piece, std::min(piece, n - i * piece)); });
  }

 private:
  using Call = void (*)(const void* function, int64_t begin, int64_t end, int thread);

  template <typename Function>
  static void call_items(const Function& f, int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i) {
      if constexpr (std::is_invocable_v<const Function&, int64_t, int>) {
        f(i, thread);
      } else {
        f(i);
      }
    }
  }

  void run(Call call, const void* function, int64_t n, int64_t chunk);
  int64_t take_chunks(int thread);
  void call_chunk(Call call, const void* function, int64_t begin, int64_t end, int thread);
  void wake_workers(int64_t num_chunks);
  void work(int thread);
  bool has_work() const;
  void stop();

  // The ticket holds the number of the loop, and how many of its chunks nobody has taken (the lower kLeftBits bits). A
  // thread takes one by writing the next value with a compare-exchange, which fails where the loop has ended since it
  // read the fields below.
  alignas(64) std::atomic<uint64_t> ticket_ = 0;
  // These fields describe the loop. They change only when all chunks of the loop before are finished.
  std::atomic<Call> call_ = nullptr;
  std::atomic<const void*> function_ = nullptr;
  std::atomic<int64_t> num_items_ = 0, chunk_items_ = 0, num_chunks_ = 0;
  std::atomic<bool> is_stopping_ = false;

  alignas(64) std::atomic<uint32_t> num_finished_ = 0;  // number of chunks of this loop that workers have done
  std::atomic<bool> has_failed_ = false;
  std::mutex failure_mutex_;
  std::exception_ptr failure_;

  alignas(64) std::atomic<uint32_t> num_sleeping_ = 0, num_alarms_ = 0;
  std::atomic<bool> is_running_ = false;
  const int owner_;  // id of the process that has the workers
  std::vector<std::thread> workers_;
};

}  // namespace tandem::device
