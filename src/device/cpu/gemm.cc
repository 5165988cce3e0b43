// Cuts products: rows into blocks of the micro kernel, columns into panels, k into chunks. The cut cannot change the
// result, since each element of C is one running sum over k (kernels.h).
#include "device/cpu/gemm.h"

#include <algorithm>

namespace tandem::device::cpu {

namespace {

constexpr int64_t kStrip = 32;                        // columns of one few_rows call
constexpr int64_t kSpare = 16;                        // packing may write one vector past an entry
constexpr int64_t kPackedAFloats = int64_t{4} << 20;  // 16 MiB of packed rows at a time
constexpr int64_t kMaxStep = 32;                      // most rows of one few_rows call, in any kernels
constexpr int64_t kMaxColumns = 4;                    // strips or panels of one task
constexpr int64_t kPackBlocks = 8;                    // blocks of A packed together, so that a k-major A is read along
constexpr int64_t kSerialProducts = 65536;            // below these a thread's wake-up costs more than its share

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t bytes_of(Elem elem) { return elem == Elem::kF32 ? 4 : 2; }

// Returns the address of an element of C.
char* element_of(const GemmProblem& p, int64_t row, int64_t column) {
  return static_cast<char*>(p.c) + (row * p.c_stride + column) * bytes_of(p.c_elem);
}

// Returns the product of rows [row, row + count) of A.
GemmProblem rows_of(GemmProblem p, int64_t row, int64_t count) {
  if (p.a.index != nullptr && !p.a.k_major) {
    p.a.index += row;
  } else {
    p.a.data = static_cast<const char*>(p.a.data) + row * (p.a.k_major ? 1 : p.a.stride) * bytes_of(p.a.elem);
  }
  p.c = element_of(p, row, 0);
  p.m = count;
  return p;
}

// Returns the packed size of the rows of one few_rows call.
int64_t few_rows_floats(const GemmProblem& p, const GemmKernels& kernels) {
  return p.k * kernels.few_rows_step + kSpare;
}

}  // namespace

GemmRunner::GemmRunner(const KernelTable& table, ThreadPool& threads)
    : table_(table), threads_(threads), thread_scratch_(static_cast<size_t>(threads.num_threads())) {}

void GemmRunner::run_groups(std::span<const GemmProblem> problems) {
  for (const GemmProblem& p : problems) {
    if (p.m == 0 || p.n == 0) continue;
    const bool bf16 = p.a.elem == Elem::kBF16 && p.b.elem == Elem::kBF16;
    const GemmKernels& kernels = bf16 ? table_.gemm_bf16 : table_.gemm;
    // Rows that do not fit in the buffer are packed part after part.
    const int64_t most_rows = std::max<int64_t>(kPackedAFloats / std::max<int64_t>(p.k, 1), 16 * kernels.micro_rows);
    for (int64_t row = 0; row < p.m; row += most_rows)
      add(piece_of(rows_of(p, row, std::min(most_rows, p.m - row)), kernels));
  }
  run_pieces();
}

GemmRunner::Piece GemmRunner::piece_of(const GemmProblem& p, const GemmKernels& kernels) const {
  Piece piece{};
  piece.p = p;
  piece.kernels = &kernels;
  // A few rows use the weights as they come from memory; more rows are worth packing them for.
  piece.has_few_rows = p.m <= kernels.max_few_rows && !p.b.k_major && p.k % 32 == 0;
  if (piece.has_few_rows) {
    piece.num_items = divide_up(p.m, kernels.few_rows_step);
    piece.packed_floats = piece.num_items * few_rows_floats(p, kernels);
    piece.row_tasks = 1;
    piece.columns = divide_up(p.n, kStrip);
    return piece;
  }
  Cut& cut = piece.cut;
  cut.rows = p.m;
  cut.blocks = divide_up(cut.rows, kernels.micro_rows);
  cut.chunks = std::max<int64_t>(1, divide_up(p.k, kernels.chunk));
  cut.chunk = divide_up(divide_up(p.k, cut.chunks), 32) * 32;  // whole tiles, and pairs never straddle
  cut.chunks = std::max<int64_t>(1, divide_up(p.k, cut.chunk));
  cut.k = p.k;
  cut.row_unit = kernels.row_unit;
  cut.block_floats = kernels.micro_rows * divide_up(p.k, 32) * 32 + kSpare * (cut.chunks + 1);
  piece.num_items = divide_up(cut.blocks, kPackBlocks) * cut.chunks;
  piece.packed_floats = cut.blocks * cut.block_floats;
  piece.row_tasks = divide_up(cut.blocks, kernels.task_blocks);
  piece.columns = divide_up(p.n, kernels.panel);
  return piece;
}

void GemmRunner::add(const Piece& piece) {
  int64_t first_float = pieces_.empty() ? 0 : pieces_.back().first_float + pieces_.back().packed_floats;
  if (first_float + piece.packed_floats > kPackedAFloats) {
    run_pieces();
    first_float = 0;
  }
  pieces_.push_back(piece);
  pieces_.back().first_float = first_float;
}

void GemmRunner::run_pieces() {
  if (pieces_.empty()) return;
  int64_t num_items = 0, num_tasks = 0, num_columns = 0, packed = 0, products = 0;
  for (Piece& piece : pieces_) {
    piece.first_item = num_items;
    num_items += piece.num_items;
    num_columns += piece.row_tasks * piece.columns;
    packed += piece.p.m * piece.p.k;
    products += (piece.has_few_rows ? 1 : piece.p.m) * piece.p.n * piece.p.k;
  }
  // Neighbouring strips pass over the packed rows together, which come from the second-level cache or beyond and serve
  // all of them. Neighbouring panels are packed together, so that a k-major B is read in longer pieces.
  const int64_t share = num_columns / (threads_.num_threads() * 4);
  for (Piece& piece : pieces_) {
    piece.columns_per_task = std::clamp<int64_t>(share, 1, kMaxColumns);
    piece.first_task = num_tasks;
    num_tasks += piece.row_tasks * piece.column_tasks();
  }
  const auto piece_at = [this](int64_t Piece::*first, int64_t index) -> const Piece& {
    return *(std::ranges::upper_bound(pieces_, index, {}, first) - 1);
  };
  packed_a_.resize(
      std::max(packed_a_.size(), static_cast<size_t>(pieces_.back().first_float + pieces_.back().packed_floats)));
  threads_.for_each(num_items, packed < kSerialProducts ? num_items : 1, [&](int64_t item) {
    const Piece& piece = piece_at(&Piece::first_item, item);
    pack(piece, item - piece.first_item);
  });
  threads_.for_each(num_tasks, products < kSerialProducts ? num_tasks : 1, [&](int64_t task, int thread) {
    const Piece& piece = piece_at(&Piece::first_task, task);
    if (piece.kernels->prepare != nullptr) piece.kernels->prepare();
    ThreadScratch& scratch = thread_scratch_[static_cast<size_t>(thread)];
    if (piece.has_few_rows) {
      multiply_few_rows(piece, task - piece.first_task, scratch);
    } else {
      multiply(piece, task - piece.first_task, scratch);
    }
  });
  pieces_.clear();
}

void GemmRunner::pack(const Piece& piece, int64_t item) {
  const GemmProblem& p = piece.p;
  const GemmKernels& kernels = *piece.kernels;
  float* const packed = packed_a_.data() + piece.first_float;
  if (piece.has_few_rows) {
    const int64_t row = item * kernels.few_rows_step;
    kernels.pack_few_rows(p.a, row, std::min(kernels.few_rows_step, p.m - row), p.k,
                          packed + item * few_rows_floats(p, kernels));
    return;
  }
  const Cut& cut = piece.cut;
  const int64_t c = item % cut.chunks, first = item / cut.chunks * kPackBlocks;
  const int64_t num_blocks = std::min(kPackBlocks, cut.blocks - first);
  PackedBlock blocks[kPackBlocks];
  for (int64_t i = 0; i < num_blocks; ++i)
    blocks[i] = {cut.first_row(first + i), cut.rows_of(first + i), packed + cut.offset(first + i, c)};
  kernels.pack_a(p.a, blocks, num_blocks, p.m, cut.k0(c), cut.length(c));
}

Matrix GemmRunner::dequantised(const GemmProblem& p, int64_t row, int64_t num_rows, int64_t column, int64_t num_columns,
                               ThreadScratch& scratch) const {
  std::vector<uint16_t>& weights = scratch.weights;
  weights.resize(std::max(weights.size(), static_cast<size_t>(num_rows * num_columns)));
  uint16_t* out = weights.data();
  row += p.quantised->first_row;
  for (const QuantisedPart& part : std::span(p.quantised->parts, static_cast<size_t>(p.quantised->num_parts))) {
    const int64_t begin = std::max(row, part.row_begin), end = std::min(row + num_rows, part.row_begin + part.num_rows);
    if (begin >= end) continue;
    table_.dequantise(quantised_bytes(part, p.quantised->data), begin - part.row_begin, end - begin, column,
                      num_columns, out);
    out += (end - begin) * num_columns;
  }
  return {.data = weights.data(), .elem = Elem::kBF16, .stride = num_columns, .k_major = p.b.k_major};
}

void GemmRunner::multiply_few_rows(const Piece& piece, int64_t task, ThreadScratch& scratch) {
  const GemmProblem& p = piece.p;
  const GemmKernels& kernels = *piece.kernels;
  const int64_t step = kernels.few_rows_step, first = task * piece.columns_per_task;
  const int64_t last = std::min(piece.columns, first + piece.columns_per_task);
  const float* packed = packed_a_.data() + piece.first_float;
  alignas(64) float c[kMaxStep * kStrip];
  if (p.quantised != nullptr) {
    // A strip serves all rows, and is then in the cache no more.
    for (int64_t strip = first; strip < last; ++strip) {
      const int64_t n0 = strip * kStrip, columns = std::min(kStrip, p.n - n0);
      const Matrix weights = dequantised(p, n0, columns, 0, p.k, scratch);
      for (int64_t m0 = 0; m0 < p.m; m0 += step) {
        const int64_t rows = std::min(step, p.m - m0);
        kernels.few_rows(rows, p.k, packed + m0 / step * few_rows_floats(p, kernels), weights, 0, columns,
                         /*first=*/false, c);
        for (int64_t r = 0; r < rows; ++r)
          kernels.store(c + r * kStrip, columns, element_of(p, m0 + r, n0), p.c_elem, p.accumulate);
      }
    }
    return;
  }
  for (int64_t m0 = 0; m0 < p.m; m0 += step, packed += few_rows_floats(p, kernels)) {
    const int64_t rows = std::min(step, p.m - m0);
    for (int64_t strip = first; strip < last; ++strip) {
      const int64_t n0 = strip * kStrip;
      kernels.few_rows(rows, p.k, packed, p.b, n0, p.n, m0 == 0, c);
      for (int64_t r = 0; r < rows; ++r)
        kernels.store(c + r * kStrip, std::min(kStrip, p.n - n0), element_of(p, m0 + r, n0), p.c_elem, p.accumulate);
    }
  }
}

void GemmRunner::multiply(const Piece& piece, int64_t task, ThreadScratch& scratch) {
  const GemmProblem& p = piece.p;
  const GemmKernels& kernels = *piece.kernels;
  const Cut& cut = piece.cut;
  const float* const packed = packed_a_.data() + piece.first_float;
  const int64_t panel = kernels.panel, panel_floats = cut.chunk * panel;
  const int64_t panel0 = task % piece.column_tasks() * piece.columns_per_task;
  const int64_t panel1 = std::min(panel0 + piece.columns_per_task, piece.columns);
  const int64_t block0 = task / piece.column_tasks() * kernels.task_blocks;
  const int64_t block1 = std::min(block0 + kernels.task_blocks, cut.blocks);
  const int64_t first = cut.first_row(block0), rows = cut.first_row(block1) - first;
  scratch.b.resize(std::max<size_t>(scratch.b.size(), static_cast<size_t>(kMaxColumns * panel_floats + kSpare)));
  scratch.c.resize(std::max<size_t>(scratch.c.size(), static_cast<size_t>(kMaxColumns * rows * panel)));
  // Float results grow in place; others, and a last panel that sticks out, grow in scratch.
  const auto in_place = [&](int64_t i) { return p.c_elem == Elem::kF32 && (i + 1) * panel <= p.n; };
  const auto sum_of = [&](int64_t i) {
    return in_place(i) ? static_cast<float*>(p.c) + first * p.c_stride + i * panel
                       : scratch.c.data() + (i - panel0) * rows * panel;
  };
  for (int64_t c = 0; c < cut.chunks; ++c) {
    // The next chunk of these panels is packed next, or the first chunk of the panels after them.
    const int64_t next = c + 1 < cut.chunks ? cut.chunk : (panel1 - panel0) * panel * p.b.stride - cut.k0(c);
    if (p.quantised == nullptr) {
      kernels.pack_b(p.b, panel0 * panel, panel1 - panel0, p.n, cut.k0(c), cut.length(c), next, scratch.b.data(),
                     panel_floats);
    } else {
      const int64_t columns = std::min(panel1 * panel, p.n) - panel0 * panel, k0 = cut.k0(c), length = cut.length(c);
      const Matrix weights = p.b.k_major ? dequantised(p, k0, length, panel0 * panel, columns, scratch)
                                         : dequantised(p, panel0 * panel, columns, k0, length, scratch);
      kernels.pack_b(weights, 0, panel1 - panel0, columns, 0, length, /*next=*/0, scratch.b.data(), panel_floats);
    }
    for (int64_t i = panel0; i < panel1; ++i) {
      const bool from_zero = c == 0 && !(in_place(i) && p.accumulate);
      const int64_t stride = in_place(i) ? p.c_stride : panel;
      for (int64_t block = block0; block < block1; ++block)
        kernels.micro(cut.rows_of(block), cut.length(c), packed + cut.offset(block, c),
                      scratch.b.data() + (i - panel0) * panel_floats,
                      sum_of(i) + (cut.first_row(block) - first) * stride, stride, from_zero);
    }
  }
  for (int64_t i = panel0; i < panel1; ++i) {
    for (int64_t r = 0; r < rows && !in_place(i); ++r)
      kernels.store(sum_of(i) + r * panel, std::min(panel, p.n - i * panel), element_of(p, first + r, i * panel),
                    p.c_elem, p.accumulate);
  }
}

}  // namespace tandem::device::cpu
