// New weights of a model that is spread over two trainers, to an engine that is spread over two processes; all four are
// threads of this one. Each process of the engine has its part, or none of them samples.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <vector>

#include "rollout_worker/replica_weights.h"
#include "rollout_worker/worker_weights.h"
#include "tests/device/ranks/thread_ranks.h"
#include "tests/weights/shown_memory.h"

namespace tandem::rollout_worker {
namespace {

constexpr int kParts = 2;

using Sessions = std::array<std::unique_ptr<session::ModelSession>, kParts>;

Sessions sessions(const std::vector<std::unique_ptr<device::Communicator>>& ranks) {
  config::ModelOptions options;
  options.hf_checkpoint = "tests/golden/models/qwen3-tied";
  Sessions result;
  for (size_t part = 0; part < kParts; ++part) {
    result[part] = std::make_unique<session::ModelSession>(options, config::LoraOptions{}, config::OptimizerOptions{},
                                                           mesh::Group{.device = *ranks[part], .host = *ranks[part]});
  }
  return result;
}

// A message that rank 0 sends to the engine's first process, and the bytes after it.
struct Sent {
  sampling::Message message;
  std::vector<std::byte> bytes;
};

class SpreadWeights : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    trainer_ranks_ = device::thread_communicators(kParts);
    engine_ranks_ = device::thread_communicators(kParts);
    trainers_ = sessions(trainer_ranks_);
    engine_ = sessions(engine_ranks_);
    for (auto& session : trainers_) session->load_weights();
    for (auto& session : engine_) session->allocate_weights();
  }
  static void TearDownTestSuite() {
    trainers_ = {};
    engine_ = {};
    trainer_ranks_.clear();
    engine_ranks_.clear();
  }
  void SetUp() override {
    for (auto& session : trainers_) {
      for (const weights::PackedTensor& packed : session->base().layout().tensors)
        session->base().tensor(packed.name).add_(1);
      session->base().publish();
    }
  }

  // Runs `work(rank)` on a thread for each rank of `ranks`. A rank is told if another one has thrown.
  static void on_ranks(const std::vector<std::unique_ptr<device::Communicator>>& ranks,
                       const std::function<void(int rank)>& work) {
    std::vector<std::exception_ptr> errors(ranks.size());
    {
      std::vector<std::jthread> threads;
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        threads.emplace_back([&, rank] {
          try {
            work(static_cast<int>(rank));
          } catch (...) {
            errors[rank] = std::current_exception();
          }
        });
      }
    }
    for (const std::exception_ptr& error : errors)
      if (error) std::rethrow_exception(error);
  }

  // Runs the first trainer's update. Returns what it shows, and what it then sends.
  struct Update {
    sampling::Welcome welcome;
    std::vector<Sent> sent;
    int64_t copied_bytes = 0;
  };
  static Update update(bool in_pieces, int64_t piece_bytes) {
    Update result;
    on_ranks(trainer_ranks_, [&](int rank) {
      device::Communicator& host = *trainer_ranks_[static_cast<size_t>(rank)];
      ReplicaWeights weights(*trainers_[static_cast<size_t>(rank)], {.device = host, .host = host}, piece_bytes);
      if (rank > 0) return weights.update();
      result.copied_bytes = weights.copied_bytes();
      result.welcome.shown_trained = weights.words(/*is_base=*/false);
      weights.update(
          [&] {
            if (!in_pieces) result.sent.push_back({sampling::CopyWeights{}, {}});
          },
          [&] {
            if (!in_pieces) {
              const uint64_t version = weights.version(false);
              result.sent.push_back(
                  {sampling::WeightChecksums{.version = version, .sums = weights.checksums(false)}, {}});
              return;
            }
            weights.send(false, [&](const sampling::Weights& piece, std::span<const std::byte> bytes) {
              result.sent.push_back({piece, {bytes.begin(), bytes.end()}});
            });
          });
    });
    return result;
  }

  // Hands the update to the engine. Returns whether the engine has new weights then.
  static bool take(const Update& update) {
    bool are_new = false;
    on_ranks(engine_ranks_, [&](int rank) {
      EngineRanks ranks(*engine_ranks_[static_cast<size_t>(rank)]);
      WorkerWeights weights(*engine_[static_cast<size_t>(rank)], ranks, update.welcome);
      EXPECT_EQ(weights.maps(), std::holds_alternative<sampling::CopyWeights>(update.sent.front().message));
      for (const Sent& sent : update.sent) {
        const bool is_last = std::visit(
            [&]<typename Kind>(const Kind& message) {
              if constexpr (std::is_same_v<Kind, sampling::Weights>) {
                using Bytes = std::span<const std::byte>;
                return weights.take(message, rank == 0 ? Bytes(sent.bytes) : Bytes());  // the others have none
              } else if constexpr (std::is_same_v<Kind, sampling::CopyWeights> ||
                                   std::is_same_v<Kind, sampling::WeightChecksums>) {
                return weights.take(message);
              } else {
                return false;
              }
            },
            sent.message);
        if (rank == 0) are_new = is_last;
      }
    });
    return are_new;
  }

  static void expect_same_weights() {
    for (size_t part = 0; part < kParts; ++part) {
      const weights::WeightStore &want = trainers_[part]->base(), &have = engine_[part]->base();
      EXPECT_EQ(have.view().version(), want.version());
      for (const weights::PackedTensor& packed : want.layout().tensors) {
        const at::Tensor &x = have.tensor(packed.name), &y = want.tensor(packed.name);
        EXPECT_EQ(std::memcmp(x.const_data_ptr(), y.const_data_ptr(), y.nbytes()), 0) << part << " " << packed.name;
      }
    }
  }

  static inline std::vector<std::unique_ptr<device::Communicator>> trainer_ranks_, engine_ranks_;
  static inline Sessions trainers_, engine_;
};

