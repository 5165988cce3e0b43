// Tests that completions are the same, bit for bit, one step ahead or not, recorded or not, guessed or not, over drawn
// mixes of everything that an engine can be asked. A failure prints its seed.
#include <gtest/gtest.h>

#include <ATen/Context.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "device/registry.h"
#include "tests/rollout/ahead_ops.h"
#include "tests/rollout/engine_fixture.h"

namespace tandem::rollout {
namespace {

constexpr uint32_t kNumSeeds = 70;

TestModel make_model_on(const device::Ops& ops) {
  model::ModelConfig config = model::small_config(/*num_layers=*/1);
  config.vocab = 64;
  config.max_positions = 1024;
  config.eos_token_ids = {1};
  return model::random_model(config, ops);
}

// New memory holds NaN and large numbers, as a device's may.
class PoisonedMemory {
 public:
  PoisonedMemory() { set(true); }
  ~PoisonedMemory() { set(false); }
  PoisonedMemory(const PoisonedMemory&) = delete;
  PoisonedMemory& operator=(const PoisonedMemory&) = delete;

 private:
  static void set(bool on) {
    at::globalContext().setDeterministicAlgorithms(on, /*warn_only=*/true);
    at::globalContext().setDeterministicFillUninitializedMemory(on);
  }
};

struct Event {
  int64_t num_steps = 0;                 // steps before the event
  std::optional<uint64_t> aborted = {};  // a group
};

// Groups, each followed by an event, and an engine of a size that may be too small for them. Each draw is a statement
// of its own, or the mixes would depend on the order in which a compiler evaluates operands.
struct Mix {
  EngineConfig engine;
  std::vector<GroupRequest> requests;
  std::vector<Event> events;

  explicit Mix(uint32_t seed) {
    std::mt19937 random(seed);
    const auto below = [&random](uint64_t n) { return static_cast<int64_t>(random() % n); };
    for (int t = 0; t < 60; ++t) engine.token_bytes.push_back({static_cast<char>('a' + t % 26)});
    engine.limits.max_batch_tokens = 1 + below(70);
    engine.limits.max_running = 1 + below(20);
    const int64_t factor = below(3);
    engine.num_kv_blocks = 6 + factor * below(12);  // the longest sequence has 90 tokens
    engine.limits.max_draft_tokens = seed % 3 == 0 ? 0 : seed % kMostDraftRows;
    const int64_t num_groups = 1 + below(6);
    for (int64_t g = 0; g < num_groups; ++g) {
      GroupRequest request;
      request.group_id = static_cast<uint64_t>(g);
      const int64_t lengths[] = {1, 2, 15, 16, 17, 31, 40};
      const int64_t length = lengths[below(7)];
      request.prompt = random_prompt(static_cast<uint32_t>(random()), length);
      for (int64_t n = 1 + below(below(4) == 0 ? 12 : 4); n > 0; --n)
        request.sample_ids.push_back(request.group_id * 20 + static_cast<uint64_t>(n));
      request.sampling = random_sampling(random);
      requests.push_back(request);
      Event event{.num_steps = below(8)};
      if (below(9) == 0) event.aborted = static_cast<uint64_t>(below(static_cast<uint64_t>(g) + 1));
      events.push_back(event);
    }
  }

