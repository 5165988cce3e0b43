// An export of several ranks has the bytes of an export of one; a failure on one rank ends it on all.
#include "weights/whole_tensors.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/files.h"
#include "tandem/error.h"
#include "tests/base/faulty_disk.h"
#include "tests/device/ranks/thread_communicator.h"
#include "tests/model/model_parts.h"
#include "tests/weights/file_bytes.h"

namespace tandem::weights {
namespace {

// Holds each rank's error, "" without one.
using Errors = std::vector<std::string>;

// Runs `work` on a thread for each rank; the communicator ends with the thread.
Errors on_ranks(int size, const std::function<void(device::Communicator&)>& work) {
  std::vector<std::unique_ptr<device::Communicator>> communicators = device::thread_communicators(size);
  Errors errors(static_cast<size_t>(size));
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        work(*communicators[rank]);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
      communicators[rank].reset();
    });
  }
  threads.clear();
  return errors;
}

void write_source(const std::string& directory) {
  base::make_directories(directory);
  write_bytes(directory + "/config.json", R"({"torch_dtype": "float16"})");
  write_bytes(directory + "/tokenizer.json", "{}");
}

void expect_same_files(const std::string& directory, const std::string& expected) {
  ASSERT_EQ(base::list_directory(directory), base::list_directory(expected));
  for (const std::string& name : base::list_directory(expected)) {
    EXPECT_TRUE(read_bytes(directory + "/" + name) == read_bytes(expected + "/" + name)) << name;
  }
}

TEST(WholeTensors, AnExportOfSeveralRanksIsThatOfOne) {
  base::UnsyncedFileCalls unsynced;  // there are hundreds of files
  const base::ReplacedFileCalls replaced(unsynced);
  const TemporaryDirectory folder;
  write_source(folder / "source");
  for (const std::string& architecture : model::kShardableArchitectures) {
    for (const bool tied : {true, false}) {
      const model::ModelConfig config = model::divisible_config(architecture, tied);
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        for (const int64_t max_shard_bytes : {int64_t{1} << 30, int64_t{1500}}) {
          const ExportOptions options = {
              .source_directory = folder / "source", .max_shard_bytes = max_shard_bytes, .overwrite = true};
          WeightStore whole(model::build_layout(config), dtype);
          initialize_random(whole, 0.2, 7);
          export_hf_checkpoint(folder / "whole", whole, options);
          for (const int num_ranks : {2, 3, 4}) {
            const std::vector<Layout> layouts = model::part_layouts(config, num_ranks);
            const Errors errors = on_ranks(num_ranks, [&](device::Communicator& replica) {
              WeightStore part(layouts[static_cast<size_t>(replica.rank())], dtype);
              initialize_random(part, 0.2, 7);
              export_hf_checkpoint(folder / "parts", part, options, replica);
            });
            EXPECT_EQ(errors, Errors(static_cast<size_t>(num_ranks)));
            expect_same_files(folder / "parts", folder / "whole");
          }
        }
      }
    }
  }
}

// Returns a layout with a matrix of more than one piece, cut by rows or by columns at places where pieces do not end.
Layout part_of_large_layout(int rank, bool by_columns) {
  constexpr int64_t kRows = 1201, kColumns = 1003, kCut = 401;
  Slice slice{.hf_name = "w", .shape = {kRows, kColumns}, .begin = {0, 0}, .whole_shape = {kRows, kColumns}};
  const auto dim = static_cast<size_t>(by_columns);
  slice.begin[dim] = rank == 0 ? 0 : kCut;
  slice.shape[dim] = rank == 0 ? kCut : slice.whole_shape[dim] - kCut;
  Layout layout;
  layout.tensors = {{.name = "w", .shape = slice.shape, .slices = {slice}}};
  return layout;
}

