// The processes that sample for rank 0, played by threads of this one: of rollout workers, who has answered has new
// weights, who has not is lost, and nobody is waited for longer than it may be silent; other ranks are there, or the
// run ends.
#include "sampling/connections.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <future>
#include <vector>

#include "mesh/hosts.h"
#include "mesh/local_socket.h"
#include "rollout_worker/replica_weights.h"
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

// A worker that does as it is told.
class ScriptedWorker {
 public:
  ScriptedWorker(const std::string& address, const session::ModelSession& session)
      : session_(session), channel_(mesh::connect_locally(address).value(), 20.0) {}

  void greet(const std::string& machine = mesh::machine_id()) {
    say(sampling::Hello{.facts = mesh::text_of({}),
                        .weight_hash = session_.empty_store().info().hash,
                        .process = 1,
                        .machine = machine});
  }
  void join(const std::string& machine = mesh::machine_id()) {
    greet(machine);
    weights_.emplace(session_, ranks_, std::get<sampling::Welcome>(next()));
    say(sampling::Prepared{.maps_weights = weights_->maps()});
    take_weights();
  }
  void take_weights() {
    while (!take(next())) {
    }
  }
  // Takes a message. Returns whether the weights are new and whole.
  bool take(const sampling::Message& message) {
    bool are_new = false;
    if (const auto* const piece = std::get_if<sampling::Weights>(&message)) {
      ++num_pieces;
      are_new = weights_->take(*piece, [this](std::span<std::byte> into) { channel_.receive_bytes(into); });
    } else if (const auto* const copy = std::get_if<sampling::CopyWeights>(&message)) {
      are_new = weights_->take(*copy);
    } else {
      are_new = weights_->take(std::get<sampling::WeightChecksums>(message));
    }
    if (are_new) say(sampling::TookWeights{session_.trained().version()});
    return are_new;
  }
  // Returns the next message that is no beat.
  sampling::Message next() {
    while (true) {
      sampling::Message message = sampling::message_of(channel_.receive(20.0).value());
      if (!std::holds_alternative<sampling::Alive>(message)) return message;
    }
  }
  void say(const sampling::Message& message) { channel_.send(to_bytes(message)); }

  int num_pieces = 0;

 private:
  const session::ModelSession& session_;
  mesh::Channel channel_;
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
      worker = new session::ModelSession(run_->inputs().config.model, run_->inputs().config.lora);
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
                                         const std::string& machine = mesh::machine_id()) {
    auto worker = std::make_unique<ScriptedWorker>(address_, *sessions_.at(which));
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
  static inline std::array<session::ModelSession*, 2> sessions_ = {};
  static inline int num_runs_ = 0;
  const std::unique_ptr<device::Communicator> alone_ = device::solo_communicator();
  std::optional<ReplicaWeights> weights_;
  std::string address_;
  SeenEvents events_;
};

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
  const auto workers = listen();
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
