// A run saves on a thread of its own while the next rollout samples, is graded and reports. Built against the stand-in
// for LibTorch, so that ThreadSanitizer sees all of it: the writer of checkpoints, the records, the TensorBoard sink,
// the graders' threads.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <deque>

#include "base/file_calls.h"
#include "base/log.h"
#include "run/resume.h"
#include "run/rollout_file.h"
#include "run/rollout_phase.h"
#include "run/run_saver.h"
#include "run/samples.h"
#include "tests/base/faulty_disk.h"
#include "tests/base/temporary_directory.h"

namespace tandem::run {
namespace {

const std::string kModel = "tests/golden/models/qwen3-tied";

// Its step writes the step's number into every element of masters and moments.
class CountingTrainer : public trainer::Trainer {
 public:
  explicit CountingTrainer(const weights::Layout& layout) {
    for (const weights::PackedTensor& packed : layout.tensors) {
      for (const char* kind : {"master.", "exp_avg.", "exp_avg_sq."})
        state_[kind + packed.name] = at::Tensor(packed.shape);
    }
  }
  trainer::Metrics step(const std::vector<const rl::Sample*>&) override {
    ++progress_.steps;
    ++progress_.updates;
    for (const auto& [name, tensor] : state_) {
      std::fill_n(static_cast<float*>(tensor.data_ptr()), tensor.numel(), static_cast<float>(progress_.steps));
    }
    return {};
  }
  void end_phase() override {}
  Scores score(const model::Model&, const std::vector<const rl::Sample*>&) override { return {}; }
  trainer::OptimizerProgress progress() const override { return progress_; }
  std::map<std::string, at::Tensor> state() const override { return state_; }
  void restore(const trainer::OptimizerProgress& progress) override { progress_ = progress; }
  at::Tensor gradient(const std::string&) const override { return {}; }

  // Whether every element is `value`.
  bool holds(float value) const {
    return std::ranges::all_of(state_, [&](const auto& entry) {
      const auto* data = static_cast<const float*>(entry.second.data_ptr());
      return std::all_of(data, data + entry.second.numel(), [&](float element) { return element == value; });
    });
  }

 private:
  std::map<std::string, at::Tensor> state_;
  trainer::OptimizerProgress progress_;
};

// Answers every prompt with the same three tokens.
class InstantEngine : public rollout::Engine {
 public:
  void add(rollout::GroupRequest request) override { waiting_.push_back(std::move(request)); }
  void abort(uint64_t) override {}
  void abort_all() override { waiting_.clear(); }
  void pause(rollout::PauseMode) override {}
  void update_weights(const weights::WeightsView&) override {}
  void resume() override {}
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
  int64_t compact_kv() override { return 0; }
  int64_t num_unfinished_groups() const override { return static_cast<int64_t>(waiting_.size()); }
  rollout::EngineStats stats() const override { return {}; }
  void reset_stats() override {}

 private:
  std::deque<rollout::GroupRequest> waiting_;
  std::deque<rl::Group> finished_;
};

// A disk that says it has synced, and while it is full refuses to write, whichever thread asks.
class FullAtTimes : public base::UnsyncedFileCalls {
 public:
  ssize_t write(int fd, const void* data, size_t size) override {
    if (!is_full) return UnsyncedFileCalls::write(fd, data, size);
    errno = ENOSPC;
    return -1;
  }
  std::atomic<bool> is_full = false;
};

CheckpointOptions keeping(int64_t count, const std::string& on_save_error = "stop") {
  CheckpointOptions options;
  options.keep_latest = count;
  options.on_save_error = on_save_error;
  return options;
}

// A run's parts, and one rollout of it.
class SavedRun {
 public:
  explicit SavedRun(const CheckpointOptions& options)
      : directory_(folder_ / "run", RunFolder::kNew, 0),
        session_({.hf_checkpoint = kModel}),
        trainer_(session_.store().layout()) {
    directory_.create();
    report_ = std::make_unique<Report>(&directory_, Report::Options{.use_tensorboard = true, .keep_unwritten = true});
    saver_ = std::make_unique<RunSaver>(session_, directory_, trainer_, *report_, options, 0, [this] {
      RunState state;
      state.step = trainer_.progress().steps;
      state.optimizer = trainer_.progress();
      return std::optional<RunState>(state);
    });
  }

