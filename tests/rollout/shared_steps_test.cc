// Tests of engines that share experts: whatever each rank has to do, and when, its groups are those of an engine by
// itself, bit for bit.
#include "rollout/shared_steps.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "tests/device/ranks/thread_communicator.h"
#include "tests/rollout/engine_fixture.h"

namespace tandem::rollout {
namespace {

// Counts the layers that ranks computed together.
class CountedExchange final : public device::ExpertExchange {
 public:
  explicit CountedExchange(std::unique_ptr<device::ExpertExchange> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  at::Tensor gather(const at::Tensor& own_RE) override {
    ++num_layers;
    return inner_->gather(own_RE);
  }
  at::Tensor results(const at::Tensor& rows, const device::Routing& routing) override {
    return inner_->results(rows, routing);
  }
  at::Tensor sum(const at::Tensor& y_PE, const device::Routing& routing, const at::Tensor& residual_RE) override {
    return inner_->sum(y_PE, routing, residual_RE);
  }

  int64_t num_layers = 0;

 private:
  const std::unique_ptr<device::ExpertExchange> inner_;
};

// A group that a rank's engine gets after so many steps.
struct Arrival {
  int64_t step;
  GroupRequest request;
};
using Arrivals = std::vector<Arrival>;

struct SharedCase {
  at::ScalarType dtype = at::kFloat;
  bool records = false;
  int64_t lookahead = 0;
};
void PrintTo(const SharedCase& c, std::ostream* out) {
  *out << c.dtype << (c.records ? " recorded" : "") << " lookahead " << c.lookahead;
}

class SharedStepsTest : public testing::TestWithParam<SharedCase> {
 protected:
  EngineConfig engine_config() const {
    EngineConfig config;
    config.num_kv_blocks = 64;
    config.limits = {.max_batch_tokens = 24, .max_running = 6, .max_draft_tokens = 3};
    config.record_steps = GetParam().records;
    config.lookahead = GetParam().lookahead;
    return config;
  }

  // Runs the engine of a rank until its groups are finished and the others have left, too.
  void run_rank(const Arrivals& arrivals, Engine& engine, std::map<uint64_t, rl::Group>& finished) {
    size_t num_added = 0;
    for (int64_t step = 0; finished.size() < arrivals.size(); ++step) {
      for (; num_added < arrivals.size() && arrivals[num_added].step <= step; ++num_added) {
        engine.add(arrivals[num_added].request);
      }
      engine.step();
      while (static_cast<int64_t>(num_added - finished.size()) > engine.num_unfinished_groups()) {
        rl::Group group = engine.next_finished().value();
        const uint64_t id = group.group_id;
        finished.emplace(id, std::move(group));
      }
    }
    engine.leave_shared_steps();
  }

  // Runs one engine for each rank, twice, and compares every group. Returns the layers that were computed together.
  int64_t expect_groups_of_one_engine(const std::vector<Arrivals>& of_ranks) {
    const model::ModelConfig config = make_small_model(GetParam().dtype, 1, "Qwen3MoeForCausalLM").config;
    const auto devices = device::thread_communicators(static_cast<int>(of_ranks.size()));
    const auto hosts = device::thread_communicators(static_cast<int>(of_ranks.size()));
    std::vector<std::map<uint64_t, rl::Group>> finished(of_ranks.size());
    std::vector<int64_t> num_layers(of_ranks.size());
    {
      std::vector<std::jthread> threads;
      for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
        threads.emplace_back([&, rank] {
          const std::unique_ptr<device::Ops> ops = device::make_cpu_ops("auto", 1);
          const TestModel model = model::random_model(config, *ops);
          CountedExchange exchange(device::make_expert_exchange(*ops, *devices[rank], *hosts[rank],
                                                                {.experts = config.experts->count,
                                                                 .chosen = config.experts->chosen,
                                                                 .hidden = config.hidden,
                                                                 .most_rows = 16,
                                                                 .dtype = GetParam().dtype}));
          SharedSteps steps(*hosts[rank], exchange);
          EngineConfig own = engine_config();
          own.shared_steps = &steps;
          const std::unique_ptr<Engine> engine = make_engine(own, *model.model);
          for (int rollout = 0; rollout < 2; ++rollout) {
            finished[rank].clear();
            run_rank(of_ranks[rank], *engine, finished[rank]);
          }
          num_layers[rank] = exchange.num_layers;
        });
      }
    }
    const TestModel alone = make_small_model(GetParam().dtype, 1, "Qwen3MoeForCausalLM");
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
      SCOPED_TRACE(fmt::format("rank {}", rank));
      EXPECT_EQ(num_layers[rank], num_layers[0]);
      for (const Arrival& arrival : of_ranks[rank]) {
        const uint64_t id = arrival.request.group_id;
        expect_same_group(finished[rank].at(id), run_alone(*alone.model, arrival.request));
      }
    }
    return num_layers[0];
  }
};

INSTANTIATE_TEST_SUITE_P(Engines, SharedStepsTest,
                         testing::Values(SharedCase{}, SharedCase{.dtype = at::kBFloat16},
                                         SharedCase{.dtype = at::kBFloat16, .records = true, .lookahead = 1}));

TEST_P(SharedStepsTest, RanksWithUnequalRows) {
  EXPECT_GT(expect_groups_of_one_engine(
                {{{0, request_of(1, 5, 4, 12)}, {0, request_of(2, 30, 1, 20)}}, {{0, request_of(3, 7, 1, 6)}}}),
            2 * 2 * 10);
}

TEST_P(SharedStepsTest, ARankWithoutARowComputesForTheOthers) {
  EXPECT_GT(expect_groups_of_one_engine({{}, {{0, request_of(1, 5, 2, 10)}}}), 2 * 2 * 5);
}

// A rank is idle in between, finishes before the others, or begins a long prompt while they decode.
TEST_P(SharedStepsTest, GroupsThatComeLate) {
  EXPECT_GT(expect_groups_of_one_engine({{{0, request_of(1, 3, 2, 4)}, {12, request_of(2, 60, 2, 9)}},
                                         {{0, request_of(3, 9, 3, 30)}},
                                         {{5, request_of(4, 9, 1, 5)}, {6, request_of(5, 20, 8, 3)}},
                                         {}}),
            2 * 2 * 10);
}

}  // namespace
}  // namespace tandem::rollout
