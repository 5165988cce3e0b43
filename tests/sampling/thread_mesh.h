// Ranks that are threads of one process, for tests of what ranks do together: an exchange copies memory. It needs no
// torch.
#pragma once

#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/check.h"
#include "mesh/mesh.h"

namespace tandem::sampling {

class ThreadRanks {
 public:
  explicit ThreadRanks(int size) : posted_(static_cast<size_t>(size)) {}
  int size() const { return static_cast<int>(posted_.size()); }

  // Runs work(mesh) on a thread for each rank. The first error of a rank comes out, when all ranks have ended: those
  // that wait for a rank that is gone get PeerLost.
  void run(const std::function<void(mesh::Mesh&)>& work) {
    std::vector<std::exception_ptr> errors;
    {
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < size(); ++rank) {
        threads.emplace_back([this, rank, &work, &errors] {
          ThreadMesh mesh(*this, rank);
          try {
            work(mesh);
          } catch (...) {
            const std::scoped_lock lock(mutex_);
            errors.push_back(std::current_exception());
            is_broken_ = true;
            changed_.notify_all();
          }
        });
      }
    }
    if (!errors.empty()) std::rethrow_exception(errors.front());
  }

 private:
  class ThreadCommunicator final : public device::Communicator {
   public:
    ThreadCommunicator(ThreadRanks& ranks, int rank) : ranks_(ranks), rank_(rank) {}
    int rank() const override { return rank_; }
    int size() const override { return ranks_.size(); }
    std::unique_ptr<Exchange> start_exchange(device::TensorLists to, device::TensorLists from) override {
      class Done final : public Exchange {
        void wait() override {}
      };
      ranks_.exchange(rank_, to, from);
      return std::make_unique<Done>();
    }
    void abort() noexcept override {}

   private:
    ThreadRanks& ranks_;
    int rank_;
  };
  class ThreadMesh final : public mesh::Mesh {
   public:
    ThreadMesh(ThreadRanks& ranks, int rank) : ranks_(ranks), communicator_(ranks, rank) {}
    device::Communicator& host() const override { return communicator_; }
    device::Communicator& savers() const override { return communicator_; }
    mesh::Group tensor() const override { return {.device = *nobody_, .host = *nobody_}; }
    device::Communicator& tensor_savers() const override { return *nobody_; }
    mesh::Group data() const override { return {.device = communicator_, .host = communicator_}; }

   private:
    ThreadRanks& ranks_;
    mutable ThreadCommunicator communicator_;
    const std::unique_ptr<device::Communicator> nobody_ = device::solo_communicator();
  };

  void exchange(int rank, const device::TensorLists& to, const device::TensorLists& from) {
    std::unique_lock lock(mutex_);
    posted_[static_cast<size_t>(rank)] = &to;
    meet(lock);
    for (size_t q = 0; q < posted_.size(); ++q) {
      if (q == static_cast<size_t>(rank)) continue;
      const std::vector<at::Tensor>& sent = posted_[q]->at(static_cast<size_t>(rank));
      TANDEM_CHECK_EQ(sent.size(), from[q].size());
      for (size_t i = 0; i < sent.size(); ++i) {
        TANDEM_CHECK_EQ(sent[i].nbytes(), from[q][i].nbytes());
        if (sent[i].nbytes() > 0) std::memcpy(from[q][i].data_ptr(), sent[i].data_ptr(), sent[i].nbytes());
      }
    }
    meet(lock);
  }
  // Waits until all ranks are here.
  void meet(std::unique_lock<std::mutex>& lock) {
    const int64_t meeting = num_meetings_;
    if (++num_here_ == size()) {
      num_here_ = 0;
      ++num_meetings_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return is_broken_ || num_meetings_ > meeting; });
    if (num_meetings_ == meeting) throw device::PeerLost("a rank is gone");
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<const device::TensorLists*> posted_;
  int num_here_ = 0;
  int64_t num_meetings_ = 0;
  bool is_broken_ = false;
};

}  // namespace tandem::sampling
