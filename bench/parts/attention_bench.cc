// Attention of one layer, bfloat16, on a GPU: how fast many rows are computed and their gradient, how long a decode
// step takes, and whether rows have the same bits however their sequence is cut. Sums of bits show whether two programs
// have the same results on one GPU. Run: attention_bench [cuda [HEADS KV_HEADS HEAD_DIM [WINDOW]]]; 32, 8, 128 and none
// if not given. It takes up to 12 GB of the GPU's memory.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>

#include "bench/parts/device_seconds.h"
#include "device/block.h"
#include "device/ops.h"
#include "device/registry.h"

namespace {

using at::Tensor;
using tandem::device::AttentionRows;
using tandem::device::kBlockTokens;
using tandem::device::Ops;

struct Heads {
  int64_t query = 32, kv = 8, dim = 128;
};

// Sequences of one length, whose keys and values lie in shuffled blocks.
struct Batch {
  int64_t count, length;
  Tensor q_THK, kv, table;  // q: a row for each token, sequence after sequence
};

class Bench {
 public:
  Bench(const Ops& ops, Heads heads, int64_t window) : ops_(ops), heads_(heads), window_(window) {}

  void run() const {
    fmt::print(
        "{}: {} query heads over {} of {}, window {}\n\n{:>14} | {:>9} {:>9} | {:>9} {:>9}  ms and TFLOP/s of keys "
        "that rows see: forward, gradient | sums of bits of the result and of dq, dk and dv\n",
        ops_.name(), heads_.query, heads_.kv, heads_.dim, window_, "sequences", "", "", "", "");
    constexpr std::array<std::array<int64_t, 2>, 7> kMany = {
        {{16, 1024}, {32, 2048}, {4, 4096}, {2, 8192}, {1, 16384}, {4, 16384}, {1, 32768}}};
    for (const auto& [count, length] : kMany) many_rows(count, length);
    fmt::print("\n{:>14} | us of a recorded step: a row of each sequence, its keys in memory\n", "sequences");
    constexpr std::array<std::array<int64_t, 2>, 12> kDecode = {{{1, 512},
                                                                 {1, 1024},
                                                                 {4, 1024},
                                                                 {8, 1024},
                                                                 {16, 1024},
                                                                 {32, 768},
                                                                 {256, 768},
                                                                 {1, 16384},
                                                                 {4, 16384},
                                                                 {8, 8192},
                                                                 {16, 8192},
                                                                 {64, 4096}}};
    for (const auto& [count, length] : kDecode) decode(count, length);
    fmt::print("\n");
    for (const int64_t length : {300, 2100, 9000}) compare(length);
  }

 private:
  at::TensorOptions ints() const { return at::TensorOptions(at::kInt); }
  at::TensorOptions numbers() const { return at::TensorOptions(at::kBFloat16).device(ops_.device()); }

  Batch draw(int64_t count, int64_t length) const {
    const int64_t blocks = (length + kBlockTokens - 1) / kBlockTokens;
    return {.count = count,
            .length = length,
            .q_THK = at::randn({count * length, heads_.query, heads_.dim}, numbers()),
            .kv = at::randn({count * blocks, 2, heads_.kv, heads_.dim * kBlockTokens}, numbers()),
            .table = at::randperm(count * blocks, at::TensorOptions(at::kLong)).to(at::kInt).view({count, blocks})};
  }
  // Returns rows at positions [begin, end) of each sequence.
  AttentionRows rows_of(const Batch& batch, int64_t begin, int64_t end) const {
    AttentionRows rows;
    rows.sequence_of_row = at::arange(batch.count, ints()).repeat_interleave(end - begin);
    rows.row_position = at::arange(begin, end, ints()).repeat({batch.count});
    rows.block_table = batch.table;
    rows.window = window_;
    return rows;
  }
  // Returns the same of whole sequences, with the fields for the backward pass.
  AttentionRows differentiable(const Batch& batch) const {
    AttentionRows rows = rows_of(batch, 0, batch.length);
    rows.group_offsets = at::arange(0, batch.count + 1, ints()) * static_cast<int32_t>(batch.length);
    rows.kv_tokens = at::arange(batch.count * batch.length, ints());
    const Tensor places = batch.table.unsqueeze(-1) * kBlockTokens + at::arange(kBlockTokens, ints());
    rows.kv_slots = places.view({batch.count, -1}).narrow(1, 0, batch.length).to(at::kInt).contiguous().view({-1});
    return rows;
  }

  template <typename Work>
  double seconds(int calls, const Work& work) const {
    return device_seconds(ops_, calls, work);
  }

