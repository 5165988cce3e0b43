// Runs a function on a thread for each rank, with communicators between them.
#pragma once

#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "device/communicator.h"
#include "tests/device/ranks/thread_communicator.h"

namespace tandem::device {

// Calls f(communicator) on a thread for each of `size` ranks and returns what it returned, by rank. Rethrows what one
// of them throws; the others, which wait for it, are told that it is gone.
template <typename F>
auto on_thread_ranks(int size, F f) {
  const std::vector<std::unique_ptr<Communicator>> ends = thread_communicators(size);
  std::vector<decltype(f(*ends[0]))> results(ends.size());
  std::vector<std::exception_ptr> errors(ends.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ends.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        results[r] = f(*ends[r]);
      } catch (...) {
        errors[r] = std::current_exception();
        ends[r]->abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  return results;
}

}  // namespace tandem::device
