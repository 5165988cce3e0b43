// Tests that an optimizer whose state lives on the host equals one whose state does not, bit for bit, within bounded
// device memory; and that after any failed call of host memory it reports the error, saves no half step and leaks
// nothing.
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <set>
#include <stdexcept>

#include "base/log.h"
#include "tandem/error.h"
#include "tests/base/thrown.h"
#include "tests/device/memory/failing_vmm.h"
#include "tests/trainer/fixture.h"
#include "tests/trainer/optimizer_fixture.h"
#include "trainer/trainer_plan.h"

namespace tandem::trainer {
namespace {

using Copies = CountingHostMemory::Copies;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

constexpr const char* kHalfUpdated = "half updated; resume from the last checkpoint";

class OffloadTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  int64_t num_kinds() const { return GetParam() == at::kFloat ? 2 : 3; }

  // Takes three steps in both ways from the same weights. The offloaded one's updates go through `offloaded_ops`.
  void expect_same_bits(const Shapes& shapes, const device::Ops& ops, const device::Ops& offloaded_ops,
                        const OptimizerOffload& offload) {
    weights::WeightStore store = random_store(shapes, GetParam(), 1), other = random_store(shapes, GetParam(), 1);
    AdamW resident({}, store, ops), offloaded({}, other, offloaded_ops, offload);
    for (const uint32_t seed : {2U, 3U, 4U}) {
      random_step(resident, store, seed);
      random_step(offloaded, other, seed);
      expect_same_optimizer(resident, store, offloaded, other);
    }
  }
};

TEST_P(OffloadTest, GivesTheSameBitsWhereverTensorsAreCut) {
  // The shapes have more than one range of a thread (65536), and tails of every vector.
  const Shapes shapes = {{"matrix", {37, 29}}, {"large", {300, 257}}, {"norm", {29}}};
  std::vector<std::unique_ptr<device::Ops>> all;
  for (const char* isa : {"scalar", "avx2", "avx512", "avx512bf16", "amx"}) {
    if (contains(device::available_cpu_isas(), isa)) all.push_back(device::make_cpu_ops(isa, 2));
  }
  std::vector<const device::Ops*> ops = {&reference_ops()};
  for (const auto& one : all) ops.push_back(one.get());
  for (const device::Ops* one : ops) {
    for (const int64_t piece : {kOffloadPieceElements, int64_t{38550}, int64_t{1073}, int64_t{997}}) {
      SCOPED_TRACE(one->name() + ", pieces of " + std::to_string(piece));
      CountingHostMemory host_memory;
      expect_same_bits(shapes, *one, *one, {.host_memory = host_memory, .piece_elements = piece});
      EXPECT_EQ(host_memory.allocated_bytes(), 0);
    }
  }
}

TEST_P(OffloadTest, GivesTheSameBitsHoweverLateTheDeviceIs) {
  for (const Copies copies : {Copies::kAtOnce, Copies::kLateInFirst, Copies::kLateOutFirst}) {
    for (const bool is_compute_late : {false, true}) {
      for (const int64_t piece : {1, 5, 8, 16, 48, 1000}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(copies)) + (is_compute_late ? ", late" : "") + ", pieces of " +
                     std::to_string(piece));
        CountingHostMemory host_memory(copies);
        const LateOps late(test_ops());
        OptimizerOffload offload{.host_memory = host_memory, .piece_elements = piece};
        if (is_compute_late) offload.synchronize = [&late] { late.synchronize(); };
        expect_same_bits(kSmallShapes, test_ops(), is_compute_late ? static_cast<const device::Ops&>(late) : test_ops(),
                         offload);
      }
    }
  }
}

