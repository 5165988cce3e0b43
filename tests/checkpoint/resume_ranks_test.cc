// A checkpoint of any number of data and tensor ranks loads at any other: masters, moments and the KL reference are the
// same whole tensors.
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/check.h"
#include "base/files.h"
#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/resume.h"
#include "checkpoint/run_directory.h"
#include "tests/base/faulty_disk.h"
#include "tests/base/temporary_directory.h"
#include "tests/checkpoint/rank_threads.h"
#include "tests/model/model_parts.h"
#include "trainer/shard.h"
#include "weights/box.h"

namespace tandem::checkpoint {
namespace {

struct Ranks {
  int data = 1, tensor = 1;
  int size() const { return data * tensor; }
  int data_rank(int rank) const { return rank / tensor; }
  int tensor_rank(int rank) const { return rank % tensor; }
};

std::ostream& operator<<(std::ostream& out, const Ranks& ranks) {
  return out << ranks.data << " data x " << ranks.tensor << " tensor ranks";
}

model::ModelConfig model_config() { return model::divisible_config("Qwen2ForCausalLM", /*tied=*/false); }

weights::Layout layout_of(const Ranks& ranks, int rank) {
  return model::build_layout(model::shard_of(model_config(), {.rank = ranks.tensor_rank(rank), .size = ranks.tensor}));
}

// Returns another number for every element of every whole tensor; none is 0.
float number_of(trainer::StateKind kind, const std::string& hf_name, int64_t index) {
  static const std::map<std::string, int64_t> numbers = [] {
    std::map<std::string, int64_t> result;
    const weights::Layout layout = model::build_layout(model_config());
    for (const weights::PackedTensor& packed : layout.tensors) {
      for (const weights::Slice& slice : packed.slices) result.emplace(slice.hf_name, std::ssize(result));
    }
    return result;
  }();
  return static_cast<float>(1 + index + 1024 * (numbers.at(hf_name) + 32 * static_cast<int64_t>(kind)));
}

// Holds the state of one rank's trainer, with numbers of ours.
class HeldState final : public trainer::Trainer {
 public:
  HeldState(const Ranks& ranks, int rank) : layout_(layout_of(ranks, rank)) {
    for (const weights::PackedTensor& packed : layout_.tensors) {
      const trainer::Rows rows = trainer::rows_of(packed.shape, {.rank = ranks.data_rank(rank), .size = ranks.data});
      if (rows.count() == 0) continue;
      std::vector<int64_t> shape = packed.shape;
      shape[0] = rows.count();
      for (const auto kind : {trainer::StateKind::kExpAvg, trainer::StateKind::kExpAvgSq, trainer::StateKind::kMaster})
        state_.push_back({kind, &packed, at::zeros(shape, at::kFloat), rows.begin});
    }
  }

  // Visits each element with the number that it has in the whole model.
  template <typename F>
  void for_each(F f) const {
    for (const auto& [kind, packed, tensor, row_begin] : state_) {
      const int64_t columns = tensor.numel() / tensor.size(0);
      auto* data = static_cast<float*>(tensor.mutable_data_ptr());
      for (int64_t i = 0; i < tensor.numel(); ++i) {
        const int64_t row = row_begin + i / columns;
        const auto slice = std::ranges::find_if(packed->slices, [&](const weights::Slice& one) {
          return row >= one.row_begin && row < one.row_begin + one.shape[0];
        });
        const int64_t element = (row - slice->row_begin) * columns + i % columns;
        f(data[i], number_of(kind, slice->hf_name, weights::box_of(*slice).index_of(element)));
      }
    }
  }

  trainer::Metrics step(const std::vector<const rl::Sample*>&, trainer::RolloutLogprobs,
                        std::optional<uint64_t>) override {
    return {};
  }
  void end_phase() override {}
  trainer::OptimizerProgress progress() const override { return progress_; }
  std::vector<trainer::OptimizerTensor> state() const override { return state_; }
  void restore(const trainer::OptimizerProgress& progress) override { progress_ = progress; }
  at::Tensor gradient(const std::string&) const override { return {}; }

