#include "checkpoint/resume.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "weights/tensor_file.h"

namespace tandem::checkpoint {

namespace {

// Describes a box of an HF tensor that this rank holds.
struct HeldBox {
  std::string name;                  // name in a checkpoint
  std::vector<int64_t> whole_shape;  // shape of the HF tensor
  std::vector<int64_t> begin;        // start of the box in it
  at::Tensor values;
  bool is_shared = false;  // every tensor rank holds it
};

// Visits the box of each HF tensor that the trainer's state holds a part of: its rows of the slice.
template <typename F>
void for_each_box(const trainer::Trainer& trainer, F f) {
  for (const auto& [kind, packed, tensor, row_begin] : trainer.state()) {
    for (const weights::Slice& slice : packed->slices) {
      const int64_t begin = std::max(slice.row_begin, row_begin);
      const int64_t end = std::min(slice.row_begin + slice.shape.front(), row_begin + tensor.size(0));
      if (begin >= end) continue;
      std::vector<int64_t> box_begin = slice.hf_begin();
      box_begin.front() += begin - slice.row_begin;
      f(HeldBox{.name = fmt::format("{}.{}", trainer::to_string(kind), slice.hf_name),
                .whole_shape = slice.hf_shape(),
                .begin = std::move(box_begin),
                .values = tensor.narrow(0, begin - row_begin, end - begin),
                .is_shared = packed->is_whole()});
    }
  }
}

// Does the same for the weights of a reference.
template <typename F>
void for_each_box(const weights::WeightStore& reference, F f) {
  for (const weights::PackedTensor& packed : reference.layout().tensors) {
    for (const weights::Slice& slice : packed.slices) {
      f(HeldBox{.name = "reference." + slice.hf_name,
                .whole_shape = slice.hf_shape(),
                .begin = slice.hf_begin(),
                .values = reference.slice(packed, slice),
                .is_shared = packed.is_whole()});
    }
  }
}

template <typename Holder>
std::vector<SavedTensor> saved_tensors(const Holder& holder, int tensor_rank) {
  std::vector<SavedTensor> tensors;
  for_each_box(holder, [&](const HeldBox& held) {
    if (held.is_shared && tensor_rank > 0) return;
    tensors.push_back(
        {.bytes = weights::tensor_bytes(held.name, held.values), .whole_shape = held.whole_shape, .begin = held.begin});
  });
  return tensors;
}

// Fills the box from the checkpoint, which has it in this dtype. A box on a device, and one in another dtype, is read
// through a few MiB of host memory.
void read_box(const Checkpoint& checkpoint, const HeldBox& held, at::ScalarType saved) {
  const at::Tensor& part = held.values;
  const auto read_into = [&](const at::Tensor& host, int64_t first_row) {
    std::vector<int64_t> begin = held.begin;
    begin.front() += first_row;
    checkpoint.read(held.name, weights::safetensors_dtype(saved), begin, host.sizes().vec(),
                    {static_cast<std::byte*>(host.data_ptr()), static_cast<size_t>(host.nbytes())});
  };
  if (part.is_cpu() && part.scalar_type() == saved) {
    read_into(part, 0);
    return;
  }
  const int64_t num_rows = part.size(0), row_bytes = static_cast<int64_t>(part.nbytes()) / num_rows;
  const int64_t step = std::max<int64_t>(1, weights::kStagingBytes / row_bytes);
  for (int64_t begin = 0; begin < num_rows; begin += step) {
    const at::Tensor rows = part.narrow(0, begin, std::min(step, num_rows - begin));
    const at::Tensor host = at::empty(rows.sizes(), saved);
    read_into(host, begin);
    rows.copy_(host);
  }
}

}  // namespace

std::vector<SavedTensor> optimizer_tensors(const trainer::Trainer& trainer, int tensor_rank) {
  return saved_tensors(trainer, tensor_rank);
}

std::vector<SavedTensor> reference_tensors(const weights::WeightStore& reference, int tensor_rank) {
  return saved_tensors(reference, tensor_rank);
}

void restore_reference(const Checkpoint& checkpoint, weights::WeightStore& reference) {
  const auto& tensors = checkpoint.manifest().tensors;
  const at::ScalarType own = reference.dtype(), other = own == at::kFloat ? at::kBFloat16 : at::kFloat;
  for_each_box(reference, [&](const HeldBox& held) {
    const auto found = tensors.find(held.name);
    const bool is_other = found != tensors.end() && found->second.dtype == weights::safetensors_dtype(other);
    read_box(checkpoint, held, is_other ? other : own);
  });
}

void check_trained_tensors(const Checkpoint& checkpoint, const weights::Layout& trained) {
  constexpr const char* kAsTheyWere =
      "give --hf-checkpoint, --lora-rank, --target-modules and --modules-to-save as they were";
  const std::string prefix = fmt::format("{}.", trainer::to_string(trainer::StateKind::kExpAvg));
  const auto& saved = checkpoint.manifest().tensors;
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const weights::PackedTensor& packed : trained.tensors) {
    for (const weights::Slice& slice : packed.slices) shapes.emplace(slice.hf_name, slice.hf_shape());
  }
  for (const auto& [name, tensor] : saved) {
    if (!name.starts_with(prefix)) continue;
    const std::string own = name.substr(prefix.size());
    TANDEM_USER_CHECK(shapes.contains(own),
                      fmt::format("{}: tensor {} was trained, and with these flags it is not, so that what it has "
                                  "learnt would be lost; {}",
                                  checkpoint.directory(), own, kAsTheyWere));
  }
  for (const auto& [name, shape] : shapes) {
    const auto found = saved.find(prefix + name);
    TANDEM_USER_CHECK(found != saved.end(), fmt::format("{}: has no state of tensor {}, which these flags train; {}",
                                                        checkpoint.directory(), name, kAsTheyWere));
    TANDEM_USER_CHECK(
        found->second.shape == shape,
        fmt::format("{}: tensor {} has shape [{}] there and [{}] here: it is of another model, or of other "
                    "flags (--lora-rank); {}",
                    checkpoint.directory(), name, fmt::join(found->second.shape, ", "), fmt::join(shape, ", "),
                    kAsTheyWere));
  }
}

void restore(const Checkpoint& checkpoint, const RunState& state, trainer::Trainer& trainer,
             weights::WeightStore& store) {
  for_each_box(trainer, [&](const HeldBox& held) { read_box(checkpoint, held, held.values.scalar_type()); });
  trainer.restore(state.optimizer);
  store.set_version(state.weight_version);
}

}  // namespace tandem::checkpoint