TEST_P(OffloadTest, MastersBeginAsTheWeightsOfTheFirstUse) {
  weights::WeightStore store = random_store(kSmallShapes, GetParam(), 1);
  CountingHostMemory host_memory;
  const AdamW adamw({}, store, test_ops(), OptimizerOffload{.host_memory = host_memory, .piece_elements = 7});
  std::mt19937 random(2);
  fill_random(store.tensor("matrix"), random);  // imitates a checkpoint that is loaded after the trainer was made
  const std::map<std::string, at::Tensor> state = named_state(adamw);
  for (const char* name : {"matrix", "norm"}) {
    const at::Tensor& master = state.at(std::string("master.") + name);
    EXPECT_EQ(master.scalar_type(), at::kFloat);
    EXPECT_EQ(master.sizes(), store.tensor(name).sizes());
    EXPECT_TRUE(master.equal(store.tensor(name).to(at::kFloat)));
    EXPECT_EQ(state.at(std::string("exp_avg.") + name).abs().max().item<float>(), 0.0F);
    EXPECT_EQ(state.at(std::string("exp_avg_sq.") + name).abs().max().item<float>(), 0.0F);
  }
}

TEST_P(OffloadTest, StateOfEitherModeContinuesInTheOther) {
  for (const bool to_offloaded : {true, false}) {
    CountingHostMemory host_memory;
    const std::optional<OptimizerOffload> offload = OptimizerOffload{.host_memory = host_memory, .piece_elements = 20};
    weights::WeightStore store = random_store(kSmallShapes, GetParam(), 1);
    weights::WeightStore other = random_store(kSmallShapes, GetParam(), 99);
    AdamW first({}, store, test_ops(), to_offloaded ? std::nullopt : offload);
    AdamW second({}, other, test_ops(), to_offloaded ? offload : std::nullopt);
    random_step(first, store, 2);
    for (const auto& [name, tensor] : named_state(second)) tensor.copy_(named_state(first).at(name));
    second.restore(first.num_steps());
    expect_same_optimizer(first, store, second, other);
    random_step(first, store, 3);
    random_step(second, other, 3);
    expect_same_optimizer(first, store, second, other);
  }
}

// Remembers the addresses of the moments that it was given.
class WatchingOps final : public sim::ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void adamw(const at::Tensor& weight, const at::Tensor& master, const at::Tensor& grad, const at::Tensor& m,
             const at::Tensor& v, const AdamW& p) const override {
    EXPECT_EQ(m.storage().data(), v.storage().data());
    storages.insert(m.storage().data());
    storage_bytes = static_cast<int64_t>(m.storage().nbytes());
    storage = m.storage().getWeakStorageImpl();
    inner_.adamw(weight, master, grad, m, v, p);
  }
  mutable std::set<const void*> storages;
  mutable int64_t storage_bytes = 0;
  mutable c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
};

TEST_P(OffloadTest, TakesWhatThePlanSays) {
  const TestModel m = make_small_model(GetParam(), true, test_ops());
  for (const int64_t piece : {kOffloadPieceElements, int64_t{1000}, int64_t{333}}) {
    CountingHostMemory host_memory;
    const WatchingOps ops(test_ops());
    AdamW adamw({}, *m.store, ops, OptimizerOffload{.host_memory = host_memory, .piece_elements = piece});
    random_step(adamw, *m.store, 1);
    const OffloadBytes plan = offload_bytes(m.store->layout(), m.config.dtype, piece);
    EXPECT_EQ(host_memory.allocated_bytes(), plan.pinned_host);
    EXPECT_EQ(ops.storage_bytes, plan.device_buffers);
    EXPECT_EQ(ops.storages.size(), 1U) << "one allocation for the whole step";
    EXPECT_TRUE(ops.storage.expired()) << "freed after the step";
  }
}

