// The processes that sample for rank 0, played by threads of this one: of rollout workers, who has answered has new
// weights, who has not is lost, and nobody is waited for longer than it may be silent; other ranks are there, or the
// run ends.
#include "sampling/connections.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <future>
#include <random>
#include <utility>
#include <vector>

#include "base/bell.h"
#include "mesh/hosts.h"
#include "mesh/local_socket.h"
#include "rollout_worker/replica_weights.h"
#include "rollout_worker/weight_links.h"
#include "rollout_worker/worker_weights.h"
#include "tests/run/small_run.h"
#include "tests/weights/shown_memory.h"

namespace tandem::rollout_worker {
namespace {

class SeenEvents final : public sampling::Connections::Events {
 public:
  void joined(groups::SamplerId /*worker*/) override { ++num_joined; }
  void said(groups::SamplerId /*worker*/, sampling::Message& /*message*/) override { ++num_said; }
  bool has_loans(groups::SamplerId /*worker*/) const override { return false; }
  int64_t lost(groups::SamplerId /*worker*/, bool has_left) override {
    ++(has_left ? num_left : num_lost);
    return 0;
  }
  int num_joined = 0, num_said = 0, num_left = 0, num_lost = 0;
};

// Thrown where a scripted worker ends as if it was killed.
struct Dead {};

// A worker that does as it is told.
class ScriptedWorker {
 public:
  ScriptedWorker(const std::string& address, const session::ModelSession& session)
      : session_(session),
        channel_(mesh::connect_locally(address).value(), 20.0),
        links_(channel_, {.secret = "", .patience_s = 2.0, .whole_bytes = session.empty_store().bytes()}),
        address_(address) {}

  void greet(const std::string& machine = mesh::machine_id()) {
    say(sampling::Hello{.facts = mesh::text_of({}),
                        .weight_hash = session_.empty_store().info().hash,
                        .process = 1,
                        .machine = machine,
                        .door = links_.door()});
  }
  void join(const std::string& machine = mesh::machine_id()) {
    greet(machine);
    weights_.emplace(session_, ranks_, std::get<sampling::Welcome>(next()));
    if (!weights_->maps())
      links_.connect_to_run(std::make_unique<mesh::Channel>(mesh::connect_locally(address_).value(), 20.0));
    if (copies_ahead) weights_->allocate_second_copy();
    say(sampling::Prepared{.maps_weights = weights_->maps(), .copies_ahead = weights_->copies_ahead()});
    take_weights();
  }
  // Takes messages and pieces until the weights are new and whole.
  void take_weights() {
    while (true) {
      while (const std::optional<WeightLinks::Arrival> arrival = links_.next()) {
        if (take(*arrival)) return;
      }
      const std::array<int, 1> news = {links_.descriptor()};
      const std::optional<std::string> frame = channel_.receive(20.0, news);
      if (frame && take(sampling::message_of(*frame))) return;
    }
  }
  // Takes a piece, or the end of its chain. Returns whether the weights are new and whole.
  bool take(const WeightLinks::Arrival& arrival) {
    if (!arrival.bytes) {
      ++num_broken_chains;
      say(sampling::ChainBroken{});
      return false;
    }
    ++(is_first ? num_pieces : num_passed_pieces);
    if ((is_first ? num_pieces : num_passed_pieces) == dies_at_piece) throw Dead();
    const bool are_new = weights_->take(arrival.piece, *arrival.bytes);
    if (are_new) say(sampling::TookWeights{session_.trained().version()});
    return are_new;
  }
  // Takes a message. Returns whether the weights are new and whole.
  bool take(const sampling::Message& message) {
    bool are_new = false;
    if (const auto* const chain = std::get_if<sampling::Chain>(&message)) {
      is_first = chain->is_first;
      if (is_behind_a_wall && !is_first) {
        ++num_broken_chains;
        say(sampling::ChainBroken{});
      } else {
        links_.take_place(*chain);
      }
    } else if (const auto* const copy = std::get_if<sampling::CopyWeights>(&message); copy && copy->is_ahead) {
      copy_ahead(*copy);
    } else if (copy != nullptr) {
      are_new = weights_->take(*copy);
    } else if (const auto* const sums = std::get_if<sampling::WeightChecksums>(&message)) {
      are_new = weights_->take(*sums);
    } else {
      EXPECT_TRUE(std::holds_alternative<sampling::Alive>(message));
    }
    if (are_new) say(sampling::TookWeights{session_.trained().version()});
    return are_new;
  }
  void copy_ahead(const sampling::CopyWeights& message) {
    weights_->copy_ahead(message);
    const std::array<int, 1> news = {weights_->descriptor()};
    std::optional<uint64_t> version;
    while (!(version = weights_->copied())) base::wait_readable(news, 1.0);
    ++num_copied_ahead;
    say(sampling::CopiedWeights{*version});
  }
  // Returns the next message that is no beat.
  sampling::Message next() {
    while (true) {
      sampling::Message message = sampling::message_of(channel_.receive(20.0).value());
      if (!std::holds_alternative<sampling::Alive>(message)) return message;
    }
  }
  sampling::WeightDoor door() const { return links_.door(); }
  void say(const sampling::Message& message) { channel_.send(to_bytes(message)); }

