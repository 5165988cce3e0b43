// The processes that sample for rank 0, played by threads of this one: of rollout workers, who has answered has new
// weights, who has not is lost, and nobody is waited for longer than it may be silent; other ranks are there, or the
// run ends.
#include "sampling/processes/connections.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <random>
#include <utility>
#include <vector>

#include "mesh/local_socket.h"
#include "tests/rollout_worker/new_weights.h"

namespace tandem::rollout_worker {
namespace {

// Workers that do not map the weights, which so travel in a chain.
class Chains : public NewWeights {
 protected:
  void SetUp() override {
    memory_->set_seen([](const at::Tensor&) { return at::Tensor(); });
  }
  void join_all(double silence_s = 20.0) {
    connections_ = listen(silence_s, /*num_started=*/static_cast<int64_t>(sessions_.size()));
    for (size_t i = 0; i < sessions_.size(); ++i) workers_.push_back(joined(*connections_, i));
    for (const auto& worker : workers_) worker->num_pieces = 0;
  }
  // Gives them new weights. A worker that dies is gone, and the others have the weights.
  void update_all() {
    train();
    std::vector<std::function<void()>> work;
    for (auto& worker : workers_) {
      if (!worker) continue;
      work.emplace_back([&worker] {
        try {
          worker->take_weights();
        } catch (const Dead&) {
          worker = nullptr;
        }
      });
    }
    update(*connections_, work);
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i]) expect_same_weights(i);
    }
  }
  int num_pieces() const {
    int sum = 0;
    for (const auto& worker : workers_) sum += worker ? worker->num_pieces : 0;
    return sum;
  }

  std::unique_ptr<sampling::Connections> connections_;
  std::vector<std::unique_ptr<ScriptedWorker>> workers_;
};

TEST_F(Chains, LeaveTheRunOnceForAllWorkers) {
  join_all();
  update_all();
  const int once = workers_[0]->num_pieces;
  EXPECT_GT(once, 10);
  EXPECT_EQ(num_pieces(), once);
  for (size_t i = 1; i < workers_.size(); ++i) EXPECT_EQ(workers_[i]->num_passed_pieces, once);
  update_all();
  EXPECT_EQ(num_pieces(), 2 * once);
  EXPECT_EQ(events_.num_lost, 0);
}

// While the workers sample, pieces only wait on them.
TEST_F(Chains, TravelWhileWorkersSample) {
  join_all();
  train();
  std::promise<void> paused;
  const std::shared_future<void> pause = paused.get_future();
  std::atomic<int> num_took = 0;
  std::vector<std::future<void>> work;
  for (auto& worker : workers_) {
    work.push_back(beside([&] {
      worker->take(worker->next());  // its place
      pause.wait();
      worker->take_weights();
      ++num_took;
    }));
  }
  connections_->update_weights([&] {
    for (const auto& worker : workers_) EXPECT_EQ(worker->num_pieces + worker->num_passed_pieces, 0);
    EXPECT_EQ(num_took, 0);
    paused.set_value();
  });
  for (auto& one : work) one.get();
  EXPECT_EQ(num_took, 4);
  for (size_t i = 0; i < workers_.size(); ++i) expect_same_weights(i);
}

// A worker that samples may die before the pause, and another thread then forgets it.
TEST_F(Chains, LeaveOutAWorkerThatDiesBeforeThePause) {
  join_all();
  train();
  std::vector<std::future<void>> work;
  for (size_t i : {0, 2, 3}) work.push_back(beside([this, i] { workers_[i]->take_weights(); }));
  connections_->update_weights([&] {
    workers_[1] = nullptr;
    while (events_.num_lost == 0) connections_->poll(0.05, events_);
  });
  for (auto& one : work) one.get();
  for (const size_t i : {0, 2, 3}) expect_same_weights(i);
  EXPECT_EQ(connections_->ready().size(), 3U);
}

TEST_F(Chains, CloseWhereAWorkerDies) {
  for (size_t dying = 0; dying < sessions_.size(); ++dying) {
    events_ = {};
    workers_.clear();
    join_all();
    workers_[dying]->dies_at_piece = 7;
    update_all();
    EXPECT_EQ(workers_[dying], nullptr);
    EXPECT_EQ(events_.num_lost, 1) << dying;
    EXPECT_EQ(connections_->ready().size(), sessions_.size() - 1);
    for (size_t i = 0; i < dying; ++i) EXPECT_EQ(workers_[i]->num_broken_chains, 0) << i << " of " << dying;
    update_all();  // without it
    EXPECT_EQ(events_.num_lost, 1);
  }
}