TEST_P(OffloadTest, AHostWithoutRoomIsNamedAtEachUse) {
  CountingHostMemory real;
  for (const bool for_good : {false, true}) {
    device::FailingHostMemory full(real, 0, for_good);
    weights::WeightStore store = random_store(kSmallShapes, GetParam(), 1);
    const at::Tensor before = store.tensor("matrix").clone();
    AdamW adamw({}, store, test_ops(), OptimizerOffload{.host_memory = full});
    adamw.begin_step();
    const auto uses = {std::function<void()>([&] { adamw.step(0.1, 1.0); }),
                       std::function<void()>([&] { adamw.state(); }), std::function<void()>([&] { adamw.restore(1); })};
    for (const auto& use : uses) {
      const std::string error = base::thrown_by<EnvironmentError>(use);
      EXPECT_TRUE(contains(error, std::to_string(num_kinds() * 56 * 4) + " bytes")) << error;
      EXPECT_TRUE(contains(error, "drop --offload-optimizer")) << error;
    }
    EXPECT_EQ(adamw.num_steps(), 0);
    EXPECT_TRUE(store.tensor("matrix").equal(before));
  }
  EXPECT_EQ(real.allocated_bytes(), 0);
}

TEST_P(OffloadTest, WhateverCallFailsNoHalfStepIsSaved) {
  weights::WeightStore expected_store = random_store(kSmallShapes, GetParam(), 1);
  AdamW expected({}, expected_store, test_ops());
  for (const uint32_t seed : {2U, 3U}) random_step(expected, expected_store, seed);

  base::set_log_terminal([](const std::string&) {});  // memory that cannot be given back is an error on stderr
  int num_lost = 0, num_half_updated = 0;
  for (const bool for_good : {false, true}) {
    bool has_failed = true;
    for (int64_t k = 0; has_failed; ++k) {
      SCOPED_TRACE("call " + std::to_string(k) + (for_good ? ", for good" : ""));
      CountingHostMemory real(Copies::kLateInFirst);
      device::FailingHostMemory failing(real, k, for_good);
      {
        weights::WeightStore store = random_store(kSmallShapes, GetParam(), 1);
        const LateOps ops(test_ops());
        AdamW adamw({}, store, ops,
                    OptimizerOffload{
                        .host_memory = failing, .synchronize = [&ops] { ops.synchronize(); }, .piece_elements = 20});
        bool is_whole = true;
        for (const uint32_t seed : {2U, 3U}) {
          const auto step = [&] { random_step(adamw, store, seed); };
          std::string error = base::thrown_by<EnvironmentError>(step);
          if (error.empty()) continue;
          ++num_lost;
          EXPECT_TRUE(contains(error, "the optimizer step is lost: ")) << error;
          EXPECT_TRUE(contains(error, k == 0 ? "drop --offload-optimizer" : "injected")) << error;
          EXPECT_TRUE(for_good || real.num_queued() == 0);
          is_whole = !contains(error, kHalfUpdated);
          if (!is_whole) {
            ++num_half_updated;
            EXPECT_TRUE(contains(base::thrown_by<EnvironmentError>(step), kHalfUpdated));
            EXPECT_TRUE(contains(base::thrown_by<EnvironmentError>([&] { adamw.state(); }), kHalfUpdated));
            EXPECT_TRUE(contains(base::thrown_by<EnvironmentError>([&] { adamw.restore(1); }), kHalfUpdated));
            break;
          }
          // Nothing was written: the step may be taken again, unless its memory never came.
          error = base::thrown_by<EnvironmentError>(step);
          is_whole = error.empty();
          EXPECT_EQ(is_whole, !for_good && k > 0) << error;
          if (!is_whole) break;
        }
        if (is_whole) expect_same_optimizer(adamw, store, expected, expected_store);
        has_failed = failing.has_failed();
        adamw.gradients().release();
      }
      EXPECT_EQ(real.allocated_bytes(), 0);
    }
  }
  base::set_log_terminal({});
  EXPECT_GT(num_half_updated, 2 * num_kinds() * 4);
  EXPECT_GT(num_lost, num_half_updated);
}

// Fails the k-th update with an error of its own.
class ThrowingOps final : public sim::ForwardingOps {
 public:
  ThrowingOps(const device::Ops& inner, int k) : ForwardingOps(inner), left_(k) {}
  void adamw(const at::Tensor& weight, const at::Tensor& master, const at::Tensor& grad, const at::Tensor& m,
             const at::Tensor& v, const AdamW& p) const override {
    if (left_-- == 0) throw std::runtime_error("the kernel");
    inner_.adamw(weight, master, grad, m, v, p);
  }

