// Checks that a run saves on a thread of its own while the next rollout samples, is graded and reports. It is built
// against the stand-in for LibTorch, so that ThreadSanitizer sees all of it: the writer of checkpoints, the records,
// the TensorBoard sink, the graders' threads.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/log.h"
#include "checkpoint/data_position.h"
#include "checkpoint/load_checkpoint.h"
#include "checkpoint/resume.h"
#include "report/sample_file.h"
#include "run/checkpointer.h"
#include "run/open_run.h"
#include "run/run_log.h"
#include "sampling/rollout_file.h"
#include "sampling/rollout_phase.h"
#include "tests/base/faulty_disk.h"
#include "tests/base/temporary_directory.h"
#include "tests/checkpoint/rank_threads.h"

namespace tandem::run {
namespace {

const std::string kModel = "tests/golden/models/qwen3-tied";

// A trainer whose step writes the step's number into every element of masters and moments.
class CountingTrainer : public trainer::Trainer {
 public:
  explicit CountingTrainer(const weights::Layout& layout) {
    for (const weights::PackedTensor& packed : layout.tensors) {
      for (const auto kind : {trainer::StateKind::kExpAvg, trainer::StateKind::kExpAvgSq, trainer::StateKind::kMaster})
        state_.push_back({kind, &packed, at::Tensor(packed.shape)});
    }
  }
  trainer::Metrics step(const std::vector<const rl::Sample*>&, trainer::RolloutLogprobs,
                        std::optional<uint64_t> = std::nullopt) override {
    ++progress_.steps;
    ++progress_.updates;
    for (const auto& [kind, packed, tensor, row_begin] : state_) {
      std::fill_n(static_cast<float*>(tensor.data_ptr()), tensor.numel(), static_cast<float>(progress_.steps));
    }
    return {};
  }
  void end_phase() override {}
  trainer::OptimizerProgress progress() const override { return progress_; }
  std::vector<trainer::OptimizerTensor> state() const override { return state_; }
  void restore(const trainer::OptimizerProgress& progress) override { progress_ = progress; }
  at::Tensor gradient(const std::string&) const override { return {}; }

  // Returns whether every element is `value`.
  bool holds(float value) const {
    return std::ranges::all_of(state_, [&](const trainer::OptimizerTensor& one) {
      const auto* data = static_cast<const float*>(one.tensor.data_ptr());
      return std::all_of(data, data + one.tensor.numel(), [&](float element) { return element == value; });
    });
  }

 private:
  std::vector<trainer::OptimizerTensor> state_;
  trainer::OptimizerProgress progress_;
};

// An engine that answers every prompt with the same three tokens.
class InstantEngine : public rollout::Engine {
 public:
  void add(rollout::GroupRequest request) override { waiting_.push_back(std::move(request)); }
  void abort(uint64_t) override {}
  void abort_all() override { waiting_.clear(); }
  void release(uint64_t) override {}
  void update_weights(const weights::WeightsView&) override {}
  std::optional<rl::Group> next_finished() override {
    if (finished_.empty()) return std::nullopt;
    rl::Group group = std::move(finished_.front());
    finished_.pop_front();
    return group;
  }
  bool step() override {
    const rollout::GroupRequest& request = waiting_.front();
    rl::Group group{.group_id = request.group_id, .prompt = request.prompt, .completions = {}};
    for (const uint64_t id : request.sample_ids) {
      rl::Completion completion;
      completion.sample_id = id;
      completion.tokens = {4, 5, 6};
      completion.logprobs = {-1, -1, -1};
      completion.finish_reason = rl::FinishReason::kStop;
      group.completions.push_back(std::move(completion));
    }
    finished_.push_back(std::move(group));
    waiting_.pop_front();
    return true;
  }
  int64_t num_unfinished_groups() const override { return static_cast<int64_t>(waiting_.size()); }
  bool has_room() const override { return true; }
  rollout::EngineStats stats() const override { return {}; }
  void reset_stats() override {}

 private:
  std::deque<rollout::GroupRequest> waiting_;
  std::deque<rl::Group> finished_;
};

config::CheckpointOptions keeping(int64_t count, const std::string& on_save_error = "stop") {
  config::CheckpointOptions options;
  options.keep_latest = count;
  options.on_save_error = on_save_error;
  return options;
}

// Rank 0 of two; rank 1 says the same until it is lost.
class EchoingRanks : public device::Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::unique_ptr<Exchange> start_exchange(device::TensorLists to, device::TensorLists from) override {
    if (is_lost) throw device::PeerLost("rank 1 did not answer within 0.1 s");
    for (size_t i = 0; i < from[1].size(); ++i)
      std::memcpy(from[1][i].data_ptr(), to[1][i].data_ptr(), to[1][i].nbytes());
    class Done : public Exchange {
      void wait() override {}
    };
    return std::make_unique<Done>();
  }
  void abort() noexcept override {}
  std::atomic<bool> is_lost = false;
};

class MeshOfSavers : public mesh::Mesh {
 public:
  explicit MeshOfSavers(EchoingRanks& savers) : savers_(savers) {}
  device::Communicator& host() const override { return savers_; }
  device::Communicator& savers() const override { return savers_; }
  mesh::Group tensor() const override { return {*alone_, *alone_}; }
  device::Communicator& tensor_savers() const override { return *alone_; }
  mesh::Group data() const override { return {*alone_, *alone_}; }

