#include "weights/whole_tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <cstring>
#include <exception>
#include <string_view>
#include <type_traits>

#include "base/check.h"
#include "weights/box.h"
#include "weights/tensor_file.h"

namespace tandem::weights {
namespace {

// Elements [first, first + count) of the whole HF tensor that contains a slice.
struct Stretch {
  int64_t slice = 0;  // index in the order of the layout
  int64_t first = 0, count = 0;
};
constexpr int64_t kNoSlice = -1;  // no more questions follow

// Holds the elements of a box within a stretch: they are adjacent, as both are row-major.
struct Elements {
  int64_t first = 0, count = 0;
};

Elements elements_in(const Box& box, const Stretch& stretch) {
  const int64_t first = box.elements_before(stretch.first);
  return {.first = first, .count = box.elements_before(stretch.first + stretch.count) - first};
}

// Holds a slice of this rank's store.
struct Held {
  const Slice* slice = nullptr;
  at::Tensor values;
};

std::vector<Held> held_slices(const WeightStore& store) {
  std::vector<Held> held;
  for (const PackedTensor& packed : store.layout().tensors) {
    for (const Slice& slice : packed.slices) held.push_back({.slice = &slice, .values = store.slice(packed, slice)});
  }
  return held;
}

// Returns every rank's boxes, [rank][slice].
std::vector<std::vector<Box>> gather_boxes(const std::vector<Held>& held, device::Communicator& replica) {
  static_assert(std::is_trivially_copyable_v<Box>);
  std::vector<Box> mine;
  for (const Held& one : held) mine.push_back(box_of(*one.slice));
  const std::string_view bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(Box));
  std::vector<std::vector<Box>> boxes;
  for (const std::string& text : device::all_gather_text(replica, bytes)) {
    TANDEM_CHECK_EQ(text.size(), bytes.size(), "the ranks hold different models");
    std::memcpy(boxes.emplace_back(mine.size()).data(), text.data(), text.size());
  }
  return boxes;
}

device::TensorLists nothing(const device::Communicator& ranks) {
  return device::TensorLists(static_cast<size_t>(ranks.size()));
}

// An answer is the elements' bytes, followed by one byte that tells whether they could be read.
constexpr uint8_t kRead = 1, kFailed = 0;

at::Tensor answer_for(const Elements& elements, at::ScalarType dtype) {
  return at::empty({elements.count * static_cast<int64_t>(c10::elementSize(dtype)) + 1}, at::kByte);
}

uint8_t& outcome(const at::Tensor& answer) { return answer.mutable_data_ptr<uint8_t>()[answer.numel() - 1]; }

// Copies the elements into the answer, from whichever device holds them.
void read_elements(const Held& held, const Elements& elements, const at::Tensor& answer) {
  at::from_blob(answer.mutable_data_ptr(), {elements.count}, at::TensorOptions(held.values.scalar_type()))
      .copy_(held.values.view(-1).narrow(0, elements.first, elements.count));
  outcome(answer) = kRead;
}

// Runs rank 0's end of the exchange: asks the other ranks for their parts.
class Asker {
 public:
  Asker(const WeightStore& store, device::Communicator& replica)
      : dtype_(store.dtype()), replica_(replica), held_(held_slices(store)), boxes_(gather_boxes(held_, replica)) {}

  std::vector<TensorBytes> whole_tensors() {
    std::vector<TensorBytes> tensors;
    for (size_t s = 0; s < held_.size(); ++s) {
      const Slice& slice = *held_[s].slice;
      TensorBytes tensor = tensor_bytes(slice.hf_name, held_[s].values);
      if (!slice.is_whole()) {
        check_whole(s);
        tensor.shape = slice.hf_shape();
        tensor.bytes = {};
        tensor.copy_out = [this, s](int64_t offset, std::span<std::byte> out) { collect(s, offset, out); };
      }
      tensors.push_back(std::move(tensor));
    }
    return tensors;
  }

  // Tells the other ranks that their work is done.
  void finish() { ask({.slice = kNoSlice}); }
  // Returns whether a rank could not read its weights. That rank reports the reason.
  bool has_failed_rank() const { return has_failed_rank_; }

 private:
  void check_whole(size_t s) const {
    int64_t elements = 0, whole = 1;
    for (const std::vector<Box>& of_rank : boxes_) elements += of_rank[s].num_elements();
    for (const int64_t dim : held_[s].slice->hf_shape()) whole *= dim;
    TANDEM_CHECK_EQ(elements, whole, held_[s].slice->hf_name);
  }

  void ask(Stretch stretch) {
    device::TensorLists to = nothing(replica_);
    const at::Tensor question = at::empty({static_cast<int64_t>(sizeof stretch)}, at::kByte);
    std::memcpy(question.mutable_data_ptr(), &stretch, sizeof stretch);
    for (size_t r = 1; r < to.size(); ++r) to[r] = {question};
    replica_.start_exchange(std::move(to), nothing(replica_))->wait();
  }

