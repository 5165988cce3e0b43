// Keeps masters and moments in pinned host memory. An update walks the parameters in pieces over three sets of device
// buffers, which change roles from piece to piece: the next piece is copied into one, the update runs on one, and the
// previous piece is copied out of one, all three at once.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/size.h"
#include "device/transfer.h"
#include "trainer/optimizer_state.h"
#include "trainer/pinned_memory.h"
#include "weights/weights_plan.h"

namespace tandem::trainer {
namespace {

using base::kFloatBytes;

// The tensors of a parameter that lie on the host, in the order of pinned memory and buffers. A float32 store has no
// master.
enum Kind : int64_t { kExpAvg, kExpAvgSq, kMaster };

// A piece never spans parameters: their weight decays differ.
struct Piece {
  size_t parameter;
  int64_t begin, count;  // elements of the parameter
  int64_t host_begin;    // offset among the elements of all parameters
};

std::vector<Piece> cut(const std::vector<at::Tensor>& weights, int64_t piece_elements) {
  TANDEM_CHECK(piece_elements > 0 && !weights.empty(), piece_elements, "elements of", weights.size(), "tensors");
  std::vector<Piece> pieces;
  int64_t host_begin = 0;
  for (size_t p = 0; p < weights.size(); ++p) {
    for (int64_t begin = 0; begin < weights[p].numel(); begin += piece_elements) {
      const int64_t count = std::min(piece_elements, weights[p].numel() - begin);
      pieces.push_back({.parameter = p, .begin = begin, .count = count, .host_begin = host_begin});
      host_begin += count;
    }
  }
  return pieces;
}

class OffloadedState final : public OptimizerState {
 public:
  OffloadedState(std::vector<at::Tensor> weights, const OptimizerOffload& offload)
      : weights_(std::move(weights)),
        memory_(offload.host_memory),
        synchronize_(offload.synchronize),
        pieces_(cut(weights_, offload.piece_elements)),
        num_elements_(pieces_.back().host_begin + pieces_.back().count),
        num_kinds_(weights_.front().scalar_type() == at::kFloat ? 2 : 3),
        pinned_(memory_, num_kinds_ * num_elements_ * kFloatBytes) {}

  void update(const Update& update) override {
    fill_masters_once();
    const at::Tensor buffers = make_buffers();
    try {
      wait_for_compute();  // work on the buffers' memory by its previous user may still run
      stream(buffers, update);
    } catch (...) {
      end_copies();
      throw;
    }
  }

  std::vector<StateTensors> tensors() override {
    fill_masters_once();
    std::vector<StateTensors> result;
    int64_t begin = 0;
    for (const at::Tensor& weight : weights_) {
      const int64_t count = weight.numel();
      result.push_back({.master = has_masters() ? on_host(kMaster, begin, count) : weight,
                        .exp_avg = on_host(kExpAvg, begin, count),
                        .exp_avg_sq = on_host(kExpAvgSq, begin, count)});
      begin += count;
    }
    return result;
  }

 private:
  bool has_masters() const { return num_kinds_ > kMaster; }

  at::Tensor on_host(int64_t kind, int64_t begin, int64_t count) const {
    float* const first = reinterpret_cast<float*>(pinned_.data()) + kind * num_elements_ + begin;
    return at::from_blob(first, {count}, at::kFloat);
  }

  void fill_masters_once() {
    pinned_.data();  // it waits for the memory
    if (are_masters_filled_ || !has_masters()) return;
    const at::NoGradGuard without_graph;
    for (const Piece& piece : pieces_) {
      const at::Tensor weight = weights_[piece.parameter].narrow(0, piece.begin, piece.count);
      on_host(kMaster, piece.host_begin, piece.count).copy_(device::to_host(weight));
    }
    are_masters_filled_ = true;
  }