 private:
  EchoingRanks& savers_;
  const std::unique_ptr<device::Communicator> alone_ = device::solo_communicator();
};

// The parts of a run, and one rollout of it.
class SavedRun {
 public:
  SavedRun(const std::string& path, const config::CheckpointOptions& options,
           std::unique_ptr<mesh::Mesh> mesh = mesh::solo_mesh())
      : directory_(path, checkpoint::RunFolder::kNew, 0),
        session_({.hf_checkpoint = kModel}),
        trainer_(session_.trained().layout()),
        mesh_(std::move(mesh)) {
    directory_.create();
    log_ = std::make_unique<RunLog>(directory_,
                                    RunLog::Options{.use_tensorboard = true, .continues_after_save_error = true});
    checkpointer_ = std::make_unique<Checkpointer>(
        session_, directory_, trainer_, *log_, options, checkpoint::RunState{},
        [](checkpoint::RunState& state, std::vector<checkpoint::SavedTensor>&) { state.failed_in_a_row = 2; }, *mesh_);
  }

  // Runs one optimizer step, which is saved while the next rollout runs.
  void step(config::SavedParts parts, sampling::RolloutPhase* phase, reward::Scorer* graders) {
    finish_step();
    checkpointer_->start(parts);
    const int64_t step = trainer_.progress().steps;
    if (phase != nullptr) sample(step, *phase, *graders);
    for (int i = 0; i < 20; ++i) {
      report().log("rollout", step, {{"rollout/reward", 1.0}, {"perf/i", i}});
      report().progress("step", i, 20, "records");
    }
    report().print("a line of step " + std::to_string(step));
    directory_.growing_files();
    checkpointer_->wait();
    report().log("train", step, log_->take());
  }
  void finish_step(checkpoint::DataPosition position = {}) {
    checkpointer_->begin_update();
    trainer_.step({}, trainer::RolloutLogprobs::kOfOtherWeights);
    checkpointer_->end_update(trainer_.progress().steps, std::move(position));
  }

  std::string path() const { return directory_.path(); }
  report::Report& report() { return log_->report(); }
  Checkpointer& checkpointer() { return *checkpointer_; }
  CountingTrainer& trainer() { return trainer_; }

  // Expects that what was saved of `step` is that step's, and whole.
  void expect_saved(int64_t step) {
    const checkpoint::Checkpoint checkpoint = checkpoint::Checkpoints(path()).open(step);
    CountingTrainer restored(session_.trained().layout());
    const checkpoint::RunState state = checkpoint::read_state(checkpoint);
    restore(checkpoint, state, restored, session_.trained());
    EXPECT_EQ(state.failed_in_a_row, 2);
    EXPECT_EQ(restored.progress().steps, step);
    EXPECT_TRUE(restored.holds(static_cast<float>(step))) << step;
  }

 private:
  void sample(int64_t step, sampling::RolloutPhase& phase, reward::Scorer& graders) {
    session::PromptLine prompt;
    prompt.record = {.line = 1, .prompt = "1+1?", .label = "2", .metadata = base::Json::object(), .tools = nullptr};
    prompt.prompt = rl::make_prompt({1, 2}, "1+1?", "2");
    sampling::RolloutRequest request;
    request.prompts.assign(4, &prompt);
    request.n_samples_per_prompt = 4;
    request.first_sample_id = static_cast<uint64_t>(16 * step);
    request.title = "rollout";
    const std::optional<sampling::Rollout> rollout = phase.run(request, &graders, report());
    ASSERT_TRUE(rollout.has_value());
    EXPECT_EQ(rollout->grades.size(), 16U);
    EXPECT_EQ(rollout->num_failed, 0) << rollout->first_failure;
    report::write_samples(directory_.path() + "/rollout.jsonl", rollout->samples, rollout->grades,
                          report::SampleDetail::kFull);
    EXPECT_EQ(sampling::read_rollout(directory_.path() + "/rollout.jsonl",
                                     {.num_samples = 16, .vocab = 100, .context_tokens = 100})
                  .samples.size(),
              16U);
  }