 private:
  mutable int left_;
};

TEST_P(OffloadTest, AnUpdateThatThrowsLeavesNoCopyUnderWay) {
  for (const bool offloads : {false, true}) {
    for (int k = 0; k < (offloads ? 4 : 2); ++k) {
      CountingHostMemory host_memory(Copies::kLateOutFirst);
      weights::WeightStore store = random_store(kSmallShapes, GetParam(), 1);
      const ThrowingOps ops(test_ops(), k);
      const OptimizerOffload offload{.host_memory = host_memory, .piece_elements = 20};
      AdamW adamw({}, store, ops, offloads ? std::optional(offload) : std::nullopt);
      EXPECT_THROW(random_step(adamw, store, 2), std::runtime_error);
      EXPECT_EQ(host_memory.num_queued(), 0U);
      EXPECT_TRUE(contains(base::thrown_by<EnvironmentError>([&] { adamw.state(); }), kHalfUpdated));
    }
  }
}

// Takes whole steps of a trainer in either way, with phases that end between them, a step that is skipped and, as the
// first after a restart, one without a gradient.
TEST_P(OffloadTest, ATrainerTakesTheSameStepsAndLoadsWhatTheOtherSaved) {
  CountingHostMemory host_memory(Copies::kLateInFirst);
  const std::optional<OptimizerOffload> offload = OptimizerOffload{.host_memory = host_memory, .piece_elements = 700};
  TestModel a = make_small_model(GetParam(), true, test_ops()), b = make_small_model(GetParam(), true, test_ops());
  TrainerConfig config;
  config.schedule.max_lr = 1e-2;
  {
    std::unique_ptr<Trainer> resident = make_trainer(config, *a.store, *a.model);
    std::unique_ptr<Trainer> offloaded = make_trainer(config, *b.store, *b.model, offload);
    for (const uint32_t seed : {1U, 2U, 3U, 4U, 5U}) {
      std::vector<rl::Sample> samples = random_samples(seed, 2, 3);
      if (seed == 2) samples[0].advantages.assign(samples[0].completion.size(), NAN);
      if (seed == 4) {
        for (rl::Sample& sample : samples) sample.advantages.assign(sample.completion.size(), 0.0);
      }
      const Metrics metrics = resident->step(pointers(samples));
      EXPECT_EQ(metrics.at("zero_gradient"), seed == 4 ? 1.0 : 0.0);
      EXPECT_EQ(metrics.at("step_skipped"), seed == 2 ? 1.0 : 0.0);
      // Texts are compared because NaN is not equal to itself.
      EXPECT_EQ(fmt::format("{}", offloaded->step(pointers(samples))), fmt::format("{}", metrics));
      offloaded->end_phase();
      EXPECT_EQ(offloaded->progress(), resident->progress());
      for (const auto& packed : a.store->layout().tensors) {
        EXPECT_TRUE(a.store->tensor(packed.name).equal(b.store->tensor(packed.name))) << packed.name;
      }
      if (seed != 3) continue;
      // Each continues as the other, from what the other would have saved.
      std::map<std::string, at::Tensor> saved;
      for (const auto& [name, tensor] : named_state(*offloaded)) saved[name] = tensor.clone();
      const OptimizerProgress progress = offloaded->progress();
      resident.reset();
      offloaded.reset();
      EXPECT_EQ(host_memory.allocated_bytes(), 0);
      resident = make_trainer(config, *a.store, *a.model);
      offloaded = make_trainer(config, *b.store, *b.model, offload);
      for (const auto& trainer : {resident.get(), offloaded.get()}) {
        for (const auto& [name, tensor] : named_state(*trainer)) tensor.copy_(saved.at(name));
        trainer->restore(progress);
      }
    }
  }
  EXPECT_EQ(host_memory.allocated_bytes(), 0);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, OffloadTest, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace tandem::trainer