TEST_F(Chains, BeginWhereAWorkerIsNotReachedByTheOneBefore) {
  join_all();
  workers_[2]->is_behind_a_wall = true;
  update_all();
  EXPECT_EQ(workers_[2]->num_broken_chains, 1);
  const int num_before = num_pieces();
  update_all();
  EXPECT_EQ(workers_[2]->num_broken_chains, 1);
  EXPECT_EQ(num_pieces() - num_before, workers_[1]->num_passed_pieces) << "two chains, each of which gets all pieces";
  EXPECT_EQ(events_.num_lost, 0);
}

// Somebody of an earlier chain may have connected, and have gone before it was heard.
TEST_F(Chains, AreNotBrokenByWhoIsGone) {
  join_all();
  for (const auto& worker : workers_) mesh::connect_locally(worker->door().name).value();  // closed at once
  update_all();
  for (const auto& worker : workers_) EXPECT_EQ(worker->num_broken_chains, 0);
}

TEST_F(Chains, LeaveOutAWorkerThatIsFrozen) {
  join_all(/*silence_s=*/4.0);
  const std::unique_ptr<ScriptedWorker> frozen = std::exchange(workers_[1], nullptr);
  update_all();
  EXPECT_EQ(events_.num_lost, 1);
  EXPECT_EQ(workers_[2]->num_broken_chains, 1);
  EXPECT_EQ(connections_->ready().size(), sessions_.size() - 1);
}

TEST_F(Chains, SurviveDrawnDeaths) {
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  for (int life = 0; life < 6; ++life) {
    SCOPED_TRACE(fmt::format("seed {}, life {}", seed, life));
    events_ = {};
    workers_.clear();
    join_all();
    int num_dead = 0;
    for (int update = 0; update < 3; ++update) {
      for (const auto& worker : workers_) {
        if (worker && random() % 4 == 0) {
          worker->num_pieces = worker->num_passed_pieces = 0;
          worker->dies_at_piece = 1 + static_cast<int>(random() % 40);
        }
      }
      update_all();
      num_dead =
          static_cast<int>(std::ranges::count_if(workers_, [](const auto& worker) { return worker == nullptr; }));
      EXPECT_EQ(events_.num_lost, num_dead);
    }
    if (num_dead == static_cast<int>(workers_.size())) continue;
    EXPECT_EQ(std::ssize(connections_->ready()), std::ssize(workers_) - num_dead);
  }
}

TEST_F(NewWeights, AreCopiedByWhoMapsThemAndSentToWhoDoesNot) {
  const auto workers = listen();
  const auto mapping = joined(*workers, 0);
  EXPECT_EQ(mapping->num_pieces, 0);
  expect_same_weights(0);
  memory_->set_seen([](const at::Tensor&) { return at::Tensor(); });
  const auto other = joined(*workers, 1);
  EXPECT_GT(other->num_pieces, 10);
  expect_same_weights(1);
  for (int version = 0; version < 3; ++version) {
    train();
    update(*workers, {[&] { mapping->take_weights(); }, [&] { other->take_weights(); }});
    EXPECT_EQ(mapping->num_pieces, 0);
    expect_same_weights(0);
    expect_same_weights(1);
  }
  EXPECT_EQ(events_.num_joined, 2);
  EXPECT_EQ(events_.num_lost, 0);
}

// A word by which memory of this machine is mapped means something else there, or nothing.
TEST_F(NewWeights, GoInPiecesToAnotherMachine) {
  const auto workers = listen();
  const auto other = joined(*workers, 0, "another machine");
  EXPECT_GT(other->num_pieces, 10);
  expect_same_weights(0);
}

// If no launcher tells of their ends, the run ends only once as many workers have come as were started.
TEST_F(NewWeights, TheLastOfThoseThatFailEndsTheRun) {
  const auto workers = listen(/*silence_s=*/20.0, /*num_started=*/2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(workers->why_nobody_comes());
    ScriptedWorker failing(address_, *sessions_[0]);
    failing.greet();
    failing.say(sampling::Failed{.why = "no memory"});
    for (int tries = 0; tries < 20; ++tries) workers->poll(0.05, events_);
  }
  ASSERT_TRUE(workers->why_nobody_comes());
  EXPECT_EQ(workers->why_nobody_comes()->why, "no memory");
}

