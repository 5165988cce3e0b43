// Runs ranks that save one checkpoint together as threads of a test. No torch.
#pragma once

#include <barrier>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/saving_ranks.h"

namespace tandem::checkpoint {

class RankThreads {
 public:
  explicit RankThreads(int size) : size_(size), texts_(static_cast<size_t>(size)), barrier_(size) {}

  SavingRanks of(int rank) {
    return {.rank = rank, .size = size_, .all_gather = [this, rank](const std::string& mine) {
              texts_[static_cast<size_t>(rank)] = mine;
              barrier_.arrive_and_wait();
              std::vector<std::string> result = texts_;
              barrier_.arrive_and_wait();
              return result;
            }};
  }
  // Runs f(rank) on all and returns the error of each, or "".
  std::vector<std::string> run(const std::function<void(int)>& f) const {
    std::vector<std::string> errors(static_cast<size_t>(size_));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size_; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          f(rank);
        } catch (const std::exception& error) {
          errors[static_cast<size_t>(rank)] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return errors;
  }

 private:
  const int size_;
  std::vector<std::string> texts_;
  std::barrier<> barrier_;
};

}  // namespace tandem::checkpoint
