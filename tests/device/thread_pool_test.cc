// Tests of loops on several threads: every item runs once, no wait for a worker that has no core, and nobody spins for
// long. A worker without a core is one that a signal handler keeps.
#include "device/thread_pool.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <functional>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tandem/error.h"

namespace tandem::device {
namespace {

using std::chrono::milliseconds;

double process_cpu_seconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST(ThreadPool, CallsEveryItemOnce) {
  for (const int num_threads : {1, 2, 3, 4}) {
    ThreadPool pool(num_threads);
    EXPECT_EQ(pool.num_threads(), num_threads);
    for (const int64_t n : {0, 1, 2, 7, 64, 1000}) {
      for (const int64_t chunk : {1, 2, 5, 63, 64, 2000}) {
        std::vector<int> calls(static_cast<size_t>(n), 0);
        pool.for_each(n, chunk, [&](int64_t i) { ++calls[static_cast<size_t>(i)]; });
        EXPECT_EQ(std::ranges::count(calls, 1), n) << num_threads << " threads, " << n << " items by " << chunk;
      }
    }
  }
}

TEST(ThreadPool, PiecesMakeUpTheWhole) {
  ThreadPool pool(3);
  for (const int64_t n : {0, 1, 63, 64, 65, 1000}) {
    std::vector<std::atomic<int>> calls(static_cast<size_t>(n));
    std::atomic<int64_t> num_pieces = 0;
    pool.for_pieces(n, 64, [&](int64_t begin, int64_t count) {
      EXPECT_EQ(begin % 64, 0);
      EXPECT_TRUE(count == 64 || begin + count == n) << begin << " " << count;
      for (int64_t i = begin; i < begin + count; ++i) ++calls[static_cast<size_t>(i)];
      ++num_pieces;
    });
    EXPECT_EQ(num_pieces, (n + 63) / 64);
    for (const std::atomic<int>& count : calls) ASSERT_EQ(count, 1) << "of " << n;
  }
}

TEST(ThreadPool, MoreItemsThanATicketCounts) {
  ThreadPool pool(2);
  std::vector<std::atomic<int64_t>> sums(2);
  const int64_t n = (int64_t{1} << 21) + 3;
  pool.for_each(n, 1, [&](int64_t i, int thread) { sums[static_cast<size_t>(thread)] += i; });
  EXPECT_EQ(sums[0] + sums[1], n * (n - 1) / 2);
}

// Loops of all sizes run in quick succession, so that workers come early, late and never. A thread's writes in one loop
// are read by the others in the next; ThreadSanitizer watches.
TEST(ThreadPool, EachLoopSeesTheOneBefore) {
  ThreadPool pool(4);
  std::vector<int64_t> values(97, 0), next(values.size(), 0), scratch(4, 0);
  const auto size = static_cast<int64_t>(values.size());
  for (int64_t round = 0; round < 3000; ++round) {
    const int64_t n = 1 + round * 7 % size;
    pool.for_each(n, 1 + round % 4, [&](int64_t i, int thread) {
      ++scratch[static_cast<size_t>(thread)];
      next[static_cast<size_t>(i)] = values[static_cast<size_t>((i + 1) % n)] + 1;
    });
    std::swap(values, next);
    std::copy_n(values.begin(), n, next.begin());
    ASSERT_EQ(std::accumulate(scratch.begin(), scratch.end(), int64_t{0}), n);
    std::ranges::fill(scratch, 0);
    if (round % 500 == 0) std::this_thread::sleep_for(milliseconds(2));  // the workers fall asleep
  }
}

// Both threads of a pool are within a call, whichever takes which.
void meet(ThreadPool& pool, const std::function<void(int thread)>& then) {
  std::atomic<int> num_begun = 0;
  pool.for_each(2, 1, [&](int64_t /*i*/, int thread) {
    ++num_begun;
    while (num_begun < 2) std::this_thread::yield();
    then(thread);
  });
}

TEST(ThreadPool, ThrowsWhatACallThrowsAndGoesOn) {
  ThreadPool pool(2);
  for (const int thrower : {0, 1}) {
    std::string what;
    try {
      meet(pool, [&](int thread) {
        if (thread == thrower) throw std::runtime_error("thread " + std::to_string(thread));
      });
    } catch (const std::runtime_error& error) {
      what = error.what();
    }
    EXPECT_EQ(what, "thread " + std::to_string(thrower));
    std::atomic<int> calls = 0;
    pool.for_each(8, 1, [&](int64_t /*i*/) { ++calls; });
    EXPECT_EQ(calls, 8);
  }
}

TEST(ThreadPool, ALoopWithinALoopIsABug) {
  ThreadPool pool(2);
  const auto inner = [&](int64_t /*i*/) { pool.for_each(2, 1, [](int64_t /*i*/) {}); };
  EXPECT_THROW(pool.for_each(2, 1, inner), BugError);
}

TEST(ThreadPool, IdleWorkersSleep) {
  ThreadPool pool(4);
  pool.for_each(4, 1, [](int64_t /*i*/) {});
  const double begin = process_cpu_seconds();
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_LT(process_cpu_seconds() - begin, 0.1);
}

TEST(ThreadPool, ALongWaitForAChunkSleeps) {
  ThreadPool pool(2);
  const double begin = process_cpu_seconds();
  meet(pool, [](int thread) {
    if (thread == 1) std::this_thread::sleep_for(milliseconds(300));
  });
  EXPECT_LT(process_cpu_seconds() - begin, 0.15);
}

#if !defined(__SANITIZE_THREAD__)  // TSan holds signals back until a thread calls something, and watches no child

std::atomic<bool> is_kept = false;
std::atomic<int> num_kept = 0;

void keep(int /*signal*/) {
  ++num_kept;
  while (is_kept) usleep(1000);
}

std::set<pid_t> threads_of_this_process() {
  std::set<pid_t> threads;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    threads.insert(std::stoi(entry.path().filename()));
  return threads;
}

TEST(ThreadPool, TheCallerDoesNotWaitForAWorkerThatHasNoCore) {
  const std::set<pid_t> others = threads_of_this_process();
  ThreadPool pool(4);
  struct sigaction action = {}, before = {};
  action.sa_handler = keep;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  num_kept = 0;
  is_kept = true;
  for (const pid_t thread : threads_of_this_process()) {
    if (!others.contains(thread)) {
      ASSERT_EQ(syscall(SYS_tgkill, getpid(), thread, SIGUSR1), 0);
    }
  }
  while (num_kept < 3) usleep(1000);

  std::vector<int> thread_of(100, -1);
  pool.for_each(100, 1, [&](int64_t i, int thread) { thread_of[static_cast<size_t>(i)] = thread; });
  EXPECT_EQ(std::ranges::count(thread_of, 0), 100);

  is_kept = false;
  sigaction(SIGUSR1, &before, nullptr);
  std::atomic<int> num_begun = 0;  // items that all four threads begin together
  pool.for_each(4, 1, [&](int64_t /*i*/) {
    ++num_begun;
    while (num_begun < 4) std::this_thread::yield();
  });
}

TEST(ThreadPool, InAForkedProcessTheCallerDoesAll) {
  auto* const pool = new ThreadPool(3);
  const pid_t child = fork();
  if (child == 0) {
    int64_t sum = 0;
    pool->for_each(100, 1, [&](int64_t i) { sum += i; });
    delete pool;
    _exit(sum == 4950 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  delete pool;
}

#endif

}  // namespace
}  // namespace tandem::device
