// Workers that copy new weights while they sample.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>

#include "tests/rollout_worker/new_weights.h"

namespace tandem::rollout_worker {
namespace {

class CopiesAhead : public NewWeights {
 protected:
  std::unique_ptr<ScriptedWorker> joined_ahead(sampling::Connections& workers, size_t which) {
    return joined(workers, which, mesh::machine_id(), /*copies_ahead=*/true);
  }
  // Calls update_weights() while a thread polls, as a live rollout does: until the pause, and until all have copied.
  // Returns once that is over. `in_pause` is called when the thread has ended.
  void update_live(
      sampling::Connections& workers, const std::function<void()>& in_pause = [] {}) {
    std::atomic<bool> is_pausing = false;
    std::future<void> polls = beside([&] {
      while (!is_pausing || workers.are_copying()) workers.poll(0.05, events_);
    });
    workers.update_weights([&] {
      is_pausing = true;
      polls.get();
      in_pause();
    });
  }
};

TEST_F(CopiesAhead, BeforeThePauseAndNothingThatTheySayIsLost) {
  const auto workers = listen();
  const auto ahead = joined_ahead(*workers, 0);
  const auto other = joined(*workers, 1);  // it copies in the pause
  for (int update = 0; update < 2; ++update) {
    SCOPED_TRACE(update);
    train();
    events_ = {};
    ahead->num_copied_ahead = 0;
    const weights::WeightStore& store = sessions_[0]->trained();
    const at::Tensor before = store.storage().clone();
    std::future<void> samples = beside([&] {
      const sampling::Message copy = ahead->next();
      for (uint64_t i = 0; i < 50; ++i) ahead->say(sampling::Pull{.rollout = 0, .count = 1});
      ahead->take(copy);
      ahead->take_weights();
    });
    std::future<void> other_takes = beside([&] { other->take_weights(); });
    update_live(*workers, [&] {
      EXPECT_EQ(ahead->num_copied_ahead, 1);
      EXPECT_EQ(events_.num_said, 50);
      EXPECT_TRUE(store.is_whole()) << "it samples with the weights before";
      EXPECT_EQ(std::memcmp(before.const_data_ptr(), store.storage().const_data_ptr(), before.nbytes()), 0);
    });
    samples.get();
    other_takes.get();
    expect_same_weights(0);
    expect_same_weights(1);
    EXPECT_EQ(other->num_copied_ahead, 0);
  }
  EXPECT_EQ(events_.num_lost, 0);
}

TEST_F(CopiesAhead, WithoutARolloutNobodyWaitsForTheCopy) {
  const auto workers = listen();
  const auto ahead = joined_ahead(*workers, 0);
  train();
  update(*workers, {[&] {
    ahead->say(sampling::Pull{.rollout = 0, .count = 1});
    ahead->take_weights();
  }});
  EXPECT_EQ(events_.num_said, 0);
  EXPECT_EQ(events_.num_lost, 0);
  expect_same_weights(0);
}

TEST_F(CopiesAhead, OneThatDiesMeanwhileIsMissedByNobody) {
  for (const bool is_polled : {true, false}) {
    SCOPED_TRACE(is_polled);
    events_ = {};
    const auto workers = listen();
    auto dying = joined_ahead(*workers, 0);
    const auto other = joined_ahead(*workers, 1);
    train();
    std::future<void> dies = beside([&] {
      EXPECT_TRUE(std::get<sampling::CopyWeights>(dying->next()).is_ahead);
      dying.reset();
    });
    std::future<void> takes = beside([&] { other->take_weights(); });
    if (is_polled) {
      update_live(*workers);
    } else {
      workers->update_weights();
    }
    dies.get();
    takes.get();
    workers->poll(0.0, events_);
    EXPECT_EQ(events_.num_lost, 1);
    EXPECT_EQ(workers->ready().size(), 1U);
    expect_same_weights(1);
  }
}

TEST_F(CopiesAhead, OneThatIsSilentIsLostInItsTime) {
  const auto workers = listen(/*silence_s=*/1.0);
  const auto silent = joined_ahead(*workers, 0);
  const auto other = joined_ahead(*workers, 1);
  train();
  const auto begin = base::Clock::now();
  std::future<void> takes = beside([&] { other->take_weights(); });
  update_live(*workers);
  takes.get();
  EXPECT_GE(base::seconds_since(begin), 0.9);
  EXPECT_LT(base::seconds_since(begin), 10.0);
  workers->poll(0.0, events_);
  EXPECT_EQ(events_.num_lost, 1);
  expect_same_weights(1);
}

TEST_F(CopiesAhead, AnotherVersionIsRefused) {
  const auto workers = listen();
  const auto lying = joined_ahead(*workers, 0);
  train();
  std::future<void> lies = beside([&] {
    const auto copy = std::get<sampling::CopyWeights>(lying->next());
    lying->say(sampling::CopiedWeights{copy.version - 1});
  });
  update_live(*workers);
  lies.get();
  workers->poll(0.0, events_);
  EXPECT_EQ(events_.num_lost, 1);
  EXPECT_TRUE(workers->ready().empty());
}

TEST_F(CopiesAhead, ATornCopyNeverSamples) {
  memory_->set_seen([](const at::Tensor& bytes) { return bytes.clone(); });
  const auto workers = listen(/*silence_s=*/20.0, /*num_started=*/1);
  const auto torn = joined_ahead(*workers, 0);
  train();
  std::future<void> takes = beside([&] {
    try {
      torn->take_weights();
      ADD_FAILURE() << "the copy is an old one";
    } catch (const EnvironmentError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("changed while they were copied"));
      torn->say(sampling::Failed{.why = error.what()});
    }
  });
  update_live(*workers, [] { EXPECT_NO_THROW(sessions_[0]->trained().view()); });
  takes.get();
  EXPECT_THROW(sessions_[0]->trained().view(), BugError);
  workers->poll(0.0, events_);
  EXPECT_EQ(events_.num_lost, 1);
}

}  // namespace
}  // namespace tandem::rollout_worker