  // Returns [sets, kinds, elements] float32. Piece i uses set i % sets, as much of it as it needs.
  at::Tensor make_buffers() const {
    int64_t largest = 0;
    for (const Piece& piece : pieces_) largest = std::max(largest, piece.count);
    return at::empty({kOffloadBufferSets, num_kinds_, weights::aligned_elements(largest, kFloatBytes)},
                     weights_.front().options().dtype(at::kFloat));
  }

  at::Tensor on_device(const at::Tensor& buffers, size_t piece, int64_t kind) const {
    const at::Tensor set = buffers.select(0, static_cast<int64_t>(piece) % kOffloadBufferSets);
    return set.select(0, kind).narrow(0, 0, pieces_[piece].count);
  }

  StatePiece piece_on_device(const at::Tensor& buffers, size_t i) const {
    const Piece& piece = pieces_[i];
    return {.parameter = piece.parameter,
            .begin = piece.begin,
            .count = piece.count,
            .tensors = {.master = has_masters() ? on_device(buffers, i, kMaster)
                                                : weights_[piece.parameter].narrow(0, piece.begin, piece.count),
                        .exp_avg = on_device(buffers, i, kExpAvg),
                        .exp_avg_sq = on_device(buffers, i, kExpAvgSq)}};
  }

  // Calls f(device bytes, host bytes, how many) for each tensor of a piece.
  template <typename F>
  void for_each_tensor(const at::Tensor& buffers, size_t i, F f) const {
    const Piece& piece = pieces_[i];
    for (int64_t kind = 0; kind < num_kinds_; ++kind) {
      f(static_cast<std::byte*>(on_device(buffers, i, kind).data_ptr()),
        static_cast<std::byte*>(on_host(kind, piece.host_begin, piece.count).data_ptr()), piece.count * kFloatBytes);
    }
  }
  void queue_in(const at::Tensor& buffers, size_t i) {
    for_each_tensor(buffers, i, [&](std::byte* device, const std::byte* host, int64_t bytes) {
      memory_.copy_to_device(device, host, bytes);
    });
  }
  void queue_out(const at::Tensor& buffers, size_t i) {
    for_each_tensor(buffers, i, [&](const std::byte* device, std::byte* host, int64_t bytes) {
      memory_.copy_to_host(host, device, bytes);
    });
  }

  void stream(const at::Tensor& buffers, const Update& update) {
    queue_in(buffers, 0);
    memory_.synchronize();
    for (size_t i = 0; i < pieces_.size(); ++i) {
      // The next piece is copied into the set of piece i - 2, which has left.
      if (i + 1 < pieces_.size()) queue_in(buffers, i + 1);
      if (i > 0) queue_out(buffers, i - 1);
      update(piece_on_device(buffers, i));
      memory_.synchronize();
      wait_for_compute();
    }
    queue_out(buffers, pieces_.size() - 1);
    memory_.synchronize();
  }

  void wait_for_compute() const {
    if (synchronize_) synchronize_();
  }

  // Called after a failure, before the buffers go. Where even waiting fails the device is lost, and nothing runs on it.
  void end_copies() const {
    try {
      memory_.synchronize();
    } catch (const std::exception&) {
    }
    try {
      wait_for_compute();
    } catch (const std::exception&) {
    }
  }

  const std::vector<at::Tensor> weights_;
  device::HostMemory& memory_;
  const std::function<void()> synchronize_;
  const std::vector<Piece> pieces_;
  const int64_t num_elements_, num_kinds_;
  const PinnedMemory pinned_;
  bool are_masters_filled_ = false;
};

}  // namespace

std::unique_ptr<OptimizerState> make_offloaded_state(std::vector<at::Tensor> weights, const OptimizerOffload& offload) {
  // A rank that owns nothing has nothing to offload.
  const bool is_empty = std::ranges::all_of(weights, [](const at::Tensor& weight) { return weight.numel() == 0; });
  if (is_empty) return make_resident_state(std::move(weights));
  return std::make_unique<OffloadedState>(std::move(weights), offload);
}

}  // namespace tandem::trainer
