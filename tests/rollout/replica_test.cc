// Tests of a tensor-parallel group's engines, which are called through the first rank's: all of them do the same work,
// and the result is that of one engine.
#include "rollout/replica.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <atomic>
#include <random>
#include <thread>

#include "tandem/error.h"
#include "tests/device/ranks/thread_communicator.h"
#include "tests/rollout/engine_fixture.h"

namespace tandem::rollout {
namespace {

constexpr int kRanks = 3;

// The same model for each rank, with operations of its own, since operations belong to one thread.
struct RankModels {
  explicit RankModels(int count) {
    const model::ModelConfig config = make_small_model(at::kFloat).config;
    for (int rank = 0; rank < count; ++rank) {
      ops.push_back(device::make_cpu_ops("auto", 1));
      models.push_back(model::random_model(config, *ops.back()));
    }
  }
  model::Model& operator[](size_t rank) const { return *models[rank].model; }

  std::vector<std::unique_ptr<device::Ops>> ops;
  std::vector<TestModel> models;
};

GroupRequest drawn_request(uint64_t id, std::mt19937& random) {
  GroupRequest request{
      .group_id = id, .prompt = random_prompt(random(), 3 + random() % 20), .sample_ids = {}, .sampling = {}};
  for (uint64_t i = 0; i < 1 + random() % 3; ++i) request.sample_ids.push_back(8 * id + i);
  request.sampling.max_new_tokens = 1 + random() % 24;
  request.sampling.temperature = random() % 4 == 0 ? 0.0 : 1.0;
  request.sampling.seed = 11;
  return request;
}

// Uses an engine in a way drawn by `seed` and returns the groups that came out.
std::map<uint64_t, rl::Group> use(Engine& engine, uint32_t seed) {
  std::mt19937 random(seed);
  std::map<uint64_t, rl::Group> finished;
  uint64_t num_added = 0;
  const auto take = [&] {
    rl::Group group = engine.next_finished().value();
    const uint64_t id = group.group_id;
    finished.emplace(id, std::move(group));
  };
  while (num_added < 12 || engine.num_unfinished_groups() > 0) {
    switch (random() % 8) {
      case 0:
      case 1:
        if (num_added < 12) engine.add(drawn_request(num_added++, random));
        break;
      case 2:
        if (num_added > 0 && random() % 4 == 0) engine.abort(random() % num_added);
        break;
      case 3:
        if (random() % 8 == 0) engine.abort_all();
        break;
      default: engine.step();
    }
    while (static_cast<int64_t>(num_added - finished.size()) > engine.num_unfinished_groups()) take();
  }
  return finished;
}

std::string counts(const EngineStats& stats) {
  return fmt::format("{} tokens, {} prefilled, {} recomputed, {} forwards, {} preemptions, {} of {} drafts right",
                     stats.generated_tokens, stats.prefill_tokens, stats.recomputed_tokens, stats.forwards,
                     stats.preemptions, stats.right_drafts, stats.draft_tokens);
}

TEST(Replica, AllRanksDoWhatTheFirstIsAsked) {
  // There are so few blocks that sequences are preempted.
  EngineConfig config;
  config.num_kv_blocks = 16;
  config.limits = {.max_batch_tokens = 48, .max_running = 6, .max_draft_tokens = 7};
  std::random_device entropy;
  int64_t num_drafts = 0;
  // A few rounds may give no text to guess from.
  for (int round = 0; round < 4 || (num_drafts == 0 && round < 40); ++round) {
    const uint32_t seed = entropy();
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const auto communicators = device::thread_communicators(kRanks);
    std::vector<std::string> of_ranks(kRanks);
    std::map<uint64_t, rl::Group> finished;
    const RankModels models(kRanks + 1);
    {
      std::vector<std::jthread> threads;
      for (size_t rank = 0; rank < kRanks; ++rank) {
        threads.emplace_back([&, rank] {
          const std::unique_ptr<Engine> engine = make_engine(config, models[rank]);
          for (uint32_t rollout = 0; rollout < 2; ++rollout) {  // follow() returns, and may be called again
            if (rank > 0) {
              follow(*engine, *communicators[rank]);
            } else {
              LeadingEngine leading(*engine, *communicators[0]);
              finished = use(leading, seed + rollout);
              leading.end();
            }
          }
          of_ranks[rank] = counts(engine->stats());
        });
      }
    }
    for (const std::string& of_rank : of_ranks) EXPECT_EQ(of_rank, of_ranks[0]);
    const std::unique_ptr<Engine> alone = make_engine(config, models[kRanks]);
    use(*alone, seed);
    const std::map<uint64_t, rl::Group> expected = use(*alone, seed + 1);
    EXPECT_EQ(counts(alone->stats()), of_ranks[0]);
    num_drafts += alone->stats().draft_tokens;
    ASSERT_EQ(finished.size(), expected.size());
    for (const auto& [id, group] : expected) expect_same_group(finished.at(id), group);
  }
  EXPECT_GT(num_drafts, 0) << "each rank guesses the same tokens";
}

TEST(Replica, ARequestThatIsRefusedIsNotPassedOn) {
  const auto communicators = device::thread_communicators(2);
  const RankModels models(2);
  std::jthread follower([&] {
    const std::unique_ptr<Engine> engine = make_engine({}, models[1]);
    follow(*engine, *communicators[1]);
  });
  const std::unique_ptr<Engine> engine = make_engine({}, models[0]);
  LeadingEngine leading(*engine, *communicators[0]);
  GroupRequest request{.group_id = 1, .prompt = random_prompt(1, 4), .sample_ids = {1}, .sampling = {}};
  request.sampling.top_p = 2.0;
  EXPECT_THROW(leading.add(request), UserError);
  request.sampling.top_p = 1.0;
  leading.add(request);
  EXPECT_TRUE(leading.next_finished().has_value());
  EXPECT_FALSE(leading.next_finished().has_value());
  leading.end();
}

// It may ask while groups are in flight, too.
TEST(Replica, TheFirstAsksWhatTheOthersSay) {
  const auto communicators = device::thread_communicators(2);
  const RankModels models(2);
  std::atomic<bool> says = false;
  std::jthread follower([&] {
    const std::unique_ptr<Engine> engine = make_engine({}, models[1]);
    follow(*engine, *communicators[1], [&] { return says.load(); });
  });
  const std::unique_ptr<Engine> engine = make_engine({}, models[0]);
  LeadingEngine leading(*engine, *communicators[0]);
  EXPECT_FALSE(leading.any_says(false));
  EXPECT_TRUE(leading.any_says(true));
  leading.add({.group_id = 1, .prompt = random_prompt(1, 4), .sample_ids = {1}, .sampling = {}});
  leading.step();
  says = true;
  EXPECT_TRUE(leading.any_says(false));
  EXPECT_TRUE(leading.next_finished().has_value());
  leading.end();
}

TEST(Replica, ACallComesThroughAsItIs) {
  GroupRequest request{.group_id = 7, .prompt = rl::make_prompt({1, 2, 3}), .sample_ids = {4, 5}, .sampling = {}};
  request.sampling = {.temperature = 0.5,
                      .top_p = 0.25,
                      .top_k = 3,
                      .min_p = 0.125,
                      .max_new_tokens = 9,
                      .max_context_tokens = 99,
                      .stop_token_ids = {8, 6},
                      .stop = {"a", "", "\n"},
                      .ignore_eos = true,
                      .seed = 1234567890123};
  request.owner = PrefixOwner{.group_id = 21, .sample_id = 22};
  const std::string bytes = to_bytes({request, PlainCall{PlainCallKind::kStep}, AbortCall{.group_id = 1},
                                      ReleaseCall{.sample_id = 2}, PlainCall{PlainCallKind::kEnd}});
  const std::vector<ReplicaCall> calls = replica_calls(bytes);
  EXPECT_EQ(to_bytes(calls), bytes);
  ASSERT_EQ(calls.size(), 5U);
  const auto& got = std::get<GroupRequest>(calls[0]);
  EXPECT_EQ(got.prompt->tokens, request.prompt->tokens);
  EXPECT_EQ(got.sampling.stop, request.sampling.stop);
  EXPECT_EQ(got.sampling.seed, request.sampling.seed);
  EXPECT_EQ(got.owner->sample_id, 22U);
  for (size_t cut = 0; cut < bytes.size(); ++cut) EXPECT_THROW(replica_calls(bytes.substr(0, cut)), EnvironmentError);
  std::string changed = bytes;
  changed[bytes.size() / 2] ^= 1;
  EXPECT_THROW(replica_calls(changed), EnvironmentError);
}

}  // namespace
}  // namespace tandem::rollout
