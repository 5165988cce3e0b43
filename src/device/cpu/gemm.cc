// How a product is cut: rows into blocks of the micro kernel, columns into panels, k into chunks. None of it can show in
// the result, since each element of C is one running sum over k (kernels.h).
#include "device/cpu/gemm.h"

#include <omp.h>

#include <algorithm>

#include "device/cpu/parallel.h"

namespace tandem::device::cpu {

namespace {

constexpr int64_t kFewRows = 4;         // up to here weights are used as they come from memory, unpacked
constexpr int64_t kStrip = 32;          // columns of one few_rows call
constexpr int64_t kSpare = 16;          // packing may write one vector past an entry
constexpr int64_t kPackedAFloats = int64_t{4} << 20;   // 16 MiB of packed rows at a time
constexpr int64_t kTaskAFloats = int64_t{96} << 10;    // a task's rows stay in the second-level cache
constexpr int64_t kChunk = 1024;        // k entries of a packed panel: 128 KiB at 32 columns
constexpr int64_t kChunkFewBlocks = 256;  // with few rows to reuse it, a panel stays in the first-level cache

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One superblock of rows, cut.
struct Cut {
  int64_t row0, rows;        // of the problem
  int64_t blocks;            // micro-kernel blocks, of nearly equal height
  int64_t chunk, chunks;     // of k
  int64_t block_floats;      // packed size of one block
  int64_t first_row(int64_t block) const { return rows * block / blocks; }
  int64_t rows_of(int64_t block) const { return first_row(block + 1) - first_row(block); }
  int64_t k0(int64_t c) const { return c * chunk; }
};

}  // namespace

GemmRunner::GemmRunner(const GemmKernels& kernels, int num_threads)
    : kernels_(kernels), num_threads_(num_threads), thread_scratch_(static_cast<size_t>(num_threads)) {}

void GemmRunner::run(const GemmProblem& p) {
  if (p.m == 0 || p.n == 0) return;
  const bool pairs = kernels_.native_bf16 && p.a.elem == Elem::kBF16 && p.b.elem == Elem::kBF16;
  if (p.m <= kFewRows && !p.b.k_major && p.k % 32 == 0) {
    run_few_rows(p, pairs);
  } else {
    run_blocked(p, pairs);
  }
}

void GemmRunner::run_few_rows(const GemmProblem& p, bool pairs) {
  packed_a_.resize(std::max<size_t>(packed_a_.size(), static_cast<size_t>(p.k * p.m + kSpare)));
  kernels_.pack_a(p.a, pairs, 0, p.m, p.m, 0, p.k, packed_a_.data());
  const int64_t strips = divide_up(p.n, kStrip);
  const int64_t c_bytes = p.c_elem == Elem::kF32 ? 4 : 2;
  // Below about 64k products a thread's wake-up costs more than its share.
  const int64_t chunk = p.n * p.k < 65536 ? strips : std::max<int64_t>(1, strips / (num_threads_ * 8));
  parallel_for(num_threads_, strips, chunk, [&](int64_t strip) {
    alignas(64) float c[kFewRows * kStrip];
    const int64_t n0 = strip * kStrip;
    kernels_.few_rows(p.m, pairs, p.k, packed_a_.data(), p.b, n0, p.n, c);
    for (int64_t r = 0; r < p.m; ++r)
      kernels_.store(c + r * kStrip, std::min(kStrip, p.n - n0),
                     static_cast<char*>(p.c) + (r * p.c_stride + n0) * c_bytes, p.c_elem, p.accumulate);
  });
}

void GemmRunner::run_blocked(const GemmProblem& p, bool pairs) {
  const int64_t height = kernels_.micro_rows, panel = kernels_.panel;
  const int64_t c_bytes = p.c_elem == Elem::kF32 ? 4 : 2;
  const int64_t limit = p.m <= 2 * height ? kChunkFewBlocks : kChunk;
  const int64_t superblock = std::max<int64_t>(kPackedAFloats / std::max<int64_t>(p.k, 1), 16 * height);
  for (int64_t row0 = 0; row0 < p.m; row0 += superblock) {
    Cut cut{};
    cut.row0 = row0;
    cut.rows = std::min(superblock, p.m - row0);
    cut.blocks = divide_up(cut.rows, height);
    cut.chunks = std::max<int64_t>(1, divide_up(p.k, limit));
    cut.chunk = divide_up(divide_up(p.k, cut.chunks), 32) * 32;  // whole tiles, and pairs never straddle
    cut.chunks = std::max<int64_t>(1, divide_up(p.k, cut.chunk));
    cut.block_floats = height * p.k + kSpare * (cut.chunks + 1);

    packed_a_.resize(std::max<size_t>(packed_a_.size(), static_cast<size_t>(cut.blocks * cut.block_floats)));
    const auto packed_at = [&](int64_t block, int64_t c) {
      return packed_a_.data() + block * cut.block_floats + cut.k0(c) * cut.rows_of(block) + c * kSpare;
    };
    const auto chunk_length = [&](int64_t c) { return std::min(cut.chunk, p.k - cut.k0(c)); };
    parallel_for(num_threads_, cut.blocks, std::max<int64_t>(1, 16384 / (height * p.k + 1)), [&](int64_t block) {
      for (int64_t c = 0; c < cut.chunks; ++c)
        kernels_.pack_a(p.a, pairs, row0 + cut.first_row(block), cut.rows_of(block), p.m, cut.k0(c), chunk_length(c),
                        packed_at(block, c));
    });

    const int64_t blocks_per_task =
        std::clamp<int64_t>(kTaskAFloats / std::max<int64_t>(height * p.k, 1), 4, std::max<int64_t>(cut.blocks, 4));
    const int64_t row_tasks = divide_up(cut.blocks, blocks_per_task);
    const int64_t panels = divide_up(p.n, panel);
    const bool small = cut.rows * p.n * p.k < 65536;
    parallel_for(num_threads_, row_tasks * panels, small ? row_tasks * panels : 1, [&](int64_t task) {
      ThreadScratch& scratch = thread_scratch_[static_cast<size_t>(omp_get_thread_num())];
      const int64_t block0 = task / panels * blocks_per_task, n0 = task % panels * panel;
      const int64_t block1 = std::min(block0 + blocks_per_task, cut.blocks);
      const int64_t first = cut.first_row(block0), rows = cut.first_row(block1) - first;
      scratch.b.resize(std::max<size_t>(scratch.b.size(), static_cast<size_t>(cut.chunk * panel + kSpare)));
      scratch.c.resize(std::max<size_t>(scratch.c.size(), static_cast<size_t>(rows * panel)));
      std::fill_n(scratch.c.begin(), rows * panel, 0.0F);
      for (int64_t c = 0; c < cut.chunks; ++c) {
        kernels_.pack_b(p.b, pairs, n0, p.n, cut.k0(c), chunk_length(c), scratch.b.data());
        for (int64_t block = block0; block < block1; ++block)
          kernels_.micro(cut.rows_of(block), pairs, chunk_length(c), packed_at(block, c), scratch.b.data(),
                         scratch.c.data() + (cut.first_row(block) - first) * panel, panel);
      }
      for (int64_t r = 0; r < rows; ++r)
        kernels_.store(scratch.c.data() + r * panel, std::min(panel, p.n - n0),
                       static_cast<char*>(p.c) + ((row0 + first + r) * p.c_stride + n0) * c_bytes, p.c_elem,
                       p.accumulate);
    });
  }
}

}  // namespace tandem::device::cpu