  int num_pieces = 0;         // from the run
  int num_passed_pieces = 0;  // from another worker
  int num_broken_chains = 0;
  bool is_first = false;  // of the newest chain
  int dies_at_piece = -1;
  bool copies_ahead = false;  // set it before it joins
  std::atomic<int> num_copied_ahead = 0;
  bool is_behind_a_wall = false;  // no other worker reaches it

 private:
  const session::ModelSession& session_;
  mesh::Channel channel_;
  WeightLinks links_;
  const std::string address_;
  const std::unique_ptr<device::Communicator> alone_ = device::solo_communicator();
  EngineRanks ranks_{*alone_};
  std::optional<WorkerWeights> weights_;
};

class NewWeights : public testing::Test {
 protected:
  // Sessions last for all tests, because each starts a tokenizer. They have an adapter, so that there are two stores.
  static void SetUpTestSuite() {
    memory_ = new weights::ShownMemory();
    run_ = new run::SmallRun([](config::TrainConfig& config) { config.lora.rank = 2; });
    for (auto& worker : sessions_) {
      const config::TrainConfig& config = run_->inputs().config;
      worker = new session::ModelSession(config.model, config.lora, config.optimizer);
      worker->allocate_weights();
    }
  }
  static void TearDownTestSuite() {
    for (auto* worker : sessions_) delete worker;
    delete run_;
    delete memory_;
  }
  void SetUp() override {
    memory_->set_seen([](const at::Tensor& bytes) { return bytes; });
  }

  std::unique_ptr<sampling::Connections> listen(double silence_s = 20.0, int64_t num_started = 0) {
    address_ = fmt::format("workers-test-{}-{}", getpid(), num_runs_++);
    weights_.emplace(session(), mesh::Group{.device = *alone_, .host = *alone_}, /*piece_bytes=*/5000);
    return std::make_unique<sampling::Connections>(sampling::Connections::Settings{.address = address_,
                                                                                   .facts = {},
                                                                                   .welcome = {},
                                                                                   .silence_s = silence_s,
                                                                                   .launcher_descriptor = {},
                                                                                   .num_started = num_started},
                                                   &*weights_);
  }
  static session::ModelSession& session() { return run_->inputs().session; }

  // Runs `work` with a worker, on a thread beside rank 0's.
  std::future<void> beside(std::function<void()> work) { return std::async(std::launch::async, std::move(work)); }
  std::unique_ptr<ScriptedWorker> joined(sampling::Connections& workers, size_t which,
                                         const std::string& machine = mesh::machine_id(), bool copies_ahead = false) {
    auto worker = std::make_unique<ScriptedWorker>(address_, *sessions_.at(which));
    worker->copies_ahead = copies_ahead;
    const size_t num_before = workers.ready().size();
    std::future<void> joins = beside([&] { worker->join(machine); });
    while (workers.ready().size() == num_before && events_.num_lost == 0) workers.poll(0.05, events_);
    joins.get();
    return worker;
  }
  static void train() {
    for (const weights::PackedTensor& packed : session().trained().layout().tensors) {
      session().trained().tensor(packed.name).add_(1);
    }
    session().trained().publish();
  }
  // Calls update_weights() while the workers do `work`.
  void update(sampling::Connections& workers, const std::vector<std::function<void()>>& work) {
    std::vector<std::future<void>> all;
    for (const auto& one : work) all.push_back(beside(one));
    workers.update_weights();
    for (auto& one : all) one.get();
    workers.poll(0.0, events_);
  }
  static void expect_same_weights(size_t which) {
    const session::ModelSession& worker = *sessions_.at(which);
    for (const auto& [have, want] :
         {std::pair{&worker.base(), &session().base()}, {&worker.trained(), &session().trained()}}) {
      EXPECT_TRUE(have->is_whole());
      for (const weights::PackedTensor& packed : want->layout().tensors) {
        const at::Tensor &x = have->tensor(packed.name), &y = want->tensor(packed.name);
        EXPECT_EQ(std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()), 0) << packed.name;
      }
    }
    EXPECT_EQ(worker.view().version(), session().trained().version());
  }

  static inline weights::ShownMemory* memory_ = nullptr;
  static inline run::SmallRun* run_ = nullptr;
  static inline std::array<session::ModelSession*, 4> sessions_ = {};
  static inline int num_runs_ = 0;
  const std::unique_ptr<device::Communicator> alone_ = device::solo_communicator();
  std::optional<ReplicaWeights> weights_;
  std::string address_;
  SeenEvents events_;
};

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

// Workers that copy new weights while they sample.
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
