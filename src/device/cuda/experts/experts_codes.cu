// experts_codes.h has the contract. A block has one expert, some rows of its weights, kTiles x 16 for each warp, and up
// to kPlaces of its places, as in experts.cu. Codes and places pass through shared memory in pieces of kDepth terms, of
// which several are in flight; a warp makes bfloat16 of its own rows' codes, and multiplies all of the block's places
// with them.
//
// A lane has four neighbours of each sixteen terms, in codes and in places alike. That changes no sum: an instruction
// adds sixteen terms at once.
#include <algorithm>
#include <climits>

#include "device/cuda/experts/expert_items.cuh"
#include "device/cuda/experts/experts_codes.h"
#include "device/cuda/experts/route.h"
#include "device/cuda/kernel_choice.h"
#include "device/cuda/launch.cuh"
#include "device/cuda/products/code_numbers.cuh"
#include "device/cuda/tensor_cores.cuh"
#include "device/cuda/vectors.cuh"

namespace tandem::device::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kDepth = 128, kSteps = kDepth / 16;  // terms of a piece, and instructions for them, one after the other
constexpr int kMostParts = QuantisedWeight::kMostParts;
constexpr int kPlaceBytes = kDepth * static_cast<int>(sizeof(bf16));  // of a place's terms of a piece
// Places are permuted so that four of them, which lanes read at once, share no bank.
__device__ int place_at(int place, int sixteen) { return place * kPlaceBytes + (sixteen ^ (place & 3) << 1) * 16; }

struct Params {
  const bf16* rows;
  const int32_t *offsets, *sources;
  int num_experts, num_chosen, N, K;
  int first_row[kMostParts];  // of the parts of an expert; INT_MAX where there is none
  QuantisedBytes parts[kMostParts];
  int64_t bytes_of_expert;

  __device__ int part_of(int row) const {
    static_assert(kMostParts == 3);
    return (row >= first_row[1] ? 1 : 0) + (row >= first_row[2] ? 1 : 0);
  }
  template <typename T>
  __device__ const T* of_expert(const T* first, int expert) const {
    return moved(first, expert * bytes_of_expert);
  }
};

// Rows of a tile: a lane has rows `line` and `line` + 8 of each tile, and terms quarter * 4 and on of each sixteen.
struct Lane {
  int line = static_cast<int>(threadIdx.x) % kWarp / 4, quarter = static_cast<int>(threadIdx.x) % 4;
};

// Each kind of codes has the bytes of a row of a piece, kRowBytes; code_at(), where sixteen bytes of a row lie in
// shared memory, permuted so that the lanes that read at once share no bank; and for the rows of a warp
//   begin()    fills what all warps read, in shared memory of kTableBytes, once for a block
//   advance()  gets ready for piece `piece`; a warp calls it for one piece after the other
//   begin_step() gets ready for one instruction of the piece, and numbers() returns the lane's numbers for it
using Numbers = uint32_t[4];  // {row line, row line + 8} x {two terms, two more}

template <int kTiles>
class Nf4Rows {
 public:
  static constexpr int kRowBytes = kDepth / 2, kGroups = kDepth / static_cast<int>(kNf4Block);
  static constexpr int kValues = static_cast<int>(kNf4TableSize) + 4;  // of a part; the last ones are room
  static constexpr int kTableBytes = Nf4Pairs::kBytes + kMostParts * kValues * static_cast<int>(sizeof(float));
  static __device__ int code_at(int row, int sixteen) { return row * kRowBytes + (sixteen ^ (row >> 1 & 3)) * 16; }