  checkpoint::RunDirectory directory_;
  session::ModelSession session_;
  CountingTrainer trainer_;
  std::unique_ptr<RunLog> log_;
  const std::unique_ptr<mesh::Mesh> mesh_;
  std::unique_ptr<Checkpointer> checkpointer_;
};

TEST(SaverThreads, ACheckpointIsItsStepsWhileTheNextRolloutRuns) {
  base::UnsyncedFileCalls unsynced;
  const base::ReplacedFileCalls replaced(unsynced);
  const base::TemporaryDirectory folder;
  SavedRun run(folder / "run", keeping(3));
  text::TextWorker text(worker::default_worker_config(), kModel);
  reward::GraderConfig config;
  config.worker = worker::default_worker_config();
  config.rm_types = {"exact"};
  config.warn_of_missing_layers = false;
  reward::ScorerConfig scored;
  scored.sources.push_back({.name = "exact", .graders = config, .service = std::nullopt});
  reward::Scorer graders(scored);
  InstantEngine engine;
  sampling::RolloutPhase phase(engine, text);
  for (int step = 1; step <= 6; ++step) {
    run.step(step % 2 == 0 ? config::SavedParts::kBoth : config::SavedParts::kCheckpoint, &phase, &graders);
    run.expect_saved(step);
  }
}

TEST(SaverThreads, ADiskThatIsFullAtTimesCostsCheckpointsAndNothingElse) {
  base::FullAtTimes disk;
  const base::ReplacedFileCalls replaced(disk);
  const base::TemporaryDirectory folder;
  SavedRun run(folder / "run", keeping(2, "continue"));
  base::set_log_level(base::LogLevel::kError);
  for (int step = 1; step <= 12; ++step) {
    // The disk fills up while the writer's thread works, too.
    if (step % 3 == 1) disk.is_full = true;
    run.step(config::SavedParts::kCheckpoint, nullptr, nullptr);
    disk.is_full = false;
    if (step % 3 == 0) {
      EXPECT_EQ(run.checkpointer().saved_step(), step);
    }
  }
  base::set_log_level(base::LogLevel::kInfo);
  run.expect_saved(12);
}

// Takes a while to open a file, so that what ends meanwhile has ended before the file is written.
class SlowToOpen : public base::UnsyncedFileCalls {
 public:
  int open(const char* path, int flags, mode_t mode) override {
    ::usleep(50'000);
    return base::UnsyncedFileCalls::open(path, flags, mode);
  }
};

// The groups in flight were freed while the thread still wrote them, where an error ended the run before it waited.
TEST(SaverThreads, GroupsInFlightAreWrittenWholeWhenTheRunEndsMeanwhile) {
  SlowToOpen disk;
  const base::ReplacedFileCalls replaced(disk);
  const base::TemporaryDirectory folder;
  const std::string groups(1 << 20, 'g');
  {
    SavedRun run(folder / "run", keeping(2));
    run.finish_step({.cursor = {}, .in_flight = std::make_shared<const std::string>(groups)});
    run.checkpointer().start(config::SavedParts::kCheckpoint);
  }
  EXPECT_TRUE(checkpoint::in_flight_of(checkpoint::Checkpoints(folder / "run").open(std::nullopt)) == groups);
}

TEST(SaverThreads, AWriterThatIsLeftAloneEndsBeforeWhatItBorrows) {
  base::UnsyncedFileCalls unsynced;
  const base::ReplacedFileCalls replaced(unsynced);
  const base::TemporaryDirectory folder;
  SavedRun run(folder / "run", keeping(2));
  run.step(config::SavedParts::kBoth, nullptr, nullptr);
  run.checkpointer().start(config::SavedParts::kBoth);  // nobody waits for it
}

class CheckpointerTest : public testing::Test {
 protected:
  base::UnsyncedFileCalls unsynced_;
  const base::ReplacedFileCalls replaced_{unsynced_};
  const base::TemporaryDirectory folder_;
  const std::string path_ = folder_ / "run";
};

TEST_F(CheckpointerTest, SavesNothingWhileTheWeightsBelongToNoStep) {
  SavedRun run(path_, keeping(2));
  run.finish_step();
  run.checkpointer().begin_update();
  run.checkpointer().start(config::SavedParts::kBoth);
  run.checkpointer().wait();
  EXPECT_EQ(run.checkpointer().saved_step(), 0);
  run.checkpointer().end_update(1, {});
  run.checkpointer().start(config::SavedParts::kBoth);
  run.checkpointer().wait();
  EXPECT_EQ(run.checkpointer().saved_step(), 1);
  run.expect_saved(1);
}

TEST_F(CheckpointerTest, ARunThatFailsKeepsItsLastFinishedStep) {
  SavedRun run(path_, keeping(2));
  const auto fail_behind_two_steps = [&] {
    run.finish_step();
    run.finish_step();
    throw UserError("the third step");
  };
  EXPECT_THROW(run.checkpointer().save_at_end(fail_behind_two_steps), UserError);
  run.expect_saved(2);
  const auto fail_within_a_step = [&] {
    run.checkpointer().begin_update();
    run.trainer().step({}, trainer::RolloutLogprobs::kOfOtherWeights);
    throw UserError("within the third step");
  };
  EXPECT_THROW(run.checkpointer().save_at_end(fail_within_a_step), UserError);
  EXPECT_EQ(run.checkpointer().saved_step(), 2);
}

TEST_F(CheckpointerTest, ARunThatIsOpenedAgainIsAsItsCheckpointWas) {
  const std::string metrics = path_ + "/metrics.jsonl";
  std::string saved_metrics;
  {
    SavedRun run(path_, keeping(2));
    run.step(config::SavedParts::kCheckpoint, nullptr, nullptr);
    run.report().log("rollout", 1, {});
    run.report().sync();
    saved_metrics = base::read_file(metrics);
    run.finish_step();
    run.checkpointer().start(config::SavedParts::kCheckpoint);
    run.checkpointer().wait();
    run.report().log("rollout", 2, {});
    run.report().sync();
  }
  ASSERT_GT(base::read_file(metrics).size(), saved_metrics.size());
  config::CheckpointOptions options;
  options.load = path_;
  const std::optional<checkpoint::Checkpoint> checkpoint = checkpoint::open_checkpoint(options, {});
  session::ModelSession session({.hf_checkpoint = kModel});
  CountingTrainer trainer(session.trained().layout());
  checkpoint::RunDirectory directory(path_, checkpoint::run_folder(options, path_, /*overwrite=*/false), 0);
  const checkpoint::RunState start = open_run(directory, checkpoint, options, trainer, session.trained());
  EXPECT_EQ(start.step, 2);
  EXPECT_TRUE(trainer.holds(2.0F));
  EXPECT_EQ(base::read_file(metrics).size(), static_cast<size_t>(start.file_bytes.at("metrics.jsonl")));
  EXPECT_EQ(base::read_file(metrics).substr(0, saved_metrics.size()), saved_metrics);
}

// The communicator of a lost rank can no longer be used, so every checkpoint after it was counted as refused by the
// disk, until the run ended with nothing saved.
TEST_F(CheckpointerTest, ARankThatIsLostEndsTheRunAlsoWhereADiskThatRefusesDoesNot) {
  EchoingRanks savers;
  SavedRun run(path_, keeping(2, "continue"), std::make_unique<MeshOfSavers>(savers));
  run.finish_step();
  savers.is_lost = true;
  EXPECT_THROW(run.checkpointer().start(config::SavedParts::kCheckpoint), device::PeerLost);
}

// Counts the messages that each of two ranks sends.
class CountedRanks {
 public:
  checkpoint::SavingRanks of(int rank) {
    checkpoint::SavingRanks ranks = threads_.of(rank);
    ranks.all_gather = [this, rank, gather = ranks.all_gather](const std::string& mine) {
      ++counts_.at(static_cast<size_t>(rank));
      return gather(mine);
    };
    return ranks;
  }
  std::vector<std::string> run(const std::function<void(int)>& f) const { return threads_.run(f); }
  const std::array<int, 2>& counts() const { return counts_; }