TEST_F(SpreadWeights, ArePassedOnInPieces) {
  for (const int64_t piece_bytes : {int64_t{1000}, int64_t{1} << 30}) {
    const Update sent = update(/*in_pieces=*/true, piece_bytes);
    EXPECT_EQ(sent.copied_bytes, trainers_[1]->base().bytes()) << "the CPU's memory is not shown";
    EXPECT_TRUE(take(sent));
    expect_same_weights();
  }
}

TEST_F(SpreadWeights, AreCopiedByEachFromItsPart) {
  const weights::ShownMemory memory;
  const Update sent = update(/*in_pieces=*/false, 1000);
  EXPECT_EQ(sent.copied_bytes, 0);
  EXPECT_EQ(sent.welcome.shown_trained.size(), 2U);
  EXPECT_TRUE(take(sent));
  expect_same_weights();
}

// A worker that cannot map them is sent what the first trainer reads from the other's memory.
TEST_F(SpreadWeights, AreSentFromMemoryThatIsMapped) {
  weights::ShownMemory memory;
  const Update sent = update(/*in_pieces=*/true, 1000);
  EXPECT_EQ(sent.copied_bytes, 0);
  memory.set_seen([](const at::Tensor&) { return at::Tensor(); });
  EXPECT_TRUE(take(sent));
  expect_same_weights();
}

TEST_F(SpreadWeights, ThatAreTornInOnePartSampleInNone) {
  const weights::ShownMemory memory;
  Update sent = update(/*in_pieces=*/false, 1000);
  std::get<sampling::WeightChecksums>(sent.sent.back().message).sums.back() ^= 1;
  try {
    take(sent);
    ADD_FAILURE() << "the last tensor of the last part has another checksum";
  } catch (const EnvironmentError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("changed while they were copied"));
  }
  EXPECT_THROW(engine_[1]->base().view(), BugError);
}

TEST_F(SpreadWeights, ThatLackAPartAreRefused) {
  Update sent = update(/*in_pieces=*/true, 1000);
  std::erase_if(sent.sent, [](const Sent& one) { return std::get<sampling::Weights>(one.message).part == 0; });
  try {
    take(sent);
    ADD_FAILURE() << "the first part never came";
  } catch (const EnvironmentError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("have not all come"));
  }
}

}  // namespace
}  // namespace tandem::rollout_worker