  // The warp's tiles begin at row `first` of the expert, and rows from `end` on are not there.
  __device__ Nf4Rows(const Params& p, int expert, int first, int end, std::byte* table)
      : groups_(p.K / static_cast<int>(kNf4Block)),
        values_(reinterpret_cast<float*>(table + Nf4Pairs::kBytes)),
        pairs_(table) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int row = min(first + tile * 16, end - 16), part = p.part_of(row);
      part_[tile] = part;
      row_[tile] = row - p.first_row[part] + lane_.line;
      maxima_of_[tile] = p.of_expert(p.parts[part].maxima, expert);
      scales_of_[tile] = p.of_expert(p.parts[part].scales, expert);
    }
    Nf4Pairs::fill(table);
    for (int part = 0; part < kMostParts; ++part) {
      if (p.first_row[part] == INT_MAX) break;
      const float* const from = p.of_expert(p.parts[part].table, expert);
      for (int i = static_cast<int>(threadIdx.x); i <= kNf4TableSize; i += kThreads)
        values_[part * kValues + i] = from[i];
    }
    read(0);
  }

  // Every other piece each of a row's four lanes makes the maximum of one group, of this piece or of the next.
  __device__ void advance(int piece) {
    static_assert(kGroups == 2);
    half_ = piece % 2 * kGroups;
    if (half_ != 0) return;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        maxima_[tile][i] = maximum_of_block(values_ + part_[tile] * kValues, codes_[tile][i], scales_[tile][i]);
    }
    read(piece + 2);
  }

  __device__ void begin_step(int step) {
    constexpr int kGroupSteps = static_cast<int>(kNf4Block) / 16;
    if (step % kGroupSteps != 0) return;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int from = lane_.line * 4 + half_ + step / kGroupSteps;
        maximum_[tile][i] = __shfl_sync(kAllLanes, maxima_[tile][i], from);
      }
    }
  }

  // `codes` is the tile's first row of the piece.
  __device__ void numbers(const std::byte* codes, int tile, int step, Numbers& numbers) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float maximum = maximum_[tile][i];
      const std::byte* const at = codes + code_at(lane_.line + i * 8, step / 2) + step % 2 * 8 + lane_.quarter * 2;
      const uint32_t both = *reinterpret_cast<const uint16_t*>(at);
      const float2 first = pairs_.of(both & 255), second = pairs_.of(both >> 8);
      numbers[i] = packed(__fmul_rn(first.x, maximum), __fmul_rn(first.y, maximum));
      numbers[i + 2] = packed(__fmul_rn(second.x, maximum), __fmul_rn(second.y, maximum));
    }
  }

 private:
  __device__ void read(int piece) {
    const int group = min(piece * kGroups + lane_.quarter, groups_ - 1);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto block = static_cast<uint32_t>((row_[tile] + i * 8) * groups_ + group);
        codes_[tile][i] = maxima_of_[tile][block];
        scales_[tile][i] = scales_of_[tile][block / static_cast<uint32_t>(kNf4Nested)];
      }
    }
  }

  Lane lane_;
  int groups_, half_ = 0, part_[kTiles], row_[kTiles];
  float* values_;  // of the codes of maxima, of each part
  Nf4Pairs pairs_;
  const uint8_t* maxima_of_[kTiles];
  const float* scales_of_[kTiles];
  uint8_t codes_[kTiles][2];
  float scales_[kTiles][2], maxima_[kTiles][2], maximum_[kTiles][2];  // maximum_: of the group that is multiplied
};

template <int kTiles>
class Int8Rows {
 public:
  static constexpr int kRowBytes = kDepth, kTableBytes = 0;
  static __device__ int code_at(int row, int sixteen) { return row * kRowBytes + (sixteen ^ (row & 7)) * 16; }

  __device__ Int8Rows(const Params& p, int expert, int first, int end, std::byte* /*table*/) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int row = min(first + tile * 16, end - 16), part = p.part_of(row);
      const float* const scales = p.of_expert(p.parts[part].scales, expert) + row - p.first_row[part] + lane_.line;
#pragma unroll
      for (int i = 0; i < 2; ++i) maxima_[tile][i] = scales[i * 8];
    }
  }
  __device__ void advance(int /*piece*/) {}
  __device__ void begin_step(int /*step*/) {}
  __device__ void numbers(const std::byte* codes, int tile, int step, Numbers& numbers) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float maximum = maxima_[tile][i];
      const std::byte* const at = codes + code_at(lane_.line + i * 8, step) + lane_.quarter * 4;
      const uint32_t four = *reinterpret_cast<const uint32_t*>(at);
      numbers[i] = packed(int8_weight<0>(four, maximum), int8_weight<1>(four, maximum));
      numbers[i + 2] = packed(int8_weight<2>(four, maximum), int8_weight<3>(four, maximum));
    }
  }

 private:
  Lane lane_;
  float maxima_[kTiles][2];
};

// Starts a copy of sixteen bytes to shared memory.
__device__ void start_copy(std::byte* to, const void* from) {
  copy_16(reinterpret_cast<bf16*>(to), static_cast<const bf16*>(from), /*inside=*/true);
}