TEST_F(NewWeights, OneThatJoinsLateGetsTheNewest) {
  const auto workers = listen();
  const auto first = joined(*workers, 0);
  train();
  update(*workers, {[&] { first->take_weights(); }});
  train();
  update(*workers, {[&] { first->take_weights(); }});
  const auto second = joined(*workers, 1);
  expect_same_weights(1);
  EXPECT_EQ(second->num_pieces, 0);
}

TEST_F(NewWeights, OneThatDiesWhileItCopiesIsMissedByNobody) {
  const auto workers = listen();
  auto dying = joined(*workers, 0);
  const auto other = joined(*workers, 1);
  train();
  update(*workers, {[&] {
                      EXPECT_TRUE(std::holds_alternative<sampling::CopyWeights>(dying->next()));
                      dying.reset();
                    },
                    [&] { other->take_weights(); }});
  EXPECT_EQ(events_.num_lost, 1);
  EXPECT_EQ(workers->ready().size(), 1U);
  expect_same_weights(1);
}

// A worker has gone by the time that weights are sent to it, and what it said before is heard all the same.
TEST_F(NewWeights, OneThatLeftWhileTheRunTrainedIsNotMissed) {
  const auto workers = listen();
  auto leaving = joined(*workers, 0);
  train();
  leaving->say(sampling::Leaving{});
  leaving.reset();
  update(*workers, {});
  EXPECT_EQ(events_.num_left, 1);
  EXPECT_EQ(events_.num_lost, 0);
}

TEST_F(NewWeights, OneThatIsSilentIsLostInItsTime) {
  const auto workers = listen(/*silence_s=*/1.0);
  const auto silent = joined(*workers, 0);
  const auto other = joined(*workers, 1);
  train();
  const auto begin = base::Clock::now();
  update(*workers, {[&] { other->take_weights(); }});
  EXPECT_GE(base::seconds_since(begin), 0.9);
  EXPECT_LT(base::seconds_since(begin), 10.0);
  EXPECT_EQ(events_.num_lost, 1);
  EXPECT_EQ(workers->ready().size(), 1U);
  expect_same_weights(1);
}

TEST_F(NewWeights, WhoSaysThatItLivesIsWaitedFor) {
  const auto workers = listen(/*silence_s=*/1.0);
  const auto slow = joined(*workers, 0);
  train();
  update(*workers, {[&] {
    for (int i = 0; i < 7; ++i) {
      usleep(200'000);
      slow->say(sampling::Alive{});
    }
    slow->take_weights();
  }});
  EXPECT_EQ(events_.num_lost, 0);
  expect_same_weights(0);
}

TEST_F(NewWeights, AnAnswerOfAnotherVersionIsRefused) {
  const auto workers = listen();
  const auto lying = joined(*workers, 0);
  train();
  update(*workers, {[&] { lying->say(sampling::TookWeights{session().trained().version() - 1}); }});
  EXPECT_EQ(events_.num_lost, 1);
  EXPECT_TRUE(workers->ready().empty());
}

// Weights that change while they are copied have other checksums, so a torn copy is found.
TEST_F(NewWeights, ThatAreTornNeverSample) {
  memory_->set_seen([](const at::Tensor& bytes) { return bytes.clone(); });
  const auto workers = listen(/*silence_s=*/20.0, /*num_started=*/1);
  const auto torn = joined(*workers, 0);
  train();
  update(*workers, {[&] {
    torn->take(torn->next());
    EXPECT_THROW(sessions_[0]->trained().view(), BugError);
    try {
      torn->take(torn->next());
      ADD_FAILURE() << "the copy is an old one";
    } catch (const EnvironmentError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("changed while they were copied"));
      torn->say(sampling::Failed{.why = error.what()});
    }
    EXPECT_THROW(sessions_[0]->trained().view(), BugError);
  }});
  EXPECT_EQ(events_.num_lost, 1);
  const std::optional<sampling::Failed> why = workers->why_nobody_comes();
  ASSERT_TRUE(why);
  EXPECT_FALSE(why->is_users);
}

// The advice named --rollout-join alone, which is for this machine.
TEST(HowToJoin, NamesTheAddressForOtherMachines) {
  sampling::Connections::Settings settings{.address = fmt::format("join-test-{}", getpid())};
  EXPECT_EQ(sampling::Connections(settings, nullptr).how_to_join(), "--rollout-join");
  settings.door.address = "127.0.0.1";
  const sampling::Connections reached(settings, nullptr);
  EXPECT_EQ(reached.how_to_join(),
            fmt::format("--rollout-join, or --rollout-join-address 127.0.0.1:{} on another machine", reached.port()));
}

