// Says which rows of gradients, masters and moments a data rank owns, and in which buckets gradients come. It is a
// function of shapes and the number of ranks. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/size.h"
#include "weights/layout.h"

namespace tandem::trainer {

// Names one of `size` data ranks.
struct Shard {
  int rank = 0, size = 1;
};

// Rows [begin, end) of a packed tensor. A vector's row is one element.
struct Rows {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};

int64_t elements_of_row(const std::vector<int64_t>& shape);

// A packed tensor is cut into blocks of this many rows, the last one perhaps smaller: as few as have 4,096 elements and
// begin at multiples of 64 bytes in a bfloat16 store. Sums by block are the same for any number of ranks.
int64_t rows_of_block(const std::vector<int64_t>& shape);
int64_t num_blocks(const std::vector<int64_t>& shape);
// Rank r of D owns blocks [r B / D, (r + 1) B / D) of B.
int64_t num_blocks(const std::vector<int64_t>& shape, const Shard& shard);
Rows rows_of(const std::vector<int64_t>& shape, const Shard& shard);
// Returns the number of elements of those rows.
int64_t elements_of(const std::vector<int64_t>& shape, const Shard& shard);

// Returns the bucket of a packed tensor, as model::GradientSink counts them: 3 for "layers.3.qkv".
int64_t bucket_of(const std::string& packed_name);

// The tensors of a bucket, by their place in the layout, and the offset of each in a stretch of memory that holds the
// bucket: in float32, aligned as in a store.
struct Bucket {
  struct Member {
    size_t tensor = 0;
    int64_t first_element = 0;
  };
  std::vector<Member> members;
  base::Size num_elements = 0;
};
struct Buckets {
  std::vector<Bucket> layers;  // buckets of every layer up to the last that has a tensor
  Bucket outer;
  const Bucket& of(int64_t bucket) const;
  int64_t largest_layer() const;  // number of elements
  int64_t largest() const;
};
// In the scratch of a micro-batch's gradients, layers take turns in so many stretches of memory: with several ranks one
// layer's gradients are sent while the next one's are computed.
constexpr int64_t gradient_layer_slots(int64_t data_ranks) { return data_ranks == 1 ? 1 : 2; }

// Returns the buckets of whole tensors, or of the rows that `shard` owns.
Buckets buckets_of(const weights::Layout& layout, const Shard& shard = {});

// Returns whether neighbouring ranks add up their gradients before the owners get them (trainer/gradient_sum.h), and
// hand each other the weights of other groups.
constexpr bool works_in_two_levels(int64_t data_ranks, int64_t group_size) {
  return group_size > 1 && data_ranks > 1 && data_ranks % group_size == 0;
}
// Returns the elements that a rank then needs for the largest bucket, given the buckets of all ranks of its place.
base::Size column_elements_of(const std::vector<Buckets>& ranks_of_a_place);

}  // namespace tandem::trainer