  static rl::SamplingParams random_sampling(std::mt19937& random) {
    rl::SamplingParams sampling;
    const double temperatures[] = {0.0, 0.7, 1.0, 1.0, 1.5};
    sampling.temperature = temperatures[random() % 5];
    if (random() % 4 == 0) sampling.top_p = 0.9;
    if (random() % 4 == 0) sampling.top_k = 20;
    if (random() % 4 == 0) sampling.min_p = 0.05;
    const uint64_t most = random() % 3 == 0 ? 50 : 8;
    sampling.max_new_tokens = 1 + static_cast<int64_t>(random() % most);
    sampling.ignore_eos = random() % 3 == 0;
    if (random() % 3 == 0) sampling.stop_token_ids = {static_cast<int32_t>(random() % 64)};
    if (random() % 3 == 0) sampling.stop = {std::string(1, static_cast<char>('a' + random() % 26)), "qqq"};
    sampling.seed = random() % 3;
    return sampling;
  }
};

void play(Engine& engine, const Event& event) {
  for (int64_t i = 0; i < event.num_steps; ++i) engine.step();
  if (event.aborted) engine.abort(*event.aborted);
}

std::map<uint64_t, rl::Group> run(Engine& engine, const Mix& mix) {
  for (size_t i = 0; i < mix.requests.size(); ++i) {
    engine.add(mix.requests[i]);
    play(engine, mix.events[i]);
  }
  return finish_all(engine);
}

// Expects that an aborted group is the beginning of the whole one.
void expect_beginning(const rl::Group& part, const rl::Group& whole) {
  for (size_t i = 0; i < whole.completions.size(); ++i) {
    const rl::Completion &a = part.completions[i], &b = whole.completions[i];
    if (a.finish_reason != rl::FinishReason::kAbort) {
      expect_same_completion(a, b);
      continue;
    }
    ASSERT_LE(a.tokens.size(), b.tokens.size());
    EXPECT_TRUE(std::equal(a.tokens.begin(), a.tokens.end(), b.tokens.begin()));
    EXPECT_TRUE(std::equal(a.logprobs.begin(), a.logprobs.end(), b.logprobs.begin()));
    ASSERT_LE(a.behavior_logprobs.size(), b.behavior_logprobs.size());
    EXPECT_TRUE(std::equal(a.behavior_logprobs.begin(), a.behavior_logprobs.end(), b.behavior_logprobs.begin()));
  }
}

struct Variant {
  int64_t lookahead;
  bool record_steps;
};

TEST(Lookahead, ChangesNoBitOfACompletionNorDoRecordingAndDrafts) {
  const TestModel plain = make_model_on(test_ops());
  const AheadOps ahead(test_ops());
  const TestModel on_ahead = make_model_on(ahead);
  EngineStats total;
  int64_t num_tokens = 0, num_aborts = 0;
  for (uint32_t seed = 1; seed <= kNumSeeds; ++seed) {
    const Mix mix(seed);
    EngineConfig roomy;
    roomy.token_bytes = mix.engine.token_bytes;
    const std::unique_ptr<Engine> reference = make_engine(roomy, *plain.model);
    for (const GroupRequest& request : mix.requests) reference->add(request);
    const std::map<uint64_t, rl::Group> expected = finish_all(*reference);
    const PoisonedMemory poisoned;
    for (const Variant variant : {Variant{0, false}, Variant{0, true}, Variant{1, false}, Variant{1, true}}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", lookahead " << variant.lookahead
                                      << (variant.record_steps ? ", recorded" : ""));
      EngineConfig config = mix.engine;
      config.lookahead = variant.lookahead;
      config.record_steps = variant.record_steps;
      const std::unique_ptr<Engine> engine = make_engine(config, *on_ahead.model);
      for (int rollout = 0; rollout < (variant.record_steps ? 2 : 1); ++rollout) {
        const std::map<uint64_t, rl::Group> groups = run(*engine, mix);
        ASSERT_EQ(groups.size(), expected.size());
        for (const auto& [id, group] : groups) {
          SCOPED_TRACE(testing::Message() << "group " << id);
          expect_beginning(group, expected.at(id));
          for (const rl::Completion& completion : group.completions) {
            num_tokens += static_cast<int64_t>(completion.tokens.size());
            num_aborts += completion.finish_reason == rl::FinishReason::kAbort ? 1 : 0;
          }
        }
        if (HasFailure()) return;
      }
      const EngineStats stats = engine->stats();
      total.preemptions += stats.preemptions;
      total.recomputed_tokens += stats.recomputed_tokens;
      total.wasted_rows += stats.wasted_rows;
      total.draft_tokens += stats.draft_tokens;
      total.right_drafts += stats.right_drafts;
      total.draft_steps += stats.draft_steps;
      EXPECT_TRUE(variant.lookahead > 0 || stats.wasted_rows == 0);
    }
  }
  // The mixes reach the cases that they are meant to test.
  EXPECT_GT(num_tokens, 15000);
  EXPECT_GT(num_aborts, 30);
  EXPECT_GT(total.preemptions, 150);
  EXPECT_GT(total.recomputed_tokens, 300);
  EXPECT_GT(total.wasted_rows, 150);
  EXPECT_GT(total.right_drafts, 300);
  EXPECT_GT(total.draft_tokens - total.right_drafts, 60);
  EXPECT_GT(ahead.num_recordings(), 150);
  EXPECT_GT(ahead.num_replays(), 3000);
  std::printf(
      "[   info   ] %lld tokens, %lld preemptions, %lld wasted rows, %lld of %lld drafts right, %lld recordings, %lld "
      "replays\n",
      static_cast<long long>(num_tokens), static_cast<long long>(total.preemptions),
      static_cast<long long>(total.wasted_rows), static_cast<long long>(total.right_drafts),
      static_cast<long long>(total.draft_tokens), static_cast<long long>(ahead.num_recordings()),
      static_cast<long long>(ahead.num_replays()));
}

TEST(Lookahead, FollowsTheDeviceUnlessTold) {
  for (const bool runs_ahead : {false, true}) {
    const AheadOps ops(test_ops(), runs_ahead);
    const TestModel m = make_model_on(ops);
    const std::unique_ptr<Engine> engine = make_engine({}, *m.model);
    GroupRequest request = request_of(1, 8, 4, 30);
    request.sampling.ignore_eos = false;
    request.sampling.stop_token_ids = {2, 3, 4, 5, 6, 7, 8, 9};
    engine->add(request);
    finish_all(*engine);
    EXPECT_EQ(engine->stats().wasted_rows > 0, runs_ahead);
    EXPECT_EQ(ops.num_recordings() > 0, runs_ahead);
  }
}

// Lengths are known beforehand: nothing is computed in vain, and nothing is left over.
TEST(Lookahead, WastesNoRowWhereLengthEndsACompletion) {
  const AheadOps ops(test_ops());
  const TestModel m = make_model_on(ops);
  const std::unique_ptr<Engine> engine = make_engine({}, *m.model);
  engine->add(request_of(1, 20, 3, 12));
  finish_all(*engine);
  EXPECT_EQ(engine->stats().wasted_rows, 0);
  EXPECT_EQ(engine->stats().forwards, 12);
  EXPECT_EQ(engine->stats().generated_tokens, 36);
}

// Serves the step memory of every rollout at one address, as an arena does, and counts what is live.
class OneAddress final : public device::AllocatorHook {
 public:
  OneAddress() { driver_.set_tensor_source(this); }
  ~OneAddress() override { driver_.set_tensor_source(nullptr); }
  std::byte* allocate(int64_t bytes) override {
    if (bytes < kStepMemoryBytes || in_use_ || moved) return nullptr;
    in_use_ = true;
    return memory_.data();
  }
  bool free(std::byte* address) override {
    if (address != memory_.data()) return false;
    in_use_ = false;
    return true;
  }
  bool in_use() const { return in_use_; }

