// few_rows.h has the contract. A block's strips of kCodeRows rows are cut into segments of kSegment terms. Its warps
// take the segments in turns: first ones of all its strips, then second ones, and so on. A warp makes bfloat16 of a
// segment's codes and keeps them in its registers, until the sums of the segment before have come from the warp that
// had it. So the sums of a strip are one chain, as they must be, whose products wait for nothing but each other, while
// the other warps make numbers for what follows. The warps are at about the same terms, so pieces of x of a segment's
// terms pass through a ring of the block.
//
// A code takes more of a multiprocessor than its half byte does of the memory: its value is read from a table in shared
// memory, 32 a cycle at most. So the first segments are converted before the wait for the kernel before.
#include <algorithm>

#include "device/cuda/gpu_limits.h"
#include "device/cuda/launch.cuh"
#include "device/cuda/products/few_rows.h"
#include "device/cuda/products/few_rows_codes.cuh"
#include "device/cuda/products/few_rows_pieces.cuh"
#include "device/cuda/tensor_cores.cuh"
#include "device/cuda/tensor_map.h"

namespace tandem::device::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kWarps = 12;
constexpr int kMostTiles = 8;
constexpr int kMostSlots = 8;  // of a warp's ring
// A block's shared memory holds, in this order: the barriers of the rings, the ring of x, those of the warps, the
// table, the strips' sums, and a barrier for each segment.
constexpr int kBarrierBytes = 1024;
constexpr int kSumsOfTile = kWarp * static_cast<int>(sizeof(float4));
static_assert((kWarps * kMostSlots + kPieceBarriers) * sizeof(Barrier) <= kBarrierBytes);

struct Params {
  CUtensorMap x;  // [64, T, K / 64]
  int T, N, slots;
  int strips_of_block, fuller_blocks;  // so many blocks have so many strips, the others one less
  int segments;                        // of a strip
};

// The segments of a block's strips that a warp takes.
class Turns {
 public:
  __device__ Turns(int strips, int segments, int warp) : strips_(strips), segments_(segments) { move(warp); }
  __device__ bool is_past_end() const { return segment_ >= segments_; }
  __device__ void advance() { move(kWarps); }
  __device__ bool is_of_last_strip() const { return strip_ + 1 == strips_; }
  __device__ int strip() const { return strip_; }  // of the block's
  __device__ Segment segment() const {
    return {.strip = static_cast<int>(blockIdx.x) + strip_ * static_cast<int>(gridDim.x), .number = segment_};
  }

 private:
  __device__ void move(int by) {
    strip_ += by;
#pragma unroll 1
    while (strip_ >= strips_) {
      strip_ -= strips_;
      ++segment_;
    }
  }
  int strips_, segments_, strip_ = 0, segment_ = 0;
};

// A warp's segments on their way through its ring.
template <typename Codes>
class Ring {
 public:
  __device__ Ring(const QuantisedStrips& source, std::byte* ring, Barrier* is_full, const Turns& first, int slots)
      : source_(source), ring_(ring), is_full_(is_full), next_(first), slots_(slots) {
#pragma unroll 1
    for (int slot = 0; slot < slots_; ++slot) start_next(slot);
  }
  // Waits for the warp's next segment and returns its codes.
  __device__ const std::byte* wait() {
    is_full_[slot_].wait(parity_);
    return ring_ + slot_ * Codes::kSegmentBytes;
  }
  // Gives back the memory of that segment, which all lanes have read.
  __device__ void end() {
    __syncwarp();
    start_next(slot_);
    slot_ = slot_ + 1 == slots_ ? 0 : slot_ + 1;
    parity_ ^= slot_ == 0 ? 1U : 0U;
  }

 private:
  __device__ void start_next(int slot) {
    if (next_.is_past_end()) return;
    if (is_elected()) {
      const Segment segment = next_.segment();
      const int part = source_.part_of(segment.strip);
      is_full_[slot].arrive_and_expect(Codes::kSegmentBytes);
      copy_box(source_.codes[part], 0, source_.row_of(segment.strip, part), segment.number * Codes::kBoxes,
               shared_address(ring_ + slot * Codes::kSegmentBytes), is_full_[slot]);
    }
    next_.advance();
  }

  const QuantisedStrips& source_;
  std::byte* ring_;
  Barrier* is_full_;
  Turns next_;
  int slots_, slot_ = 0;
  uint32_t parity_ = 0;
};