template <template <int> typename Codes, int kTiles, int kPlaces, int kPieces, typename Out>
__global__ __launch_bounds__(kThreads) void experts_codes_kernel(const __grid_constant__ Params p, Out* out) {
  using Rows = Codes<kTiles>;
  constexpr int kRows = kWarps * kTiles * 16, kEights = kPlaces / 8, kPieceSixteens = kPlaceBytes / 16;
  constexpr int kCodeBytes = kRows * Rows::kRowBytes, kPieceBytes = kCodeBytes + kPlaces * kPlaceBytes;
  extern __shared__ __align__(128) std::byte memory[];
  std::byte* const ring = memory + (Rows::kTableBytes + 127) / 128 * 128;
  wait_for_inputs();
  const Item item = find_item<kPlaces>(p.offsets, p.num_experts, static_cast<int>(blockIdx.y));
  let_next_begin();
  if (item.count == 0) return;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, first_row = static_cast<int>(blockIdx.x) * kRows;
  const int eights = (item.count + 7) / 8, pieces = p.K / kDepth;

  // A thread's share of the copies, sixteen bytes at a time. Rows and places past the last repeat it; their outputs are
  // not written.
  constexpr int kRowSixteens = Rows::kRowBytes / 16, kOfCodes = kRows * kRowSixteens / kThreads;
  constexpr int kOfPlaces = kPlaces * kPieceSixteens / kThreads;
  const uint8_t* codes[kOfCodes];
#pragma unroll
  for (int i = 0; i < kOfCodes; ++i) {
    const int copy = static_cast<int>(threadIdx.x) + i * kThreads;
    const int row = min(first_row + copy / kRowSixteens, p.N - 1), part = p.part_of(row);
    codes[i] = p.of_expert(p.parts[part].codes, item.expert) +
               static_cast<int64_t>(row - p.first_row[part]) * (p.K / kDepth) * Rows::kRowBytes +
               copy % kRowSixteens * 16;
  }
  const bf16* places[kOfPlaces];
#pragma unroll
  for (int i = 0; i < kOfPlaces; ++i) {
    const int copy = static_cast<int>(threadIdx.x) + i * kThreads;
    const int place = item.first + min(copy / kPieceSixteens, item.count - 1);
    const int64_t row = p.sources != nullptr ? p.sources[place] / p.num_chosen : place;
    places[i] = p.rows + row * p.K + copy % kPieceSixteens * 8;
  }
  const auto start = [&](int piece) {
    if (piece < pieces) {
      std::byte* const to = ring + piece % kPieces * kPieceBytes;
#pragma unroll
      for (int i = 0; i < kOfCodes; ++i) {
        const int copy = static_cast<int>(threadIdx.x) + i * kThreads;
        start_copy(to + Rows::code_at(copy / kRowSixteens, copy % kRowSixteens), codes[i] + piece * Rows::kRowBytes);
      }
#pragma unroll
      for (int i = 0; i < kOfPlaces; ++i) {
        const int copy = static_cast<int>(threadIdx.x) + i * kThreads, place = copy / kPieceSixteens;
        if (place < eights * 8)
          start_copy(to + kCodeBytes + place_at(place, copy % kPieceSixteens), places[i] + piece * kDepth);
      }
    }
    close_piece();
  };
#pragma unroll
  for (int piece = 0; piece < kPieces - 1; ++piece) start(piece);

  const Lane lane;
  Rows rows(p, item.expert, first_row + warp * kTiles * 16, p.N, memory);
  float sum[kTiles][kEights][4] = {};
  for (int piece = 0; piece < pieces; ++piece) {
    wait_for_pieces<kPieces - 2>();
    __syncthreads();  // what rows() has filled is there too
    start(piece + kPieces - 1);
    rows.advance(piece);
    const std::byte* const piece_codes = ring + piece % kPieces * kPieceBytes;
    const std::byte* const piece_places = piece_codes + kCodeBytes;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      rows.begin_step(step);
      Numbers a[kTiles];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
        rows.numbers(piece_codes + (warp * kTiles + tile) * 16 * Rows::kRowBytes, tile, step, a[tile]);
#pragma unroll
      for (int eight = 0; eight < kEights; ++eight) {
        if (eight >= eights) break;
        const std::byte* const at =
            piece_places + place_at(eight * 8 + lane.line, step * 2 + lane.quarter / 2) + lane.quarter % 2 * 8;
        const uint2 four = *reinterpret_cast<const uint2*>(at);
        const uint32_t b[2] = {four.x, four.y};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) multiply_add(sum[tile][eight], a[tile], b);
      }
    }
  }

