// Cuts a product: rows into blocks of the micro kernel, columns into panels, k into chunks. The cut cannot change the
// result, since each element of C is one running sum over k (kernels.h).
#include "device/cpu/gemm.h"

#include <algorithm>

namespace tandem::device::cpu {

namespace {

constexpr int64_t kStrip = 32;                        // columns of one few_rows call
constexpr int64_t kSpare = 16;                        // packing may write one vector past an entry
constexpr int64_t kPackedAFloats = int64_t{4} << 20;  // 16 MiB of packed rows at a time
constexpr int64_t kMaxStrips = 4;                     // strips of one task
constexpr int64_t kMaxStep = 32;                      // most rows of one few_rows call, in any kernels
constexpr int64_t kMaxPanels = 4;   // panels packed together, so that a k-major B is read in longer pieces
constexpr int64_t kPackBlocks = 8;  // blocks of A packed together, for the same reason

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

GemmRunner::GemmRunner(const KernelTable& table, ThreadPool& threads)
    : table_(table), threads_(threads), thread_scratch_(static_cast<size_t>(threads.num_threads())) {}

void GemmRunner::run(const GemmProblem& p) {
  if (p.m == 0 || p.n == 0) return;
  const bool bf16 = p.a.elem == Elem::kBF16 && p.b.elem == Elem::kBF16;
  const GemmKernels& kernels = bf16 ? table_.gemm_bf16 : table_.gemm;
  // A few rows use the weights as they come from memory; more rows are worth packing them for.
  if (p.m <= kernels.max_few_rows && !p.b.k_major && p.k % 32 == 0) {
    run_few_rows(p, kernels);
  } else {
    run_blocked(p, kernels);
  }
}

void GemmRunner::run_few_rows(const GemmProblem& p, const GemmKernels& kernels) {
  const int64_t step = kernels.few_rows_step, group_floats = p.k * step + kSpare;
  packed_a_.resize(std::max<size_t>(packed_a_.size(), static_cast<size_t>(divide_up(p.m, step) * group_floats)));
  threads_.for_each(divide_up(p.m, step), 1, [&](int64_t group) {
    kernels.pack_few_rows(p.a, group * step, std::min(step, p.m - group * step), p.k,
                          packed_a_.data() + group * group_floats);
  });
  // Columns go in strips; neighbouring strips pass over the packed rows together, which come from the second-level
  // cache or beyond and serve all of them.
  const int64_t strips = divide_up(p.n, kStrip);
  const int64_t per_task = std::clamp<int64_t>(strips / (threads_.num_threads() * 4), 1, kMaxStrips),
                tasks = divide_up(strips, per_task);
  const int64_t c_bytes = p.c_elem == Elem::kF32 ? 4 : 2;
  // Below about 64k products a thread's wake-up costs more than its share.
  const bool small = p.n * p.k < 65536;
  threads_.for_each(tasks, small ? tasks : 1, [&](int64_t task) {
    alignas(64) float c[kMaxStep * kStrip];
    if (kernels.prepare != nullptr) kernels.prepare();
    for (int64_t m0 = 0; m0 < p.m; m0 += step) {
      const int64_t rows = std::min(step, p.m - m0);
      for (int64_t strip = task * per_task; strip < std::min(strips, (task + 1) * per_task); ++strip) {
        const int64_t n0 = strip * kStrip;
        kernels.few_rows(rows, p.k, packed_a_.data() + m0 / step * group_floats, p.b, n0, p.n, m0 == 0, c);
        for (int64_t r = 0; r < rows; ++r)
          kernels.store(c + r * kStrip, std::min(kStrip, p.n - n0),
                        static_cast<char*>(p.c) + ((m0 + r) * p.c_stride + n0) * c_bytes, p.c_elem, p.accumulate);
      }
    }
  });
}

void GemmRunner::run_blocked(const GemmProblem& p, const GemmKernels& kernels) {
  const int64_t superblock = std::max<int64_t>(kPackedAFloats / std::max<int64_t>(p.k, 1), 16 * kernels.micro_rows);
  for (int64_t row0 = 0; row0 < p.m; row0 += superblock) {
    Cut cut{};
    cut.row0 = row0;
    cut.rows = std::min(superblock, p.m - row0);
    cut.blocks = divide_up(cut.rows, kernels.micro_rows);
    cut.chunks = std::max<int64_t>(1, divide_up(p.k, kernels.chunk));
    cut.chunk = divide_up(divide_up(p.k, cut.chunks), 32) * 32;  // whole tiles, and pairs never straddle
    cut.chunks = std::max<int64_t>(1, divide_up(p.k, cut.chunk));
    cut.k = p.k;
    cut.row_unit = kernels.row_unit;
    cut.block_floats = kernels.micro_rows * divide_up(p.k, 32) * 32 + kSpare * (cut.chunks + 1);
    pack_rows(p, kernels, cut);
    multiply(p, kernels, cut);
  }
}

void GemmRunner::pack_rows(const GemmProblem& p, const GemmKernels& kernels, const Cut& cut) {
  packed_a_.resize(std::max<size_t>(packed_a_.size(), static_cast<size_t>(cut.blocks * cut.block_floats)));
  const int64_t groups = divide_up(cut.blocks, kPackBlocks);
  const int64_t serial = cut.rows * p.k < 65536 ? groups * cut.chunks : 1;
  threads_.for_each(groups * cut.chunks, serial, [&](int64_t item) {
    const int64_t group = item / cut.chunks, c = item % cut.chunks;
    PackedBlock blocks[kPackBlocks];
    const int64_t first = group * kPackBlocks, n = std::min(kPackBlocks, cut.blocks - first);
    for (int64_t i = 0; i < n; ++i)
      blocks[i] = {cut.row0 + cut.first_row(first + i), cut.rows_of(first + i),
                   packed_a_.data() + cut.offset(first + i, c)};
    kernels.pack_a(p.a, blocks, n, p.m, cut.k0(c), cut.length(c));
  });
}

void GemmRunner::multiply(const GemmProblem& p, const GemmKernels& kernels, const Cut& cut) {
  const int64_t panel = kernels.panel, panels = divide_up(p.n, panel);
  const int64_t c_bytes = p.c_elem == Elem::kF32 ? 4 : 2;
  const int64_t blocks_per_task = kernels.task_blocks;
  const int64_t row_tasks = divide_up(cut.blocks, blocks_per_task);
  const int64_t panels_per_task = std::clamp<int64_t>(row_tasks * panels / (threads_.num_threads() * 4), 1, kMaxPanels);
  const int64_t column_tasks = divide_up(panels, panels_per_task);
  const int64_t panel_floats = cut.chunk * panel;
  const bool small = cut.rows * p.n * p.k < 65536;
  threads_.for_each(row_tasks * column_tasks, small ? row_tasks * column_tasks : 1, [&](int64_t task, int thread) {
    if (kernels.prepare != nullptr) kernels.prepare();
    ThreadScratch& scratch = thread_scratch_[static_cast<size_t>(thread)];
    const int64_t panel0 = task % column_tasks * panels_per_task, panel1 = std::min(panel0 + panels_per_task, panels);
    const int64_t block0 = task / column_tasks * blocks_per_task,
                  block1 = std::min(block0 + blocks_per_task, cut.blocks);
    const int64_t first = cut.first_row(block0), rows = cut.first_row(block1) - first;
    scratch.b.resize(std::max<size_t>(scratch.b.size(), static_cast<size_t>(kMaxPanels * panel_floats + kSpare)));
    scratch.c.resize(std::max<size_t>(scratch.c.size(), static_cast<size_t>(kMaxPanels * rows * panel)));
    // Float results grow in place; others, and a last panel that sticks out, grow in scratch.
    const auto in_place = [&](int64_t i) { return p.c_elem == Elem::kF32 && (i + 1) * panel <= p.n; };
    const auto sum_of = [&](int64_t i) {
      return in_place(i) ? static_cast<float*>(p.c) + (cut.row0 + first) * p.c_stride + i * panel
                         : scratch.c.data() + (i - panel0) * rows * panel;
    };
    for (int64_t c = 0; c < cut.chunks; ++c) {
      kernels.pack_b(p.b, panel0 * panel, panel1 - panel0, p.n, cut.k0(c), cut.length(c), scratch.b.data(),
                     panel_floats);
      for (int64_t i = panel0; i < panel1; ++i) {
        const bool from_zero = c == 0 && !(in_place(i) && p.accumulate);
        const int64_t stride = in_place(i) ? p.c_stride : panel;
        for (int64_t block = block0; block < block1; ++block)
          kernels.micro(cut.rows_of(block), cut.length(c), packed_a_.data() + cut.offset(block, c),
                        scratch.b.data() + (i - panel0) * panel_floats,
                        sum_of(i) + (cut.first_row(block) - first) * stride, stride, from_zero);
      }
    }
    for (int64_t i = panel0; i < panel1; ++i) {
      for (int64_t r = 0; r < rows && !in_place(i); ++r)
        kernels.store(sum_of(i) + r * panel, std::min(panel, p.n - i * panel),
                      static_cast<char*>(p.c) + ((cut.row0 + first + r) * p.c_stride + i * panel) * c_bytes, p.c_elem,
                      p.accumulate);
    }
  });
}

}  // namespace tandem::device::cpu