template <typename Codes, int kTiles, typename Out>
__global__ __launch_bounds__(kWarps* kWarp,
                             1) void few_rows_codes_kernel(const __grid_constant__ Params p,
                                                           const __grid_constant__ QuantisedStrips source,
                                                           const Out* added, Out* out) {
  extern __shared__ __align__(1024) std::byte memory[];
  const int warp = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / kWarp, 0);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  Barrier* const is_full = reinterpret_cast<Barrier*>(memory) + warp * kMostSlots;
  constexpr int kStarter = kWarps - 1;  // the warp whose turn comes last starts the first pieces of x
  std::byte* const rings = memory + kBarrierBytes + Pieces<kTiles>::kRingBytes;
  std::byte* const table = rings + kWarps * p.slots * Codes::kSegmentBytes;
  auto* const sums = reinterpret_cast<float4*>(table + Codes::kTableBytes);  // [strips of a block, kTiles, kWarp]
  auto* const is_summed = reinterpret_cast<Barrier*>(sums + p.strips_of_block * kTiles * kWarp);  // [strips, segments]
  const int strips = p.strips_of_block - (static_cast<int>(blockIdx.x) < p.fuller_blocks ? 0 : 1);
  Pieces<kTiles> pieces(p.x, reinterpret_cast<Barrier*>(memory) + kWarps * kMostSlots, memory + kBarrierBytes);

  if (lane == 0) {
#pragma unroll 1
    for (int slot = 0; slot < p.slots; ++slot) is_full[slot].init(1);
    if (warp == 0) pieces.init(strips);
    show_to_products();
  }
  __syncwarp();
  Turns turns(strips, p.segments, warp);
  Ring<Codes> ring(source, rings + warp * p.slots * Codes::kSegmentBytes, is_full, turns, p.slots);
  Codes codes(source, table);
  Turns next = turns;
  const auto prepare_next = [&] {
    codes.prepare(next.segment());
    next.advance();
  };
  prepare_next();
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < p.strips_of_block * p.segments; i += kWarps * kWarp)
    is_summed[i].init(1);
  Codes::fill(source, table);
  __syncthreads();

  const CodeLane own;
  Multiplier<kTiles> multiplier;
  Numbers numbers[kSegmentGroups][kGroupSteps];
  for (bool has_inputs = false;; has_inputs = true) {
    const bool is_past_end = turns.is_past_end();
    if (!is_past_end) {
      prepare_next();
      const std::byte* const segment = ring.wait();
#pragma unroll
      for (int group = 0; group < kSegmentGroups; ++group)
        codes.template group<Multiplier<kTiles>::kOrder>(segment, group, numbers[group]);
      ring.end();
    }
    if (!has_inputs) {
      wait_for_inputs();
      let_next_begin();
      if (warp == kStarter) pieces.start_first(p.segments);
    }
    if (is_past_end) break;

    const int number = turns.segment().number;
    float4* const passed = sums + turns.strip() * kTiles * kWarp + lane;
    Barrier* const end = is_summed + turns.strip() * p.segments + number;
    // A barrier tells a piece from the one before it in the same place only after that one has come.
    if (number >= Pieces<kTiles>::kSlots) end[1 - Pieces<kTiles>::kSlots].wait(0);
    multiplier.read_ahead(pieces.wait(number));
    float sum[kTiles][4] = {};
    if (number > 0) {
      end[-1].wait(0);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const float4 before = passed[tile * kWarp];
        sum[tile][0] = before.x, sum[tile][1] = before.y, sum[tile][2] = before.z, sum[tile][3] = before.w;
      }
    }
    multiplier.multiply(numbers, sum);
    if (number + 1 < p.segments) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
        passed[tile * kWarp] = {sum[tile][0], sum[tile][1], sum[tile][2], sum[tile][3]};
      __syncwarp();
      if (is_elected()) {
        end->arrive();
        pieces.end(number);
      }
      // The warp of the last strip starts a piece in the place of this one: the others have begun with it before.
      const int piece = number + Pieces<kTiles>::kSlots;
      if (turns.is_of_last_strip() && piece < p.segments) pieces.start_when_free(piece);
    } else {
#pragma unroll
      for (int i = 0; i < kTiles * 4; ++i) {
        const int e = i % 4, t = i / 4 * kTileRows + Multiplier<kTiles>::row_of(own.quarter * 2 + e % 2);
        const int n = turns.segment().strip * kCodeRows + own.line + e / 2 * 8;
        if (t >= p.T) continue;
        const int64_t to = static_cast<int64_t>(t) * p.N + n;
        write(out + to, added == nullptr ? sum[i / 4][e] : sum[i / 4][e] + widen(added[to]));
      }
    }
    turns.advance();
  }
}

// Calls use.operator()<kTiles>() with the fewest tiles that so many rows of x fit in.
template <typename Use>
auto with_tiles(int64_t T, const Use& use) {
  if (T <= kTileRows) return use.template operator()<1>();
  if (T <= 2 * kTileRows) return use.template operator()<2>();
  if (T <= 4 * kTileRows) return use.template operator()<4>();
  return use.template operator()<kMostTiles>();
}

