// Tests that gradients belong to a train phase: memory that is released at its end comes again, and changes no bit.
#include "trainer/gradients.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "memory/memory_plan.h"
#include "tandem/error.h"
#include "tests/device/ranks/thread_communicator.h"
#include "tests/trainer/counting_allocator.h"
#include "tests/trainer/fixture.h"
#include "tests/trainer/optimizer_fixture.h"
#include "trainer/gradient_sum.h"
#include "trainer/score.h"
#include "trainer/trainer_plan.h"

namespace tandem::trainer {
namespace {

TEST(Gradients, LieInOneAllocationEachAligned) {
  const Shapes shapes = {{"norm", {3}}, {"matrix", {5, 7}}, {"other", {16}}};
  const weights::WeightStore store = random_store(shapes, at::kBFloat16, 1);
  Gradients gradients(store);
  gradients.begin_step();
  for (size_t i = 0; i < shapes.size(); ++i) {
    const at::Tensor& gradient = gradients.accumulator(i);
    EXPECT_EQ(gradient.scalar_type(), at::kFloat);
    EXPECT_EQ(gradient.sizes(), at::IntArrayRef(shapes[i].second));
    EXPECT_TRUE(gradient.is_contiguous());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(gradient.data_ptr()) % 64, 0U);
    EXPECT_EQ(gradient.storage().data(), gradients.accumulator(0).storage().data());
    EXPECT_EQ(gradient.abs().max().item<float>(), 0.0F);
  }
  EXPECT_EQ(gradients.accumulator(0).storage().nbytes(), (16U + 48U + 16U) * 4U);
}

TEST(Gradients, AreMemoryOfTheTrainPhaseAlone) {
  const weights::WeightStore store = random_store(kSmallShapes, at::kFloat, 1);
  Gradients gradients(store);
  EXPECT_THROW(gradients.accumulator(0), BugError);
  for (int phase = 0; phase < 2; ++phase) {
    gradients.begin_step();
    gradients.accumulator(1).fill_(1.0F);
    EXPECT_THROW(gradients.last(0), BugError);
    EXPECT_EQ(gradients.last(1).sum().item<float>(), 8.0F);
    const c10::weak_intrusive_ptr<c10::StorageImpl> storage = gradients.last(1).storage().getWeakStorageImpl();
    gradients.begin_step();
    EXPECT_EQ(gradients.accumulator(1).sum().item<float>(), 0.0F);
    EXPECT_FALSE(storage.expired()) << "the steps of a phase share it";
    gradients.release();
    EXPECT_TRUE(storage.expired());
    EXPECT_THROW(gradients.last(1), BugError);
    EXPECT_THROW(gradients.accumulator(1), BugError);
  }
}

TEST(Gradients, AreSetByTheFirstOfAStepAndThenAddedTo) {
  const weights::WeightStore store = random_store(kSmallShapes, at::kFloat, 1);
  Gradients gradients(store);
  for (int step = 0; step < 2; ++step) {
    gradients.begin_step();
    const model::GradientTarget first = gradients.target(1);
    EXPECT_EQ(first.use, device::GradientUse::kSet);
    first.memory.fill_(3.0F);
    const model::GradientTarget second = gradients.target(1);
    EXPECT_EQ(second.use, device::GradientUse::kAdd);
    second.accumulator().add_(1.0F);
    EXPECT_TRUE(gradients.accumulator(1).eq(4.0F).all().item<bool>());
    EXPECT_EQ(gradients.target(0).accumulator().abs().sum().item<float>(), 0.0F) << "for one who only adds";
    EXPECT_EQ(gradients.target(0).use, device::GradientUse::kAdd);
  }
}

// The plan is for accumulators, scratch and receive buffers of the rank that has most of them.
void expect_planned_bytes(const TestModel& m, int64_t group_size) {
  for (const int size : {1, 2, 3, 4, 8}) {
    for (const bool has_several : {false, true}) {
      SCOPED_TRACE(testing::Message() << size << " ranks, several: " << has_several << ", groups of " << group_size);
      const auto ranks = device::thread_communicators(size);
      int64_t most = 0;
      for (int rank = 0; rank < size; ++rank) {
        Gradients accumulators(*m.store, {.rank = rank, .size = size});
        GradientSum sum(*m.store, accumulators, *ranks[static_cast<size_t>(rank)], group_size);
        const CountingAllocator allocator;
        sum.begin_step(has_several ? group_size + 1 : 1);
        most = std::max(most, allocator.live_bytes());
        sum.release();
        EXPECT_EQ(allocator.live_bytes(), 0);
      }
      const int64_t plan = optimizer_bytes(m.store->layout(), m.config.dtype, size).gradient +
                           gradient_scratch_bytes(m.store->layout(), size, has_several, group_size);
      EXPECT_LE(most, plan);
      EXPECT_LE(plan, most + most / 50 + memory::rounding_of(5));
    }
  }
}

TEST(GradientSum, TakesWhatThePlanStates) {
  const TestModel m = make_small_model(at::kFloat, /*tied=*/false, test_ops());
  for (const int64_t group_size : {1, 2, 4, 8}) expect_planned_bytes(m, group_size);
}

TEST(Gradients, AReleaseBetweenStepsChangesNoBit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    TestModel a = make_small_model(dtype, true, test_ops()), b = make_small_model(dtype, true, test_ops());
    TrainerConfig config;
    config.schedule.max_lr = 1e-2;
    const std::unique_ptr<Trainer> kept = make_trainer(config, *a.store, *a.model);
    const std::unique_ptr<Trainer> released = make_trainer(config, *b.store, *b.model);
    released->end_phase();  // there is nothing yet
    for (const uint32_t seed : {1U, 2U, 3U}) {
      const std::vector<rl::Sample> samples = random_samples(seed, 2, 3);
      EXPECT_EQ(released->step(pointers(samples)), kept->step(pointers(samples)));
      const std::map<std::string, at::Tensor> expected = gradients(*kept, *a.store);
      for (const auto& [name, gradient] : gradients(*released, *b.store))
        EXPECT_TRUE(gradient.equal(expected.at(name)));
      released->end_phase();
      EXPECT_THROW(released->gradient("final_norm"), BugError);
      for (const auto& [name, tensor] : named_state(*released))
        EXPECT_TRUE(tensor.equal(named_state(*kept).at(name))) << name;
      score(*b.model, pointers(samples), config.batch, config.temperature);  // scoring needs no gradients
    }
  }
}

}  // namespace
}  // namespace tandem::trainer