 private:
  checkpoint::RankThreads threads_{2};
  std::array<int, 2> counts_ = {};
};

// Each rank once asked its own disk whether the run resumes in place, and one that failed for a moment said no: that
// rank went on while the other one waited for it.
TEST_F(CheckpointerTest, RanksAgreeOnARunThatGoesOnInPlaceWhateverTheirDisksSay) {
  {
    SavedRun run(path_, keeping(2));
    run.step(config::SavedParts::kCheckpoint, nullptr, nullptr);
  }
  const std::string loop = folder_ / "loop";
  std::filesystem::create_symlink(loop, loop);
  config::CheckpointOptions options;
  options.load = path_;
  session::ModelSession session({.hf_checkpoint = kModel});
  checkpoint::RunDirectory directory(path_, checkpoint::run_folder(options, path_, /*overwrite=*/false), 0);
  CountedRanks ranks;
  const std::vector<std::string> errors = ranks.run([&](int rank) {
    CountingTrainer trainer(session.trained().layout());
    weights::WeightStore store = weights::WeightStore::without_storage(session.trained().layout(), at::kFloat);
    const std::optional<checkpoint::Checkpoint> checkpoint = checkpoint::open_checkpoint(options, {});
    config::CheckpointOptions own = options;
    if (rank == 1) own.load = loop;
    EXPECT_EQ(open_run(directory, checkpoint, own, trainer, store, ranks.of(rank)).step, 1);
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  EXPECT_EQ(ranks.counts()[0], ranks.counts()[1]);
}

}  // namespace
}  // namespace tandem::run
