// Multiplies matrices on the CPU: blocking, packing and threads around the kernels of one instruction set.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/cpu/kernels.h"
#include "device/thread_pool.h"

namespace tandem::device::cpu {

// Computes C[M,N] (+)= sum_k A[m,k] B[n,k]; C rows are `c_stride` elements apart.
struct GemmProblem {
  int64_t m, n, k;
  Matrix a, b;
  void* c;
  Elem c_elem;
  int64_t c_stride;
  bool accumulate;
  // If it is set, B is this quantised matrix, `b` has no data, and its stride is that of whole rows. Each thread brings
  // a few rows or columns at a time back to bf16, which then enter the product like those of a bf16 matrix.
  const QuantisedRows* quantised = nullptr;
};

// Keeps its packing buffers between calls, because fresh pages cost more than the packing. One call runs at a time.
class GemmRunner {
 public:
  GemmRunner(const KernelTable& table, ThreadPool& threads);
  void run(const GemmProblem& problem) { run_groups({&problem, 1}); }
  // Computes several products, none of which reads or writes what another one writes: those of the experts of a layer.
  // They share the threads' loops, so threads are busy to the end whether a product has one row or thousands. Each has
  // the bits that run() gives it.
  void run_groups(std::span<const GemmProblem> problems);

 private:
  struct ThreadScratch {
    std::vector<float> b, c;
    std::vector<uint16_t> weights;  // of a quantised matrix
  };
  // The rows of a product, cut into micro-kernel blocks of nearly equal height and chunks of k.
  struct Cut {
    int64_t rows;
    int64_t blocks;
    int64_t chunk, chunks, k;
    int64_t block_floats;  // packed size of one block
    int64_t row_unit;
    int64_t first_row(int64_t block) const { return rows * block / blocks; }
    int64_t rows_of(int64_t block) const { return first_row(block + 1) - first_row(block); }
    int64_t k0(int64_t c) const { return c * chunk; }
    int64_t length(int64_t c) const { return chunk < k - k0(c) ? chunk : k - k0(c); }
    int64_t packed_rows(int64_t block) const { return (rows_of(block) + row_unit - 1) / row_unit * row_unit; }
    int64_t offset(int64_t block, int64_t c) const {
      return block * block_floats + k0(c) * packed_rows(block) + c * 16;
    }
  };
  // A product, or those of its rows that are packed together, and its share of the two loops: items that pack rows,
  // then tasks that multiply some rows by some columns.
  struct Piece {
    GemmProblem p;
    const GemmKernels* kernels;
    bool has_few_rows;  // the weights are used as they lie
    Cut cut;            // unless has_few_rows
    int64_t packed_floats;
    int64_t row_tasks, columns;  // columns: strips or panels
    int64_t num_items;
    // These say where the piece begins among those that are packed together.
    int64_t first_float, first_item, first_task, columns_per_task;
    int64_t column_tasks() const { return (columns + columns_per_task - 1) / columns_per_task; }
  };
  Piece piece_of(const GemmProblem& p, const GemmKernels& kernels) const;
  void add(const Piece& piece);
  void run_pieces();  // all that were added, and forgets them
  void pack(const Piece& piece, int64_t item);
  void multiply_few_rows(const Piece& piece, int64_t task, ThreadScratch& scratch);
  // Returns B's rows [row, row + num_rows), and of them the columns [column, column + num_columns), as bf16.
  Matrix dequantised(const GemmProblem& p, int64_t row, int64_t num_rows, int64_t column, int64_t num_columns,
                     ThreadScratch& scratch) const;
  void multiply(const Piece& piece, int64_t task, ThreadScratch& scratch);

  const KernelTable& table_;
  ThreadPool& threads_;
  std::vector<Piece> pieces_;
  std::vector<float> packed_a_;
  std::vector<ThreadScratch> thread_scratch_;
};

}  // namespace tandem::device::cpu
