// A run that gives new weights to rollout workers, each of which is a session of this process that speaks as a script
// says: for tests of who gets them, and how.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <future>
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

}  // namespace tandem::rollout_worker