  void many_rows(int64_t count, int64_t length) const {
    const Batch batch = draw(count, length);
    const AttentionRows rows = ops_.prepare(differentiable(batch));
    const Tensor lse_TH = at::empty({count * length, heads_.query}, numbers().dtype(at::kFloat));
    const double forward = seconds(4, [&] { return ops_.paged_attention(batch.q_THK, batch.kv, rows, lse_TH); });
    const Tensor out_THK = ops_.paged_attention(batch.q_THK, batch.kv, rows, lse_TH);
    const Tensor dout_THK = at::randn(out_THK.sizes(), out_THK.options());
    const auto gradient = [&] {
      return ops_.attention_backward(dout_THK, batch.q_THK, out_THK, lse_TH, batch.kv, rows);
    };
    const double backward = seconds(2, gradient);
    const Ops::AttentionGrad grad = gradient();
    // Two products forward and five backward, of each row with the keys that it sees.
    const int64_t seen = window_ > 0 ? std::min(window_, length) : length;
    const double product =
        static_cast<double>(count * heads_.query * heads_.dim * (2 * seen * length - seen * (seen - 1)));
    fmt::print("{:>5} x {:>6} | {:9.3f} {:9.0f} | {:9.3f} {:9.0f} | {} {} {} {}\n", count, length, forward * 1e3,
               2 * product / forward * 1e-12, backward * 1e3, 5 * product / backward * 1e-12, sum_of_bits(out_THK),
               sum_of_bits(grad.dq_THK), sum_of_bits(grad.dk_TGK), sum_of_bits(grad.dv_TGK));
  }

  // Returns the sum of bfloat16 numbers' bits, each by its place: equal in two programs whose numbers are.
  static int64_t sum_of_bits(const Tensor& x) {
    const Tensor bits = x.view(at::kShort).flatten();
    const Tensor places = at::arange(1, bits.size(0) + 1, bits.options().dtype(at::kLong)).remainder(1009);
    return (bits.to(at::kLong) * places).sum().item<int64_t>();
  }

  void decode(int64_t count, int64_t length) const {
    constexpr int kTurns = 16;
    const Batch batch = draw(count, length);
    AttentionRows rows = rows_of(batch, length - 1, length);
    rows.memory = at::empty({ops_.prepared_bytes(count, count, batch.table.size(1))}, numbers().dtype(at::kByte));
    rows = ops_.prepare(rows);
    const Tensor q_THK = batch.q_THK.narrow(0, 0, count);
    const auto work = [&] { return ops_.paged_attention(q_THK, batch.kv, rows, Tensor()); };
    work();
    const auto recording = ops_.record([&] {
      for (int turn = 0; turn < kTurns; ++turn) work();
    });
    fmt::print("{:>5} x {:>6} | {:9.2f}\n", count, length, seconds(4, [&] { recording->replay(); }) / kTurns * 1e6);
  }

  // Compares a whole sequence with the same in pieces: of one row, of few, and of many.
  void compare(int64_t length) const {
    const Batch batch = draw(2, length);
    const auto some = [&](int64_t begin, int64_t end) {
      const Tensor q_THK = batch.q_THK.view({2, length, heads_.query, heads_.dim})
                               .narrow(1, begin, end - begin)
                               .contiguous()
                               .view({-1, heads_.query, heads_.dim});
      return ops_.paged_attention(q_THK, batch.kv, rows_of(batch, begin, end), Tensor())
          .view({2, end - begin, heads_.query, heads_.dim});
    };
    const Tensor whole = some(0, length);
    for (const int64_t piece : {1, 5, 16, 64, 1000}) {
      int64_t compared = 0, different = 0;
      // Pieces of one row are many: every so many of them are asked.
      const int64_t step = std::max(piece, length / 200);
      for (int64_t begin = 0; begin < length; begin += step) {
        const int64_t end = std::min(begin + piece, length);
        const Tensor ne = some(begin, end).ne(whole.narrow(1, begin, end - begin));
        different += ne.sum().item<int64_t>();
        compared += ne.numel();
      }
      fmt::print("{} tokens in pieces of {}: {} of {} numbers differ\n", length, piece, different, compared);
    }
  }

  const Ops& ops_;
  const Heads heads_;
  const int64_t window_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::unique_ptr<Ops> ops =
      tandem::device::make_ops(tandem::device::parse_device(argc > 1 ? argv[1] : "cuda"), {});
  at::manual_seed(17);  // the same numbers in each run
  Heads heads;
  if (argc > 4) heads = {.query = std::stoll(argv[2]), .kv = std::stoll(argv[3]), .dim = std::stoll(argv[4])};
  Bench(*ops, heads, argc > 5 ? std::stoll(argv[5]) : 0).run();
  return 0;
}