TEST_F(NewWeights, WhatIsStillSaidOfTheRolloutBeforeIsForNobody) {
  const auto workers = listen();
  const auto late = joined(*workers, 0);
  const auto leaving = joined(*workers, 1);
  train();
  update(*workers, {[&] {
                      late->say(sampling::Sampled{.rollout = 0, .key = 1, .members = {}, .numbers = {}});
                      late->say(sampling::Pull{.rollout = 0, .count = 1});
                      late->take_weights();
                    },
                    [&] { leaving->say(sampling::Leaving{}); }});
  EXPECT_EQ(events_.num_said, 0);
  EXPECT_EQ(events_.num_lost, 0);
  EXPECT_EQ(events_.num_left, 1);
  EXPECT_EQ(workers->ready().size(), 1U);
  expect_same_weights(0);
}

// Ranks that train and sample, which say who they are and no more.
class RankConnections : public testing::Test {
 protected:
  static std::unique_ptr<sampling::Connections> listen(const std::string& address) {
    return std::make_unique<sampling::Connections>(
        sampling::Connections::Settings{.address = address, .facts = {}, .welcome = {}},
        /*weights=*/nullptr);
  }
  static std::string own_address() {
    static int num_runs = 0;
    return fmt::format("ranks-test-{}-{}", getpid(), num_runs++);
  }
  static std::unique_ptr<mesh::Channel> rank(const std::string& address, int64_t number) {
    auto channel = std::make_unique<mesh::Channel>(mesh::connect_locally(address).value(), 20.0);
    channel->send(to_bytes(sampling::RankHello{.rank = number}));
    return channel;
  }

  SeenEvents events_;
};

TEST_F(RankConnections, AreReadyWhenTheyHaveSaidWhoTheyAre) {
  const std::string address = own_address();
  const auto connections = listen(address);
  EXPECT_THROW(connections->wait_for_ranks(1, 0.2), EnvironmentError);
  const auto first = rank(address, 1), second = rank(address, 2);
  connections->wait_for_ranks(2, 20.0);
  ASSERT_EQ(connections->ready().size(), 2U);
  connections->send(connections->ready().front(), sampling::Close{7});
  EXPECT_EQ(std::get<sampling::Close>(sampling::message_of(first->receive(20.0).value())).rollout, 7U);
  second->send(to_bytes(sampling::Pull{.rollout = 1, .count = 2}));
  while (events_.num_said == 0) connections->poll(0.05, events_);
  EXPECT_EQ(events_.num_joined, 0) << "they have been there from the start";
}

TEST_F(RankConnections, OneThatIsGoneEndsTheRun) {
  const std::string address = own_address();
  const auto connections = listen(address);
  auto gone = rank(address, 1);
  connections->wait_for_ranks(1, 20.0);
  gone.reset();
  try {
    for (int tries = 0; tries < 100; ++tries) connections->poll(0.05, events_);
    ADD_FAILURE() << "nobody missed it";
  } catch (const EnvironmentError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("rank 1, which samples too, is gone"));
  }
}

TEST_F(RankConnections, ARolloutWorkerHasNoPlaceAmongThem) {
  const std::string address = own_address();
  const auto connections = listen(address);
  const auto first = rank(address, 1);
  connections->wait_for_ranks(1, 20.0);
  mesh::Channel worker(mesh::connect_locally(address).value(), 20.0);
  worker.send(
      to_bytes(sampling::Hello{.facts = mesh::text_of({}), .weight_hash = "", .process = 1, .machine = "here"}));
  const auto closed = [&] {
    try {
      worker.receive(0.0);
      return false;
    } catch (const mesh::ChannelClosed&) {
      return true;
    }
  };
  for (int tries = 0; tries < 100 && !closed(); ++tries) connections->poll(0.05, events_);
  EXPECT_TRUE(closed());
  EXPECT_EQ(connections->ready().size(), 1U);
  EXPECT_EQ(events_.num_lost, 0) << "it had not joined";
}

TEST_F(NewWeights, ARankThatTrainsHasNoPlaceAmongWorkers) {
  const auto workers = listen();
  mesh::Channel rank(mesh::connect_locally(address_).value(), 20.0);
  rank.send(to_bytes(sampling::RankHello{.rank = 1}));
  for (int tries = 0; tries < 20; ++tries) workers->poll(0.05, events_);
  EXPECT_TRUE(workers->ready().empty());
  EXPECT_THROW(rank.receive(20.0), mesh::ChannelClosed);
}

}  // namespace
}  // namespace tandem::rollout_worker