  void collect(size_t s, int64_t offset_bytes, std::span<std::byte> out) {
    const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype_));
    const Stretch stretch{.slice = static_cast<int64_t>(s),
                          .first = offset_bytes / element_bytes,
                          .count = static_cast<int64_t>(out.size()) / element_bytes};
    ask(stretch);
    device::TensorLists answers = nothing(replica_);
    for (size_t r = 0; r < answers.size(); ++r) {
      const Elements elements = elements_in(boxes_[r][s], stretch);
      if (elements.count > 0) answers[r] = {answer_for(elements, dtype_)};
    }
    replica_.start_exchange(nothing(replica_), answers)->wait();
    for (size_t r = 0; r < answers.size(); ++r) {
      if (answers[r].empty()) continue;
      const Elements elements = elements_in(boxes_[r][s], stretch);
      if (r == 0) read_elements(held_[s], elements, answers[r][0]);
      has_failed_rank_ |= outcome(answers[r][0]) == kFailed;
      place(boxes_[r][s], elements, answers[r][0], stretch, out);
    }
    TANDEM_ENV_CHECK(!has_failed_rank_, "a rank cannot read its weights");
  }

  void place(const Box& box, const Elements& elements, const at::Tensor& answer, const Stretch& stretch,
             std::span<std::byte> out) const {
    const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype_));
    const auto* const from = static_cast<const std::byte*>(answer.const_data_ptr());
    for_each_run(box, elements.first, elements.count, [&](const Run& run) {
      std::memcpy(out.data() + (run.index - stretch.first) * element_bytes,
                  from + (run.element - elements.first) * element_bytes,
                  static_cast<size_t>(run.count * element_bytes));
    });
  }

  const at::ScalarType dtype_;
  device::Communicator& replica_;
  const std::vector<Held> held_;
  const std::vector<std::vector<Box>> boxes_;
  bool has_failed_rank_ = false;
};

// Runs the other ranks' end of the exchange: answers until rank 0 asks no more. A rank that could not read its weights
// then throws its error.
void answer_all(const WeightStore& store, device::Communicator& replica) {
  const std::vector<Held> held = held_slices(store);
  const std::vector<Box> boxes = gather_boxes(held, replica)[static_cast<size_t>(replica.rank())];
  std::exception_ptr failure;
  for (;;) {
    device::TensorLists from = nothing(replica);
    const at::Tensor question = from[0].emplace_back(at::empty({static_cast<int64_t>(sizeof(Stretch))}, at::kByte));
    replica.start_exchange(nothing(replica), std::move(from))->wait();
    Stretch stretch;
    std::memcpy(&stretch, question.const_data_ptr(), sizeof stretch);
    if (stretch.slice == kNoSlice) break;
    const auto s = static_cast<size_t>(stretch.slice);
    const Elements elements = elements_in(boxes[s], stretch);
    device::TensorLists to = nothing(replica);
    if (elements.count > 0) {
      const at::Tensor answer = to[0].emplace_back(answer_for(elements, store.dtype()));
      try {
        read_elements(held[s], elements, answer);
      } catch (const std::exception&) {
        failure = std::current_exception();
        outcome(answer) = kFailed;
      }
    }
    replica.start_exchange(std::move(to), nothing(replica))->wait();
  }
  if (failure) std::rethrow_exception(failure);
}

void write_or_answer(const WeightStore& store, device::Communicator& replica, std::exception_ptr& failure,
                     const std::function<void(std::vector<TensorBytes> tensors)>& write) {
  try {
    if (replica.rank() > 0) {
      answer_all(store, replica);
      return;
    }
    Asker asker(store, replica);
    try {
      write(asker.whole_tensors());
    } catch (const device::PeerLost&) {
      throw;
    } catch (const std::exception&) {
      if (!asker.has_failed_rank()) failure = std::current_exception();
    }
    asker.finish();
  } catch (const device::PeerLost&) {
    throw;
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
}

// Returns the first line of an error, since a stack follows in LibTorch's errors.
std::string words_of(const std::exception_ptr& failure) {
  if (!failure) return "";
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    const std::string words = error.what();
    return words.substr(0, words.find('\n'));
  }
}

}  // namespace

void with_whole_tensors(const WeightStore& store, device::Communicator& replica,
                        const std::function<void(std::vector<TensorBytes> tensors)>& write) {
  if (replica.size() == 1) {
    write(Asker(store, replica).whole_tensors());
    return;
  }
  std::exception_ptr failure;
  write_or_answer(store, replica, failure, write);
  const std::vector<std::string> words = device::all_gather_text(replica, words_of(failure));
  if (failure) std::rethrow_exception(failure);
  for (const std::string& of_rank : words) {
    if (!of_rank.empty()) throw EnvironmentError(of_rank);
  }
}

}  // namespace tandem::weights
