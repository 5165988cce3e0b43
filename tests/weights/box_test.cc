// Boxes of tensors: their elements have the right places and are read right.
#include "weights/box.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tandem/error.h"
#include "tests/weights/file_bytes.h"
#include "weights/box_reader.h"

namespace tandem::weights {
namespace {

constexpr uint64_t kSeed = 20260729;

Box drawn_box(std::mt19937_64& random, int64_t rows, int64_t columns) {
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); };
  Box box{.row_begin = below(rows), .num_columns = columns, .whole_columns = columns};
  box.num_rows = 1 + below(rows - box.row_begin);
  if (below(3) == 0) return box;
  box.column_begin = below(columns);
  box.num_columns = 1 + below(columns - box.column_begin);
  return box;
}

// Returns which of the box's elements a matrix has at an index; -1 if none.
int64_t element_at(const Box& box, int64_t index) {
  const int64_t row = index / box.whole_columns - box.row_begin, column = index % box.whole_columns - box.column_begin;
  const bool inside = row >= 0 && row < box.num_rows && column >= 0 && column < box.num_columns;
  return inside ? row * box.num_columns + column : -1;
}

TEST(Box, RunsVisitEachElementOnceWhereItLies) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 300; ++i) {
    const Box box = drawn_box(random, 6, 7);
    const auto first = static_cast<int64_t>(random() % static_cast<uint64_t>(box.num_elements()));
    const int64_t count = box.num_elements() - first;
    int64_t next = first;
    for_each_run(box, first, count, [&](const auto& run) {
      EXPECT_EQ(run.element, next);
      for (int64_t k = 0; k < run.count; ++k) EXPECT_EQ(element_at(box, run.index + k), run.element + k);
      next += run.count;
    });
    EXPECT_EQ(next, first + count);
    for (int64_t index = 0, before = 0; index < 42; ++index) {
      EXPECT_EQ(box.elements_before(index), before);
      before += element_at(box, index) >= 0 ? 1 : 0;
    }
  }
}

TEST(Box, OfASliceIsItsPlaceInTheTensor) {
  const Slice vector{.hf_name = "bias", .shape = {3}, .begin = {6}, .whole_shape = {12}};
  EXPECT_EQ(box_of(vector).index_of(2), 8);
  EXPECT_TRUE(box_of(vector).has_whole_rows());
  const Slice cube{.hf_name = "cube", .shape = {2, 3, 5}, .begin = {1, 2, 0}, .whole_shape = {4, 7, 5}};
  EXPECT_EQ(box_of(cube).index_of(0), 35 + 10);
  EXPECT_EQ(box_of(cube).index_of(15), 70 + 10);
  const Slice deep{.hf_name = "deep", .shape = {2, 3, 4}, .begin = {1, 2, 1}, .whole_shape = {4, 7, 5}};
  EXPECT_THROW(box_of(deep), BugError);
}

// The matrices have rows that are small and many, near a MiB, and above one.
TEST(BoxReader, ReadsWhatLiesInTheBox) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  BoxReader reader;
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{700, 1101}, {5, 300'000}, {3, 700'000}, {9, 3}}) {
    std::vector<uint16_t> values(static_cast<size_t>(rows * columns));
    for (uint16_t& value : values) value = static_cast<uint16_t>(random());
    const TemporaryDirectory directory;
    const std::string path = directory / "box.safetensors";
    write_safetensors(
        path, {{.name = "before", .dtype = "U8", .shape = {2}, .bytes = std::as_bytes(std::span("x"))},
               {.name = "w", .dtype = "BF16", .shape = {rows, columns}, .bytes = std::as_bytes(std::span(values))}});
    const SafetensorsFile file(path);
    for (int i = 0; i < 6; ++i) {
      const Box box = drawn_box(random, rows, columns);
      const auto first = static_cast<int64_t>(random() % static_cast<uint64_t>(box.num_elements()));
      std::vector<uint16_t> read(static_cast<size_t>(box.num_elements() - first)), expected(read.size());
      reader.read(file, file.tensor("w"), box, first, std::as_writable_bytes(std::span(read)));
      for (size_t k = 0; k < expected.size(); ++k) {
        expected[k] = values[static_cast<size_t>(box.index_of(first + static_cast<int64_t>(k)))];
      }
      EXPECT_EQ(read, expected) << rows << " x " << columns;
    }
  }
}

}  // namespace
}  // namespace tandem::weights