 private:
  const weights::Layout layout_;
  std::vector<trainer::OptimizerTensor> state_;
  trainer::OptimizerProgress progress_;
};

weights::WeightStore reference_of(const Ranks& ranks, int rank, uint64_t seed) {
  weights::WeightStore store(layout_of(ranks, rank), at::kBFloat16);
  weights::initialize_random(store, 0.2, seed);
  return store;
}

RunState some_state() {
  RunState state;
  state.step = 3;
  state.optimizer = {.updates = 5, .steps = 6};
  state.weight_version = 7;
  return state;
}

void save(const Checkpoints& checkpoints, const Ranks& ranks) {
  RankThreads threads(ranks.size());
  const std::vector<std::string> errors = threads.run([&](int rank) {
    const HeldState held(ranks, rank);
    held.for_each([](float& value, float number) { value = number; });
    const weights::WeightStore reference = reference_of(ranks, rank, /*seed=*/9);
    std::vector<SavedTensor> tensors = optimizer_tensors(held, ranks.tensor_rank(rank));
    if (ranks.data_rank(rank) == 0)
      std::ranges::move(reference_tensors(reference, ranks.tensor_rank(rank)), std::back_inserter(tensors));
    checkpoints.save(3, some_state().to_json(), std::move(tensors), threads.of(rank));
  });
  EXPECT_EQ(errors, std::vector<std::string>(errors.size()));
}

void expect_restored(const Checkpoint& checkpoint, const Ranks& ranks) {
  for (int rank = 0; rank < ranks.size(); ++rank) {
    HeldState held(ranks, rank);
    weights::WeightStore store = weights::WeightStore::without_storage(layout_of(ranks, rank), at::kBFloat16);
    restore(checkpoint, read_state(checkpoint), held, store);
    EXPECT_EQ(held.progress(), some_state().optimizer);
    EXPECT_EQ(store.version(), some_state().weight_version);
    int64_t num_different = 0;
    held.for_each([&](float value, float number) { num_different += value == number ? 0 : 1; });
    EXPECT_EQ(num_different, 0) << "rank " << rank;

    weights::WeightStore restored = reference_of(ranks, rank, /*seed=*/2);
    restore_reference(checkpoint, restored);
    model::expect_part_of(restored, reference_of({}, 0, /*seed=*/9));
  }
}

class ResumeRanks : public testing::TestWithParam<Ranks> {
 private:
  base::UnsyncedFileCalls unsynced_;
  base::ReplacedFileCalls replaced_{unsynced_};
};

constexpr std::array kRanks = {Ranks{1, 1}, Ranks{1, 2}, Ranks{2, 2}, Ranks{3, 1}, Ranks{1, 3}, Ranks{2, 4}};

TEST_P(ResumeRanks, ACheckpointOfOthersIsTheSameState) {
  const base::TemporaryDirectory folder;
  const Checkpoints checkpoints(folder / "run");
  save(checkpoints, GetParam());
  const Checkpoint checkpoint = checkpoints.open(std::nullopt);
  for (const Ranks& others : kRanks) {
    SCOPED_TRACE(testing::Message() << "restored by " << others);
    expect_restored(checkpoint, others);
  }
}

// Norms, which every tensor rank holds, lie in the shards of the first.
TEST_P(ResumeRanks, WhatAllTensorRanksHoldTheFirstOfThemSaves) {
  const base::TemporaryDirectory folder;
  const Checkpoints checkpoints(folder / "run");
  save(checkpoints, GetParam());
  const Checkpoint checkpoint = checkpoints.open(std::nullopt);
  for (const std::string kind : {"master", "exp_avg", "exp_avg_sq", "reference"}) {
    for (const TensorPiece& piece : checkpoint.manifest().tensors.at(kind + ".model.norm.weight").pieces) {
      int rank = -1;
      ASSERT_EQ(std::sscanf(piece.file.c_str(), "shard_%d.safetensors", &rank), 1) << piece.file;
      EXPECT_EQ(GetParam().tensor_rank(rank), 0);
    }
  }
}

// Each rank exports its part; the pointer moves only if all could.
TEST(CheckpointWriterRanks, AllExportTogetherOrNothingIsSaved) {
  base::UnsyncedFileCalls unsynced;
  const base::ReplacedFileCalls replaced(unsynced);
  for (const int failing : {-1, 0, 1}) {
    const base::TemporaryDirectory folder;
    RunDirectory directory(folder / "run", RunFolder::kNew, /*needed_bytes=*/0);
    directory.create();
    RankThreads threads(2);
    std::array<std::string, 2> exported;
    const std::vector<std::string> errors = threads.run([&](int rank) {
      const auto write = [&](const std::string& path) {
        exported.at(static_cast<size_t>(rank)) = path;
        TANDEM_ENV_CHECK(rank != failing, "the disk is full");
        if (rank == 0) base::make_directories(path);
      };
      CheckpointWriter writer(write, directory, /*keep_latest=*/2, threads.of(rank));
      writer.start(some_state(), {}, config::SavedParts::kBoth);
      writer.wait();
    });
    EXPECT_EQ(exported, (std::array{directory.checkpoint(3), directory.checkpoint(3)}));
    EXPECT_EQ(errors, std::vector<std::string>(2, failing < 0 ? "" : "the disk is full"));
    EXPECT_EQ(base::file_exists(folder / "run/hf/latest") || base::directory_exists(folder / "run/hf/latest"),
              failing < 0);
    EXPECT_EQ(Checkpoints(directory.path()).empty(), failing >= 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ResumeRanks, testing::ValuesIn(kRanks),
                         [](const auto& info) { return fmt::format("{}x{}", info.param.data, info.param.tensor); });

}  // namespace
}  // namespace tandem::checkpoint