  bool moved = false;

 private:
  // No other tensor of the small model is as large.
  static constexpr int64_t kStepMemoryBytes = int64_t{1} << 17;
  device::MemoryDriver driver_ = device::open_memory({});
  std::vector<std::byte> memory_ = std::vector<std::byte>(size_t{1} << 22);
  bool in_use_ = false;
};

TEST(Recordings, LastFromRolloutToRolloutWhileTheStepMemoryStays) {
  const AheadOps ops(test_ops());
  const TestModel m = make_model_on(ops);
  const std::unique_ptr<Engine> engine = make_engine({}, *m.model);
  engine->update_weights(m.store->view());
  OneAddress memory;
  const auto rollout = [&](int64_t prompt_tokens) {
    const int64_t before = ops.num_recordings();
    engine->add(request_of(1, prompt_tokens, 3, 40));
    engine->add(request_of(2, prompt_tokens, 9, 30));
    engine->step();
    EXPECT_EQ(memory.in_use(), !memory.moved);
    finish_all(*engine);
    EXPECT_FALSE(memory.in_use()) << "step memory is held after the rollout";
    return ops.num_recordings() - before;
  };
  EXPECT_EQ(rollout(20), 2);  // buckets of 12 and of 3 rows
  EXPECT_EQ(rollout(20), 0);
  EXPECT_EQ(rollout(30), 0) << "a prompt that is a little longer";
  engine->update_weights(m.store->view());
  EXPECT_EQ(rollout(20), 0) << "the same weights";
  EXPECT_EQ(rollout(300), 2) << "wider block tables";
  EXPECT_EQ(rollout(20), 0);
  const TestModel other = make_model_on(ops);
  engine->update_weights(other.store->view());
  EXPECT_EQ(rollout(20), 2) << "weights that lie elsewhere";
  memory.moved = true;
  EXPECT_EQ(rollout(20), 2) << "step memory that lies elsewhere";
}

TEST(Recordings, AreMadeAnewForAGroupThatIsLongerThanThoseInFlight) {
  const AheadOps ops(test_ops());
  const TestModel m = make_model_on(ops);
  const GroupRequest first = request_of(1, 20, 3, 60), second = request_of(2, 300, 2, 40);
  const rl::Group first_alone = run_alone(*m.model, first), second_alone = run_alone(*m.model, second);
  const std::unique_ptr<Engine> engine = make_engine({}, *m.model);
  engine->add(first);
  for (int i = 0; i < 10; ++i) engine->step();
  engine->add(second);
  const auto groups = finish_all(*engine);
  expect_same_group(groups.at(1), first_alone);
  expect_same_group(groups.at(2), second_alone);
}

}  // namespace
}  // namespace tandem::rollout