  // One optimizer step, which is saved while the next rollout runs.
  void step(SavedParts parts, RolloutPhase* phase, text::Graders* graders) {
    trainer_.step({});
    saver_->start(parts);
    const int64_t step = trainer_.progress().steps;
    if (phase != nullptr) sample(step, *phase, *graders);
    for (int i = 0; i < 20; ++i) {
      report_->log("rollout", step, {{"rollout/reward", 1.0}, {"perf/i", i}});
      report_->progress("step", i, 20, "records");
    }
    report_->line("a line of step " + std::to_string(step));
    directory_.growing_files();
    saver_->finish();
    report_->log("train", step, saver_->take_metrics());
  }

  std::string path() const { return directory_.path(); }
  Report& report() { return *report_; }
  RunSaver& saver() { return *saver_; }

  // What was saved of `step` is that step's, and whole.
  void expect_saved(int64_t step) {
    const Checkpoint checkpoint = Checkpoints(path()).open(step);
    CountingTrainer restored(session_.store().layout());
    restore(checkpoint, read_state(checkpoint), restored, session_.store());
    EXPECT_EQ(restored.progress().steps, step);
    EXPECT_TRUE(restored.holds(static_cast<float>(step))) << step;
  }

 private:
  void sample(int64_t step, RolloutPhase& phase, text::Graders& graders) {
    Prompt prompt;
    prompt.record = {.line = 1, .prompt = "1+1?", .label = "2", .metadata = base::Json::object(), .tools = nullptr};
    prompt.text = "1+1?";
    prompt.tokens = {1, 2};
    RolloutRequest request;
    request.prompts.assign(4, &prompt);
    request.n_samples_per_prompt = 4;
    request.first_sample_id = static_cast<uint64_t>(16 * step);
    request.title = "rollout";
    const std::optional<Rollout> rollout = phase.run(request, &graders);
    ASSERT_TRUE(rollout.has_value());
    EXPECT_EQ(rollout->grades.size(), 16U);
    EXPECT_EQ(rollout->num_failed, 0) << rollout->first_failure;
    write_samples(directory_.path() + "/rollout.jsonl", *rollout, SampleDetail::kFull);
    EXPECT_EQ(
        read_rollout(directory_.path() + "/rollout.jsonl", {.num_samples = 16, .vocab = 100, .context_tokens = 100})
            .samples.size(),
        16U);
  }

  base::TemporaryDirectory folder_;
  RunDirectory directory_;
  Session session_;
  CountingTrainer trainer_;
  std::unique_ptr<Report> report_;
  std::unique_ptr<RunSaver> saver_;
};

TEST(SaverThreads, ACheckpointIsItsStepsWhileTheNextRolloutRuns) {
  base::UnsyncedFileCalls unsynced;
  const base::ReplacedFileCalls replaced(unsynced);
  SavedRun run(keeping(3));
  text::TextWorker text(text::default_worker_config(), kModel);
  text::GraderConfig config;
  config.worker = text::default_worker_config();
  config.rm_type = "exact";
  config.warn_of_missing_layers = false;
  text::Graders graders(config);
  InstantEngine engine;
  RolloutPhase phase(engine, text, run.report());
  for (int step = 1; step <= 6; ++step) {
    run.step(step % 2 == 0 ? SavedParts::kBoth : SavedParts::kCheckpoint, &phase, &graders);
    run.expect_saved(step);
  }
}

TEST(SaverThreads, ADiskThatIsFullAtTimesCostsCheckpointsAndNothingElse) {
  FullAtTimes disk;
  const base::ReplacedFileCalls replaced(disk);
  SavedRun run(keeping(2, "continue"));
  base::set_log_level(base::LogLevel::kError);
  for (int step = 1; step <= 12; ++step) {
    // It fills up while the writer's thread works, too.
    if (step % 3 == 1) disk.is_full = true;
    run.step(SavedParts::kCheckpoint, nullptr, nullptr);
    disk.is_full = false;
    if (step % 3 == 0) {
      EXPECT_EQ(run.saver().saved_step(), step);
    }
  }
  base::set_log_level(base::LogLevel::kInfo);
  run.expect_saved(12);
}

TEST(SaverThreads, AWriterThatIsLeftAloneEndsBeforeWhatItBorrows) {
  base::UnsyncedFileCalls unsynced;
  const base::ReplacedFileCalls replaced(unsynced);
  SavedRun run(keeping(2));
  run.step(SavedParts::kBoth, nullptr, nullptr);
  run.saver().start(SavedParts::kBoth);  // and nobody waits
}

}  // namespace
}  // namespace tandem::run
