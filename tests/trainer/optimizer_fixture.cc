#include "tests/trainer/optimizer_fixture.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/check.h"
#include "tests/trainer/fixture.h"

namespace tandem::trainer {

weights::Layout layout_of(const Shapes& shapes) {
  weights::Layout layout;
  for (const auto& [name, shape] : shapes) {
    layout.tensors.push_back(
        {.name = name, .shape = shape, .slices = {{.hf_name = name, .shape = shape}}, .decays = shape.size() == 2});
  }
  return layout;
}

void fill_random(const at::Tensor& tensor, std::mt19937& random) {
  const at::Tensor values = at::empty(tensor.sizes(), at::kFloat);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < values.numel(); ++i) values.mutable_data_ptr<float>()[i] = normal(random);
  tensor.copy_(values);
}

weights::WeightStore random_store(const Shapes& shapes, at::ScalarType dtype, uint32_t seed) {
  std::mt19937 random(seed);
  weights::WeightStore store(layout_of(shapes), dtype);
  for (const weights::PackedTensor& packed : store.layout().tensors) fill_random(store.tensor(packed.name), random);
  return store;
}

void random_step(AdamW& adamw, const weights::WeightStore& store, uint32_t seed) {
  std::mt19937 random(seed);
  adamw.begin_step();
  for (const weights::PackedTensor& packed : store.layout().tensors) fill_random(adamw.gradient(packed.name), random);
  adamw.step(0.01, 0.5);
}

void expect_same_optimizer(const AdamW& a, const weights::WeightStore& a_store, const AdamW& b,
                           const weights::WeightStore& b_store) {
  EXPECT_EQ(a.num_steps(), b.num_steps());
  for (const weights::PackedTensor& packed : a_store.layout().tensors) {
    EXPECT_TRUE(a_store.tensor(packed.name).equal(b_store.tensor(packed.name))) << packed.name;
  }
  const std::map<std::string, at::Tensor> a_state = named_state(a), b_state = named_state(b);
  ASSERT_EQ(a_state.size(), b_state.size());
  for (const auto& [name, tensor] : a_state) EXPECT_TRUE(tensor.equal(b_state.at(name))) << name;
}

namespace {

// While it lives, there is one caller more.
class Call {
 public:
  explicit Call(std::atomic<int>& num_callers) : num_callers_(num_callers) {
    TANDEM_CHECK_EQ(++num_callers_, 1, "two threads call host memory");
  }
  ~Call() { --num_callers_; }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  std::atomic<int>& num_callers_;
};

}  // namespace

std::byte* CountingHostMemory::allocate(int64_t bytes) {
  const Call call(num_callers_);
  std::byte* const host = real_.allocate(bytes);
  std::memset(host, 0xAB, static_cast<size_t>(bytes));
  allocated_bytes_ += bytes;
  return host;
}

void CountingHostMemory::free(std::byte* host, int64_t bytes) {
  const Call call(num_callers_);
  real_.free(host, bytes);
  allocated_bytes_ -= bytes;
}

void CountingHostMemory::copy_to_host(std::byte* host, const std::byte* device, int64_t bytes) {
  const Call call(num_callers_);
  queue(out_, [=, this] { real_.copy_to_host(host, device, bytes); });
}

void CountingHostMemory::copy_to_device(std::byte* device, const std::byte* host, int64_t bytes) {
  const Call call(num_callers_);
  queue(in_, [=, this] { real_.copy_to_device(device, host, bytes); });
}

void CountingHostMemory::synchronize() {
  const Call call(num_callers_);
  run(copies_ == Copies::kLateOutFirst ? out_ : in_);
  run(copies_ == Copies::kLateOutFirst ? in_ : out_);
}

void CountingHostMemory::queue(Queue& queue, std::function<void()> copy) {
  if (copies_ == Copies::kAtOnce) {
    copy();
  } else {
    queue.push_back(std::move(copy));
  }
}

void CountingHostMemory::run(Queue& queue) {
  for (const std::function<void()>& copy : queue) copy();
  queue.clear();
}

}  // namespace tandem::trainer
