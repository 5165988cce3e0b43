// Tests that the CPU's kernels give the same bits on every kind of processor: of each kernel's result, a checksum that
// was recorded on x86-64. There are two sets of bits: plain C++ rounds a multiply-add twice, and AVX2, AVX-512 and NEON
// round it once. AVX-512 BF16 and AMX, which only x86-64 has, sum products in an order of their own and are not here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "device/checksum.h"
#include "device/cpu/gemm.h"
#include "device/cpu/isa.h"
#include "device/cpu/kernels.h"
#include "device/cpu/rope_table.h"
#include "device/thread_pool.h"

namespace tandem::device::cpu {
namespace {

// An array of float or bfloat16 numbers in [-1, 1), which the seed decides. They are made without the maths library,
// so they are the same on every machine.
class Array {
 public:
  Array(uint64_t seed, int64_t size, Elem elem)
      : elem_(elem), bytes_(static_cast<size_t>(size) * (is_float() ? 4 : 2)) {
    for (int64_t i = 0; i < size; ++i) {
      const auto x = static_cast<float>(2.0 * base::uniform(seed, 0, static_cast<uint64_t>(i)) - 1.0);
      uint32_t bits;
      std::memcpy(&bits, &x, sizeof bits);
      const auto upper = static_cast<uint16_t>(bits >> 16);
      if (is_float()) {
        std::memcpy(bytes_.data() + 4 * i, &bits, sizeof bits);
      } else {
        std::memcpy(bytes_.data() + 2 * i, &upper, sizeof upper);
      }
    }
  }
  Elem elem() const { return elem_; }
  void* data() { return bytes_.data(); }
  float* floats() { return reinterpret_cast<float*>(bytes_.data()); }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  bool is_float() const { return elem_ == Elem::kF32; }
  Elem elem_;
  std::vector<std::byte> bytes_;
};

// Returns one number for the bytes of all results.
uint64_t sum_of(const std::vector<const Array*>& results) {
  std::vector<std::byte> all;
  for (const Array* result : results) all.insert(all.end(), result->bytes().begin(), result->bytes().end());
  return checksum_of(all).first;
}

// Each function below runs one kernel on numbers of one type and returns the checksum of its results. Widths are no
// multiples of sixteen where the kernel allows it, so that the last, partial vector is asked too.
using Operation = uint64_t (*)(const KernelTable& kernels, Elem elem);

uint64_t product(const KernelTable& kernels, Elem elem, int64_t m, int64_t n, int64_t k, bool k_major) {
  Array a(1, m * k, elem), b(2, n * k, elem), c(3, m * n, elem);
  ThreadPool threads(1);
  GemmRunner(kernels, threads)
      .run({m,
            n,
            k,
            {a.data(), elem, k_major ? m : k, k_major},
            {b.data(), elem, k_major ? n : k, k_major},
            c.data(),
            elem,
            n,
            /*accumulate=*/k_major});
  return sum_of({&c});
}
uint64_t blocked_product(const KernelTable& kernels, Elem elem) { return product(kernels, elem, 37, 75, 301, false); }
uint64_t added_product(const KernelTable& kernels, Elem elem) { return product(kernels, elem, 37, 75, 301, true); }
uint64_t product_of_few_rows(const KernelTable& kernels, Elem elem) { return product(kernels, elem, 3, 75, 96, false); }

// Three products of one matrix's rows, which lie in another order: of one row, of none and of many.
uint64_t products_of_groups(const KernelTable& kernels, Elem elem) {
  constexpr int64_t kGroups = 3, kAllRows = 38, kN = 75, kK = 96, first[kGroups + 1] = {0, 1, 1, kAllRows};
  Array a(1, kAllRows * kK, elem), b(2, kGroups * kN * kK, elem), c(3, kAllRows * kN, elem);
  const int64_t bytes = elem == Elem::kF32 ? 4 : 2;
  std::vector<int32_t> index;
  for (int32_t row = 0; row < kAllRows; ++row) index.push_back((row * 5 + 3) % kAllRows);
  std::vector<GemmProblem> problems;
  for (int64_t g = 0; g < kGroups; ++g) {
    problems.push_back({first[g + 1] - first[g],
                        kN,
                        kK,
                        {a.data(), elem, kK, /*k_major=*/false, index.data() + first[g]},
                        {static_cast<char*>(b.data()) + g * kN * kK * bytes, elem, kK, /*k_major=*/false},
                        static_cast<char*>(c.data()) + first[g] * kN * bytes,
                        elem,
                        kN,
                        /*accumulate=*/false});
  }
  ThreadPool threads(1);
  GemmRunner(kernels, threads).run_groups(problems);
  return sum_of({&c});
}

uint64_t add(const KernelTable& kernels, Elem elem) {
  Array a(1, 75, elem), b(2, 75, elem), y(3, 75, elem);
  kernels.add(a.data(), b.data(), y.data(), 75, elem);
  return sum_of({&y});
}

constexpr int64_t kRows = 5, kWidth = 75;

uint64_t rms_norm(const KernelTable& kernels, Elem elem) {
  Array x(1, kRows * kWidth, elem), w(2, kWidth, elem), y(3, kRows * kWidth, elem);
  kernels.rms_norm(x.data(), w.data(), y.data(), kRows, {kWidth, 1e-6, elem});
  return sum_of({&y});
}
uint64_t rms_norm_backward(const KernelTable& kernels, Elem elem) {
  Array dy(1, kRows * kWidth, elem), x(2, kRows * kWidth, elem), w(3, kWidth, elem), dx(4, kRows * kWidth, elem);
  Array dw(5, kWidth, Elem::kF32);
  kernels.rms_norm_backward(dy.data(), x.data(), w.data(), dx.data(), dw.floats(), kRows, {kWidth, 1e-6, elem});
  return sum_of({&dx, &dw});
}

uint64_t silu_mul(const KernelTable& kernels, Elem elem) {
  Array gate_up(1, kRows * 2 * kWidth, elem), y(2, kRows * kWidth, elem);
  kernels.silu_mul(gate_up.data(), y.data(), kRows, kWidth, elem);
  return sum_of({&y});
}
uint64_t silu_mul_backward(const KernelTable& kernels, Elem elem) {
  Array dy(1, kRows * kWidth, elem), gate_up(2, kRows * 2 * kWidth, elem), dx(3, kRows * 2 * kWidth, elem);
  kernels.silu_mul_backward(dy.data(), gate_up.data(), dx.data(), kRows, kWidth, elem);
  Array y(2, kRows * kWidth, elem);
  kernels.silu_mul(gate_up.data(), y.data(), kRows, kWidth, elem);
  EXPECT_EQ(sum_of({&dy}), sum_of({&y})) << "it leaves the result in the place of its gradient";
  return sum_of({&dx});
}

// A router's choice of 3 of 19 experts for kRows tokens, with each of both kinds of weights. All logits of the last
// token are alike.
constexpr int64_t kExperts = 19, kChosen = 3;
struct Routed {
  explicit Routed(const KernelTable& table) : kernels(table) {
    for (int64_t e = 0; e < kExperts; ++e) logits.floats()[(kRows - 1) * kExperts + e] = 0.25F;
    for (const bool normalises : {false, true}) {
      const RouteArgs args{kExperts, kChosen, normalises};
      kernels.route(logits.floats(), ids, weights[normalises].floats(), kRows, args);
    }
  }
  const KernelTable& kernels;
  Array logits{1, kRows* kExperts, Elem::kF32};
  int32_t ids[kRows * kChosen];
  Array weights[2] = {{2, kRows* kChosen, Elem::kF32}, {3, kRows* kChosen, Elem::kF32}};
};

uint64_t route(const KernelTable& kernels, Elem) {
  Routed r(kernels);
  Array ids(4, kRows * kChosen, Elem::kF32);
  std::copy_n(r.ids, kRows * kChosen, ids.floats());
  return sum_of({&ids, &r.weights[0], &r.weights[1]});
}
uint64_t route_backward(const KernelTable& kernels, Elem elem) {
  Routed r(kernels);
  Array dweights(4, kRows * kChosen, Elem::kF32);
  Array dlogits[2] = {{5, kRows * kExperts, elem}, {6, kRows * kExperts, elem}};
  for (const bool normalises : {false, true}) {
    kernels.route_backward(dweights.floats(), r.logits.floats(), r.ids, r.weights[normalises].floats(),
                           dlogits[normalises].data(), kRows, {kExperts, kChosen, normalises}, elem);
  }
  return sum_of({&dlogits[0], &dlogits[1]});
}
// A sum of rows times their weights and with a residual, and one of the rows alone.
uint64_t sum_of_experts(const KernelTable& kernels, Elem elem) {
  constexpr int64_t kPlaces = kRows * kChosen;
  Array y(1, kPlaces * kWidth, elem), weights(2, kPlaces, Elem::kF32), residual(3, kRows * kWidth, elem);
  Array sum(4, kRows * kWidth, elem), weighted(5, kRows * kWidth, elem);
  int32_t places[kPlaces];
  for (int32_t i = 0; i < kPlaces; ++i) places[i] = (i * 4 + 1) % static_cast<int32_t>(kPlaces);
  const ExpertSumArgs args{kWidth, kChosen, elem, elem};
  kernels.sum_of_experts(y.data(), weights.floats(), places, residual.data(), weighted.data(), kRows, args);
  kernels.sum_of_experts(y.data(), nullptr, places, nullptr, sum.data(), kRows, args);
  return sum_of({&sum, &weighted});
}
uint64_t weighted_silu_backward(const KernelTable& kernels, Elem elem) {
  Array da(1, kRows * kWidth, elem), gate_up(2, kRows * 2 * kWidth, elem), weights(3, kRows, Elem::kF32);
  Array dgate_up(4, kRows * 2 * kWidth, elem), weighted(5, kRows * kWidth, elem), dweights(6, kRows, Elem::kF32);
  kernels.weighted_silu_backward(da.data(), gate_up.data(), weights.floats(), dgate_up.data(), weighted.data(),
                                 dweights.floats(), kRows, kWidth, elem);
  return sum_of({&dgate_up, &weighted, &dweights});
}

// The shape of a small model's attention: four query heads share two key heads.
constexpr int64_t kHeads = 4, kKvHeads = 2, kHeadDim = 48;

// q, k and v of kRows tokens, and what the kernels of rotary positions take beside them.
struct Rotation {
  explicit Rotation(Elem elem)
      : qkv(1, kRows * (kHeads + 2 * kKvHeads) * kHeadDim, elem),
        q(2, kRows * kHeads * kHeadDim, elem),
        k(3, kRows * kKvHeads * kHeadDim, elem),
        v(4, kRows * kKvHeads * kHeadDim, elem),
        q_norm(5, kHeadDim, elem),
        k_norm(6, kHeadDim, elem),
        dq_norm(7, kHeadDim, Elem::kF32),
        dk_norm(8, kHeadDim, Elem::kF32),
        args{kHeads, kKvHeads, kHeadDim, 1e-6, elem} {
    const int32_t positions[kRows] = {0, 1, 99, 1023, 30000};
    cos_sin = table.rows(positions, kRows, kHeadDim, 1e6, {});
  }
  Array qkv, q, k, v, q_norm, k_norm, dq_norm, dk_norm;
  RopeTable table;
  std::vector<const float*> cos_sin;
  RopeArgs args;
};

uint64_t rope(const KernelTable& kernels, Elem elem) {
  Rotation r(elem);
  kernels.rope(r.qkv.data(), r.cos_sin.data(), r.q.data(), r.k.data(), r.v.data(), kRows, r.args);
  return sum_of({&r.q, &r.k, &r.v});
}
uint64_t rope_backward(const KernelTable& kernels, Elem elem) {
  Rotation r(elem);
  kernels.rope_backward(r.q.data(), r.k.data(), r.v.data(), r.cos_sin.data(), r.qkv.data(), kRows, r.args);
  return sum_of({&r.qkv});
}
uint64_t qk_norm_rope(const KernelTable& kernels, Elem elem) {
  Rotation r(elem);
  kernels.qk_norm_rope(r.qkv.data(), r.q_norm.data(), r.k_norm.data(), r.cos_sin.data(), r.q.data(), r.k.data(),
                       r.v.data(), kRows, r.args);
  return sum_of({&r.q, &r.k, &r.v});
}
uint64_t qk_norm_rope_backward(const KernelTable& kernels, Elem elem) {
  Rotation r(elem);
  Array dqkv(9, kRows * (kHeads + 2 * kKvHeads) * kHeadDim, elem);
  kernels.qk_norm_rope_backward(r.q.data(), r.k.data(), r.v.data(), r.qkv.data(), r.q_norm.data(), r.k_norm.data(),
                                r.cos_sin.data(), dqkv.data(), r.dq_norm.floats(), r.dk_norm.floats(), kRows, r.args);
  return sum_of({&dqkv, &r.dq_norm, &r.dk_norm});
}

// Attention of kRows rows of one sequence of 37 keys, which lie in three blocks of the cache.
struct Attending {
  static constexpr int64_t kBlocks = 3, kBlockElements = 2 * kKvHeads * kHeadDim * 16;
  explicit Attending(Elem elem)
      : q(1, kRows * kHeads * kHeadDim, elem),
        kv(2, kBlocks * kBlockElements, elem),
        out(3, kRows * kHeads * kHeadDim, elem),
        lse(4, kRows * kHeads, Elem::kF32),
        scratch(static_cast<size_t>(attention_scratch_floats(kRows, 37, kHeads / kKvHeads, kHeadDim))),
        args{q.data(), kv.data(),      out.data(), lse.floats(), sequences, positions, blocks,
             kBlocks,  kBlockElements, kHeads,     kKvHeads,     kHeadDim,  elem} {}
  void run(const KernelTable& kernels) {
    for (int64_t head = 0; head < kKvHeads; ++head) kernels.attention(args, 0, kRows, head, scratch.data());
  }
  Array q, kv, out, lse;
  const int32_t sequences[kRows] = {0, 0, 0, 0, 0}, positions[kRows] = {0, 7, 15, 16, 36}, blocks[kBlocks] = {2, 0, 1};
  std::vector<float> scratch;
  AttentionArgs args;
};

uint64_t attention(const KernelTable& kernels, Elem elem) {
  Attending a(elem);
  a.run(kernels);
  return sum_of({&a.out, &a.lse});
}
uint64_t attention_backward(const KernelTable& kernels, Elem elem) {
  Attending a(elem);
  a.run(kernels);
  Array dout(5, kRows * kHeads * kHeadDim, elem), dq(6, kRows * kHeads * kHeadDim, elem);
  Array dkv(7, Attending::kBlocks * Attending::kBlockElements, Elem::kF32);
  for (int64_t head = 0; head < kKvHeads; ++head) {
    kernels.attention_backward({a.args, dout.data(), dq.data(), dkv.floats(), Attending::kBlockElements}, 0, kRows,
                               head, a.scratch.data());
  }
  return sum_of({&dq, &dkv});
}

constexpr int64_t kVocab = 1003, kTarget = 17;

// Logits are float32, whatever the type of the weights.
uint64_t logprob(const KernelTable& kernels, Elem) {
  Array logits(1, kVocab, Elem::kF32), results(2, 3, Elem::kF32);
  float* to = results.floats();
  kernels.logprob(logits.floats(), kVocab, kTarget, 1.25F, to, to + 1, to + 2);
  return sum_of({&results});
}
uint64_t logprob_backward(const KernelTable& kernels, Elem) {
  Array logits(1, kVocab, Elem::kF32);
  kernels.logprob_backward(logits.floats(), kVocab, kTarget, 1.25F, 0.7F, 0.01F, 6.5F, 7.0F);
  return sum_of({&logits});
}

uint64_t adamw(const KernelTable& kernels, Elem elem) {
  Array weight(1, kWidth, elem), master(2, kWidth, Elem::kF32), grad(3, kWidth, Elem::kF32), m(4, kWidth, Elem::kF32);
  Array v(5, kWidth, Elem::kF32);
  for (int64_t i = 0; i < kWidth; ++i) v.floats()[i] *= v.floats()[i];  // a mean of squares
  kernels.adamw(weight.data(), elem, master.floats(), grad.floats(), m.floats(), v.floats(), kWidth,
                {1e-3F, 0.1F, 0.9F, 0.1F, 0.95F, 0.05F, 1e-8F, 1.5F, 0.25F});
  return sum_of({&weight, &master, &m, &v});
}

struct Recorded {
  const char* name;
  Operation run;
  // Checksums of float32 and of bfloat16 results: of plain C++, and of kernels with a fused multiply-add.
  uint64_t plain[2], fused[2];
};

const Recorded kRecorded[] = {
    {"blocked_product",
     blocked_product,
     {0x9753c026786030ba, 0xd2f14155451918f8},
     {0x48375d4c8d373dfa, 0xd2f14155451918f8}},
    {"added_product",
     added_product,
     {0x76a4f65f91d36133, 0x47759120067efeb4},
     {0xcaa8b7c728c71ad5, 0x47759120067efeb4}},
    {"product_of_few_rows",
     product_of_few_rows,
     {0x67f71f022127a9e2, 0x7522c608f7382da3},
     {0xc52ba3a18a3fcd9d, 0x7522c608f7382da3}},
    {"products_of_groups",
     products_of_groups,
     {0xcf318f638b544050, 0xf35ddacae7946831},
     {0x6cebe2e7ae7ae472, 0xf35ddacae7946831}},
    {"add", add, {0xbc77c979bf142a6b, 0x58b8cf83775eaa3c}, {0xbc77c979bf142a6b, 0x58b8cf83775eaa3c}},
    {"rms_norm", rms_norm, {0x745926eee3fe1a6a, 0x201089562ef8cb2d}, {0x745926eee3fe1a6a, 0x201089562ef8cb2d}},
    {"rms_norm_backward",
     rms_norm_backward,
     {0xd8b91350949b5b36, 0x9822b32dee24c350},
     {0xd30ff37e4f438892, 0xcaf72445219b05b4}},
    {"silu_mul", silu_mul, {0x48eebb6554243d0d, 0xcfa8c77be744e719}, {0x1616164d47184820, 0xcfa8c77be744e719}},
    {"silu_mul_backward",
     silu_mul_backward,
     {0xc59f84ff9a64d523, 0x4bd2898d42ed1aa4},
     {0xe40fe46922ed1265, 0x4bd2898d42ed1aa4}},
    {"route", route, {0x0cab4c2bbfc12c3b, 0x0cab4c2bbfc12c3b}, {0x0cab4c2bbfc12c3b, 0x0cab4c2bbfc12c3b}},
    {"route_backward",
     route_backward,
     {0x8c307977245e0f5d, 0xfed35e1c9f8b2e67},
     {0x0ade87018f12a469, 0xfed35e1c9f8b2e67}},
    {"sum_of_experts",
     sum_of_experts,
     {0x288d1afadd70b1aa, 0x8386d16e2ba0f0f1},
     {0x3dc618f2e480681a, 0x8386d16e2ba0f0f1}},
    {"weighted_silu_backward",
     weighted_silu_backward,
     {0x1ea7873ba874f3a7, 0x5882c66369617970},
     {0x415be32d02e901d2, 0x67488db31b5415fa}},
    {"rope", rope, {0x42f507e95139a0b3, 0xf0088dc98bc05b35}, {0x42f507e95139a0b3, 0xf0088dc98bc05b35}},
    {"rope_backward",
     rope_backward,
     {0xdf56aaa602052886, 0x274d7f35ca0fc387},
     {0xdf56aaa602052886, 0x274d7f35ca0fc387}},
    {"qk_norm_rope", qk_norm_rope, {0xe09f7c68ab71c161, 0x3be873c47ee8caeb}, {0x07d2b52082308ad1, 0x3be873c47ee8caeb}},
    {"qk_norm_rope_backward",
     qk_norm_rope_backward,
     {0x71b70b4276aa11d7, 0xbeb7b2fdae25bf27},
     {0x47f8e909d9bf9f2b, 0x80bfd3feb489f9ad}},
    {"attention", attention, {0x86900bcb615c8e18, 0xbe4a05589b4902d9}, {0x3ef0460b63b3385b, 0xbe4a05589b4902d9}},
    {"attention_backward",
     attention_backward,
     {0x5f761047c32b27de, 0x1c4a93bdc629a1ca},
     {0x963cb61e5559b9d0, 0x05fcad56e9014c6d}},
    {"logprob", logprob, {0x552eb456420050e0, 0x552eb456420050e0}, {0x552eb456420050e0, 0x552eb456420050e0}},
    {"logprob_backward",
     logprob_backward,
     {0x6e321019d577f860, 0x6e321019d577f860},
     {0xf09ebad8400e386e, 0xf09ebad8400e386e}},
    {"adamw", adamw, {0x0189230146a8282c, 0x0552017cd1e35b8f}, {0x4a0048f9231c0213, 0x4d8777af13d3dc39}},
};

TEST(Kernels, GiveTheBitsThatWereRecorded) {
  const std::string names = " " + available_isas() + " ";
  for (const std::string isa : {"scalar", "avx2", "avx512", "neon"}) {
    if (names.find(" " + isa + " ") == std::string::npos) continue;
    const KernelTable& kernels = choose_kernels(isa);
    for (const Recorded& r : kRecorded) {
      for (const Elem elem : {Elem::kF32, Elem::kBF16}) {
        const int type = elem == Elem::kF32 ? 0 : 1;
        EXPECT_EQ(r.run(kernels, elem), (isa == "scalar" ? r.plain : r.fused)[type])
            << isa << ": " << r.name << (type == 0 ? ", float32" : ", bfloat16");
      }
    }
  }
}

}  // namespace
}  // namespace tandem::device::cpu
