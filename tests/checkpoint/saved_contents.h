// Makes the contents that tests save as a checkpoint, and then expect of it. No torch.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/checkpoints.h"

namespace tandem::checkpoint {

// Everything in it depends on the step.
inline SavedTensor whole_tensor(weights::TensorBytes bytes) {
  std::vector<int64_t> shape = bytes.shape, origin(shape.size(), 0);
  return {.bytes = std::move(bytes), .whole_shape = std::move(shape), .begin = std::move(origin)};
}

struct Contents {
  base::Json state;
  std::vector<float> weights;  // [6, 5]
  std::vector<uint16_t> bits;  // [7]

  explicit Contents(int64_t step) : weights(30), bits(7) {
    state["step"] = step;
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(step) + static_cast<float>(i) * 0.25F;
    for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(step * 100 + static_cast<int64_t>(i));
  }
  std::vector<SavedTensor> tensors() const {
    return {whole_tensor({"master.a", "F32", {6, 5}, std::as_bytes(std::span(weights))}),
            whole_tensor({"b", "BF16", {7}, std::as_bytes(std::span(bits))})};
  }
  // Returns one rank's part: rows of each tensor. With many ranks, the last ones hold no rows of b.
  std::vector<SavedTensor> rows_of(int rank, int size) const {
    std::vector<SavedTensor> result;
    const auto add = [&](const char* name, const char* dtype, int64_t rows, int64_t columns, auto bytes) {
      const int64_t begin = rows * rank / size, end = rows * (rank + 1) / size;
      if (begin == end) return;
      const size_t row_bytes = bytes.size() / static_cast<size_t>(rows);
      const auto part =
          bytes.subspan(static_cast<size_t>(begin) * row_bytes, static_cast<size_t>(end - begin) * row_bytes);
      if (columns == 0) {
        result.push_back({{name, dtype, {end - begin}, part}, {rows}, {begin}});
      } else {
        result.push_back({{name, dtype, {end - begin, columns}, part}, {rows, columns}, {begin, 0}});
      }
    };
    add("master.a", "F32", 6, 5, std::as_bytes(std::span(weights)));
    add("b", "BF16", 7, 0, std::as_bytes(std::span(bits)));
    return result;
  }
};

inline void save(const Checkpoints& checkpoints, int64_t step) {
  const Contents contents(step);
  checkpoints.save(step, contents.state, contents.tensors());
}

inline void expect_contents(const Checkpoint& checkpoint) {
  const Contents want(checkpoint.step());
  EXPECT_EQ(checkpoint.state(), want.state);
  std::vector<float> weights(30);
  checkpoint.read("master.a", "F32", {0, 0}, {6, 5}, std::as_writable_bytes(std::span(weights)));
  EXPECT_EQ(weights, want.weights);
  std::vector<uint16_t> bits(7);
  checkpoint.read("b", "BF16", {0}, {7}, std::as_writable_bytes(std::span(bits)));
  EXPECT_EQ(bits, want.bits);
}

}  // namespace tandem::checkpoint