// The division of a product's work.
struct Cut {
  int64_t strips, blocks, strips_of_block, segments, slots, bytes;
};
template <typename Codes, int kTiles>
Cut cut(int64_t N, int64_t K) {
  const int64_t strips = N / kCodeRows, blocks = std::min(strips, gpu_limits().multiprocessors);
  const int64_t strips_of_block = (strips + blocks - 1) / blocks, segments = K / kSegment;
  const int64_t other_bytes =
      kBarrierBytes + Pieces<kTiles>::kRingBytes + Codes::kTableBytes +
      strips_of_block * (kTiles * kSumsOfTile + segments * static_cast<int64_t>(sizeof(Barrier)));
  constexpr int64_t kRings = int64_t{kWarps} * Codes::kSegmentBytes;
  const auto slots_in = [&](int64_t bytes) { return (bytes - other_bytes) / kRings; };
  // The block leaves room for one of attention if it has two segments of each warp then.
  const int64_t room = slots_in(kFewRowsSharedBytes) >= 2 ? kFewRowsSharedBytes : kFewRowsOfCodesSharedBytes;
  const int64_t slots =
      std::min({slots_in(room), (strips_of_block * segments + kWarps - 1) / kWarps, int64_t{kMostSlots}});
  return {strips, blocks, strips_of_block, segments, slots, other_bytes + slots * kRings};
}

template <typename Codes>
bool supports(int64_t T, int64_t N, int64_t K) {
  if (N < kCodeRows || N % kCodeRows != 0 || K < kSegment || K % kSegment != 0 || !runs_few_rows(gpu_limits()))
    return false;
  return with_tiles(T, [&]<int kTiles>() { return cut<Codes, kTiles>(N, K).slots >= 1; });
}

template <typename Codes, int kTiles, typename Out>
cudaError_t launch(const FewRowsProduct& p, const QuantisedStrips& source, cudaStream_t stream) {
  const Cut c = cut<Codes, kTiles>(p.N, p.K);
  const auto kernel = few_rows_codes_kernel<Codes, kTiles, Out>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  static_cast<int>(kFewRowsOfCodesSharedBytes));
  if (status != cudaSuccess) return status;
  Params params = {.x = {},
                   .T = static_cast<int>(p.T),
                   .N = static_cast<int>(p.N),
                   .slots = static_cast<int>(c.slots),
                   .strips_of_block = static_cast<int>(c.strips_of_block),
                   .fuller_blocks = static_cast<int>(c.strips - (c.strips_of_block - 1) * c.blocks),
                   .segments = static_cast<int>(c.segments)};
  if (!describe_rows(params.x, p.x, p.T, p.K * static_cast<int64_t>(sizeof(bf16)), kTiles * kTileRows,
                     Pieces<kTiles>::kBoxes))
    return cudaErrorInvalidValue;
  return launch_dependent(kernel, p.T, static_cast<unsigned>(c.blocks), kWarps * kWarp, static_cast<size_t>(c.bytes),
                          stream, params, source, static_cast<const Out*>(p.added), static_cast<Out*>(p.out));
}

template <typename Codes>
cudaError_t launch(const FewRowsProduct& p, const QuantisedWeight& w, cudaStream_t stream) {
  QuantisedStrips source = {};
  source.num_parts = w.num_parts;
  source.groups = static_cast<int>(p.K / kGroup);
  constexpr int64_t kTermsOfRowBytes = kSegment / Codes::kBoxes;
  std::fill(std::begin(source.first_strip), std::end(source.first_strip), INT_MAX);
  int64_t row = 0;
  for (int i = 0; i < w.num_parts; ++i) {
    source.first_strip[i] = static_cast<int>(row / kCodeRows);
    source.maxima[i] = w.parts[i].maxima;
    source.scales[i] = w.parts[i].scales;
    source.tables[i] = w.parts[i].table;
    if (!describe_rows(source.codes[i], w.parts[i].codes, w.rows[i], p.K * kRowBytes / kTermsOfRowBytes, kCodeRows,
                       Codes::kBoxes))
      return cudaErrorInvalidValue;
    row += w.rows[i];
  }
  return with_tiles(p.T, [&]<int kTiles>() {
    return p.is_float32 ? launch<Codes, kTiles, float>(p, source, stream)
                        : launch<Codes, kTiles, bf16>(p, source, stream);
  });
}

bool is_nf4(const QuantisedWeight& w) { return w.parts[0].quantisation == Quantisation::kNf4; }

}  // namespace

int64_t most_rows_with_codes(const QuantisedWeight& w, int64_t N, int64_t K) {
  for (int i = 0; i < w.num_parts; ++i) {
    if (w.rows[i] % kCodeRows != 0) return 0;
  }
  for (int64_t rows = int64_t{kMostTiles} * kTileRows; rows >= kTileRows; rows /= 2) {
    if (is_nf4(w) ? supports<Nf4Codes>(rows, N, K) : supports<Int8Codes>(rows, N, K)) return rows;
  }
  return 0;
}

cudaError_t linear_of_few_rows(const FewRowsProduct& product, const QuantisedWeight& w, cudaStream_t stream) {
  if (product.T < 1 || product.T > most_rows_with_codes(w, product.N, product.K)) return cudaErrorInvalidValue;
  return is_nf4(w) ? launch<Nf4Codes>(product, w, stream) : launch<Int8Codes>(product, w, stream);
}

}  // namespace tandem::device::cuda
