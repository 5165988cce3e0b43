// Draws the random weights of store.h.

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/rng.h"
#include "device/thread_pool.h"
#include "weights/box.h"
#include "weights/quantise.h"
#include "weights/staging.h"
#include "weights/store.h"

namespace tandem::weights {
namespace {

// Returns four normal deviates of one Philox block, by Box and Muller (1958), twice.
std::array<float, 4> normals(uint64_t seed, uint64_t tensor, uint64_t block) {
  const std::array<uint32_t, 4> bits = base::philox(seed, tensor, block);
  std::array<float, 4> result;
  for (int pair = 0; pair < 2; ++pair) {
    // It is in (0, 1]: the logarithm of 0 does not exist.
    const float radius_draw = static_cast<float>((bits[2 * pair] >> 8) + 1) * 0x1.0p-24F;
    const float angle_draw = static_cast<float>(bits[2 * pair + 1] >> 8) * 0x1.0p-24F;
    const float radius = std::sqrt(-2.0F * std::log(radius_draw));
    const float angle = 2.0F * std::numbers::pi_v<float> * angle_draw;
    result[2 * pair] = radius * std::cos(angle);
    result[2 * pair + 1] = radius * std::sin(angle);
  }
  return result;
}

// Returns four numbers in [-1, 1) of one Philox block.
std::array<float, 4> uniforms(uint64_t seed, uint64_t tensor, uint64_t block) {
  const std::array<uint32_t, 4> bits = base::philox(seed, tensor, block);
  std::array<float, 4> result;
  for (int i = 0; i < 4; ++i) result[i] = static_cast<float>(bits[i] >> 8) * 0x1.0p-23F - 1.0F;
  return result;
}

using Draws = std::array<float, 4> (*)(uint64_t seed, uint64_t tensor, uint64_t block);

// Draws the random numbers of one packed tensor. Each is a function of its place in the tensor of the whole model.
struct Stream {
  Draws draws_of;
  float scale;
  uint64_t seed, number;

  template <typename Element>
  void draw(int64_t index, int64_t count, Element* out) const {
    int64_t lane = index % 4;
    for (int64_t block = index / 4, i = 0; i < count; ++block, lane = 0) {
      const std::array<float, 4> draws = draws_of(seed, number, static_cast<uint64_t>(block));
      for (; lane < 4 && i < count; ++lane, ++i) out[i] = static_cast<Element>(scale * draws[lane]);
    }
  }
};

// Draws elements of a box from `first` on, in host memory.
template <typename Element>
void draw_piece(const at::Tensor& piece, const Box& box, int64_t first, const Stream& stream,
                device::ThreadPool& threads) {
  Element* data = piece.data_ptr<Element>();
  constexpr int64_t kChunkElements = 16384;
  threads.for_pieces(piece.numel(), kChunkElements, [&](int64_t begin, int64_t count) {
    for_each_run(box, first + begin, count,
                 [&](const Run& run) { stream.draw(run.index, run.count, data + run.element - first); });
  });
}

// Holds the resources of one drawing: the threads that draw, and a buffer.
struct Drawing {
  explicit Drawing(int num_threads) : threads(num_threads) {}
  device::ThreadPool threads;
  Staging staging{threads};
};

void draw_box(const at::Tensor& target, const Box& box, const Stream& stream, Drawing& drawing) {
  drawing.staging.fill(target, target.scalar_type(), [&](const at::Tensor& piece, int64_t first) {
    if (piece.scalar_type() == at::kFloat) {
      draw_piece<float>(piece, box, first, stream, drawing.threads);
    } else {
      draw_piece<at::BFloat16>(piece, box, first, stream, drawing.threads);
    }
  });
}

void draw_tensor(const WeightStore& store, const PackedTensor& packed, const Stream& stream, Drawing& drawing) {
  if (packed.is_whole()) {
    const int64_t elements = packed.num_elements();
    draw_box(store.tensor(packed.name), {.num_rows = 1, .num_columns = elements, .whole_columns = elements}, stream,
             drawing);
    return;
  }
  int64_t row_begin = 0;  // row of the slice in the whole packed tensor
  for (const Slice& slice : packed.slices) {
    Box box = box_of(slice);
    box.row_begin += row_begin;
    draw_box(store.slice(packed, slice), box, stream, drawing);
    row_begin += slice.hf_shape().front();
  }
}

// Draws the numbers that a bfloat16 store would hold, and quantises them.
void draw_quantised(const WeightStore& store, const PackedTensor& packed, const Stream& stream, Drawing& drawing) {
  for (const Slice& slice : packed.slices) {
    const Box box{.row_begin = slice.row_begin,
                  .num_rows = slice.shape[0],
                  .num_columns = slice.shape[1],
                  .whole_columns = slice.shape[1]};
    const auto draw = [&](const at::Tensor& piece, int64_t first) {
      draw_piece<at::BFloat16>(piece, box, first, stream, drawing.threads);
    };
    quantise_part(store.quantised(packed.name), slice.row_begin, slice.hf_name, drawing.threads,
                  [&](QuantisedWriter& writer) {
                    drawing.staging.stream(box.num_elements(), at::kBFloat16, draw,
                                           [&](std::span<const float> weights) { writer.add(weights); });
                  });
  }
}

// Returns the columns of the packed tensor of the whole model.
int64_t num_columns(const PackedTensor& packed) {
  return packed.is_whole() ? packed.shape.back() : packed.slices.front().hf_shape().back();
}

}  // namespace

void initialize_random(WeightStore& store, double initializer_range, uint64_t seed, uint64_t first_stream,
                       int num_threads) {
  if (!store.has_storage()) store.allocate();
  Drawing drawing(num_threads);
  uint64_t stream = first_stream;
  for (const PackedTensor& packed : store.layout().tensors) {
    const at::Tensor& tensor = store.tensor(packed.name);
    switch (packed.init) {
      case Init::kNormal: {
        const Stream numbers = {normals, static_cast<float>(initializer_range), seed, stream};
        packed.is_quantised() ? draw_quantised(store, packed, numbers, drawing)
                              : draw_tensor(store, packed, numbers, drawing);
        break;
      }
      case Init::kUniform: {
        const double bound = 1.0 / std::sqrt(static_cast<double>(num_columns(packed)));
        draw_tensor(store, packed, {uniforms, static_cast<float>(bound), seed, stream}, drawing);
        break;
      }
      case Init::kOnes: tensor.fill_(1); break;
      case Init::kZeros: tensor.fill_(0); break;
    }
    ++stream;
  }
}

}  // namespace tandem::weights