#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int place = eight * 8 + lane.quarter * 2 + e % 2;
        const int row = first_row + (warp * kTiles + tile) * 16 + lane.line + e / 2 * 8;
        if (place < item.count && row < p.N)
          write(out + static_cast<int64_t>(item.first + place) * p.N + row, sum[tile][eight][e]);
      }
    }
  }
}

template <template <int> typename Codes, int kTiles, int kPlaces, int kPieces, typename Out>
cudaError_t launch(const ExpertsOfCodes& e, const Params& params, Out* out, cudaStream_t stream) {
  using Rows = Codes<kTiles>;
  constexpr int kRows = kWarps * kTiles * 16;
  constexpr int kBytes =
      (Rows::kTableBytes + 127) / 128 * 128 + (kRows * Rows::kRowBytes + kPlaces * kPlaceBytes) * kPieces;
  static_assert(kBytes <= kLeastSharedBytes);
  const auto kernel = experts_codes_kernel<Codes, kTiles, kPlaces, kPieces, Out>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return status;
  // An expert's last item may have one place, so there are at most as many items as whole ones and experts.
  const int64_t items = std::min(e.weights.num_experts, e.num_places) + e.num_places / kPlaces;
  const dim3 grid(static_cast<unsigned>((e.N + kRows - 1) / kRows), static_cast<unsigned>(items));
  return launch_dependent(kernel, e.num_places / e.num_chosen, grid, kThreads, kBytes, stream, params, out);
}

// Few places an expert have few rows of weights a block, so that there are enough blocks.
template <template <int> typename Codes, typename Out>
cudaError_t launch(const ExpertsOfCodes& e, const Params& params, Out* out, cudaStream_t stream) {
  return e.num_places <= 8 * e.weights.num_experts ? launch<Codes, 1, 16, 4>(e, params, out, stream)
                                                   : launch<Codes, 2, 32, 3>(e, params, out, stream);
}

template <typename Out>
cudaError_t launch(const ExpertsOfCodes& e, const Params& params, Out* out, cudaStream_t stream) {
  return params.parts[0].quantisation == Quantisation::kInt8 ? launch<Int8Rows>(e, params, out, stream)
                                                             : launch<Nf4Rows>(e, params, out, stream);
}

}  // namespace

bool supports_experts_of_codes(const QuantisedExperts& weights, int64_t N, int64_t K) {
  const QuantisedWeight& first = weights.first;
  const bool are_tiles =
      std::all_of(first.rows, first.rows + first.num_parts, [](int64_t rows) { return rows % 16 == 0; });
  return are_tiles && N >= 16 && K % kDepth == 0 && weights.num_experts <= kMostExperts && N * K <= INT_MAX;
}

cudaError_t linear_of_experts(const ExpertsOfCodes& e, void* out, bool is_float32, cudaStream_t stream) {
  if (!supports_experts_of_codes(e.weights, e.N, e.K)) return cudaErrorInvalidValue;
  if (e.num_places == 0) return cudaSuccess;
  Params params = {.rows = e.rows,
                   .offsets = e.offsets,
                   .sources = e.sources,
                   .num_experts = static_cast<int>(e.weights.num_experts),
                   .num_chosen = static_cast<int>(e.num_chosen),
                   .N = static_cast<int>(e.N),
                   .K = static_cast<int>(e.K),
                   .first_row = {INT_MAX, INT_MAX, INT_MAX},
                   .parts = {},
                   .bytes_of_expert = e.weights.bytes_of_expert};
  int64_t row = 0;
  for (int i = 0; i < e.weights.first.num_parts; ++i) {
    params.first_row[i] = static_cast<int>(row);
    params.parts[i] = e.weights.first.parts[i];
    row += e.weights.first.rows[i];
  }
  return is_float32 ? launch(e, params, static_cast<float*>(out), stream)
                    : launch(e, params, static_cast<bf16*>(out), stream);
}

}  // namespace tandem::device::cuda