TEST(WholeTensors, ComeInPieces) {
  for (const bool by_columns : {false, true}) {
    Layout layout;
    layout.tensors = {{.name = "w", .shape = {1201, 1003}, .slices = {{.hf_name = "w", .shape = {1201, 1003}}}}};
    WeightStore whole(layout, at::kFloat);
    initialize_random(whole, 0.2, 7);
    const at::Tensor& values = whole.tensor("w");
    const Errors errors = on_ranks(2, [&](device::Communicator& replica) {
      WeightStore part(part_of_large_layout(replica.rank(), by_columns), at::kFloat);
      initialize_random(part, 0.2, 7);
      with_whole_tensors(part, replica, [&](const std::vector<TensorBytes>& tensors) {
        ASSERT_EQ(tensors.size(), 1U);
        EXPECT_EQ(tensors[0].shape, (std::vector<int64_t>{1201, 1003}));
        const auto* expected = static_cast<const std::byte*>(values.const_data_ptr());
        // Ranges are read in any order and of any size.
        for (const auto& [offset, bytes] : {std::pair<int64_t, int64_t>{4, 4}, {kStagingBytes, 8 * 1003}, {0, 4816}}) {
          std::vector<std::byte> read(static_cast<size_t>(bytes));
          tensors[0].copy_out(offset, read);
          EXPECT_EQ(std::memcmp(read.data(), expected + offset, read.size()), 0) << offset;
        }
        const TemporaryDirectory folder;
        write_safetensors(folder / "w", tensors);
        const std::string file = read_bytes(folder / "w");
        ASSERT_GT(file.size(), values.nbytes());
        EXPECT_EQ(std::memcmp(file.data() + file.size() - values.nbytes(), expected, values.nbytes()), 0);
      });
    });
    EXPECT_EQ(errors, Errors(2));
  }
}

// Makes two ranks whose stores are whole but for one matrix.
class FailingExport : public testing::Test {
 protected:
  WeightStore store(const device::Communicator& replica) const {
    WeightStore part(part_of_large_layout(replica.rank(), /*by_columns=*/true), at::kFloat);
    initialize_random(part, 0.2, 7);
    return part;
  }
};

TEST_F(FailingExport, EndsOnAllRanksWithTheWordsOfRank0) {
  for (const int64_t num_pieces : {0, 1}) {
    const Errors errors = on_ranks(2, [&](device::Communicator& replica) {
      const WeightStore part = store(replica);
      with_whole_tensors(part, replica, [&](const std::vector<TensorBytes>& tensors) {
        std::vector<std::byte> piece(4);
        for (int64_t i = 0; i < num_pieces; ++i) tensors[0].copy_out(0, piece);
        throw EnvironmentError("the disk is full");
      });
    });
    EXPECT_EQ(errors, Errors(2, "the disk is full"));
  }
}

// The ranks can still talk to each other afterwards.
TEST_F(FailingExport, LeavesTheDirectoryAndTheRanksAsTheyWere) {
  const TemporaryDirectory folder;
  write_source(folder / "source");
  base::make_directories(folder / "out");
  write_bytes(folder / "out/notes.txt", "mine");
  const Errors errors = on_ranks(2, [&](device::Communicator& replica) {
    const WeightStore part = store(replica);
    const ExportOptions options = {.source_directory = folder / "source"};
    EXPECT_ANY_THROW(export_hf_checkpoint(folder / "out", part, options, replica));
    EXPECT_EQ(base::list_directory(folder / "out"), std::vector<std::string>{"notes.txt"});
    EXPECT_EQ(device::all_gather_text(replica, "there"), std::vector<std::string>(2, "there"));
    export_hf_checkpoint(folder / "other", part, options, replica);
  });
  EXPECT_EQ(errors, Errors(2));
  EXPECT_EQ(base::list_directory(folder / "other"),
            (std::vector<std::string>{"config.json", "model.safetensors", "tokenizer.json"}));
}

// A tensor of the meta device cannot be copied.
TEST_F(FailingExport, EndsOnAllRanksWithTheWordsOfTheOneThatCannotReadItsWeights) {
  const TemporaryDirectory folder;
  write_source(folder / "source");
  const Errors errors = on_ranks(2, [&](device::Communicator& replica) {
    const at::Device device = replica.rank() == 0 ? at::kCPU : at::kMeta;
    const WeightStore part(part_of_large_layout(replica.rank(), /*by_columns=*/true), at::kFloat, device);
    export_hf_checkpoint(folder / "out", part, {.source_directory = folder / "source"}, replica);
  });
  for (const std::string& error : errors) EXPECT_NE(error.find("meta tensor"), std::string::npos) << error;
  EXPECT_FALSE(base::directory_exists(folder / "out"));
}

TEST_F(FailingExport, EndsWhereARankIsGone) {
  const Errors errors = on_ranks(2, [&](device::Communicator& replica) {
    const WeightStore part = store(replica);
    with_whole_tensors(part, replica, [&](const std::vector<TensorBytes>& tensors) {
      replica.abort();
      std::vector<std::byte> piece(4);
      tensors[0].copy_out(0, piece);
    });
  });
  for (const std::string& error : errors) EXPECT_NE(error.find("exchange"), std::string::npos) << error;
}

}  // namespace
}  // namespace tandem::weights
