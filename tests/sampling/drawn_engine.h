// An engine without a model: what it samples is drawn from the sample's id, the prompt and the version of the weights,
// one token of each running completion in a step. It needs no torch.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "rollout/engine.h"

namespace tandem::sampling {

class DrawnEngine final : public rollout::Engine {
 public:
  struct Settings {
    int64_t num_at_once = 4;       // groups that run together
    int64_t longest_sleep_us = 0;  // of a step, drawn from the seed
    uint64_t seed = 0;
    int64_t steps_to_stop = -1;  // after so many steps is_stopped() says so; -1: never
    int64_t longest = 24;        // tokens of a completion
  };
  explicit DrawnEngine(const Settings& settings) : settings_(settings) {}

  void add(rollout::GroupRequest request) override {
    ++num_added_;
    Running running{.request = std::move(request)};
    num_unfinished_ += std::ssize(running.request.sample_ids);
    most_unfinished_ = std::max(most_unfinished_, num_unfinished_);
    for (size_t s = 0; s < running.request.sample_ids.size(); ++s) {
      const rollout::GroupRequest& asked = running.request;
      const auto length = length_of(asked.sample_ids[s]);
      const int64_t has = asked.begun.empty() ? 0 : std::ssize(asked.begun[s].tokens);
      const int64_t budget = asked.budgets.empty() || asked.budgets[s] == 0 ? length : asked.budgets[s];
      running.num_new.push_back(std::min(length - has, budget));
      running.most_new = std::max(running.most_new, running.num_new.back());
    }
    groups_.push_back(std::move(running));
  }
  void set_version(uint64_t version) { version_ = version; }
  void abort(uint64_t group_id) override {
    const auto found = std::ranges::find(groups_, group_id, [](const Running& g) { return g.request.group_id; });
    if (found == groups_.end()) return;
    hand_over(*found, rl::FinishReason::kAbort);
    groups_.erase(found);
  }
  void abort_all() override {
    while (!groups_.empty()) abort(groups_.front().request.group_id);
  }
  void release(uint64_t) override {}
  void update_weights(const weights::WeightsView&) override {}
  std::optional<rl::Group> next_finished() override {
    if (finished_.empty()) return std::nullopt;
    rl::Group group = std::move(finished_.front());
    finished_.pop_front();
    return group;
  }
  bool step() override {
    if (groups_.empty()) return false;
    ++num_steps_;
    if (settings_.longest_sleep_us > 0) {
      const double share = base::uniform(settings_.seed, 1, static_cast<uint64_t>(num_steps_));
      std::this_thread::sleep_for(
          std::chrono::microseconds(static_cast<int64_t>(share * static_cast<double>(settings_.longest_sleep_us))));
    }
    const auto num_running = static_cast<size_t>(std::min(settings_.num_at_once, std::ssize(groups_)));
    for (size_t i = 0; i < num_running; ++i) ++groups_[i].num_steps;
    ++stats_.forwards;
    std::erase_if(groups_, [&](const Running& group) {
      if (group.num_steps < group.most_new) return false;
      hand_over(group, rl::FinishReason::kStop);
      return true;
    });
    return true;
  }
  int64_t num_unfinished_groups() const override { return std::ssize(groups_); }
  bool has_room() const override { return std::ssize(groups_) <= settings_.num_at_once; }
  rollout::EngineStats stats() const override { return stats_; }
  void reset_stats() override { stats_ = {}; }

  bool is_stopped() const { return settings_.steps_to_stop >= 0 && num_steps_ >= settings_.steps_to_stop; }
  int64_t num_added() const { return num_added_; }              // groups
  int64_t most_unfinished() const { return most_unfinished_; }  // samples

 private:
  struct Running {
    rollout::GroupRequest request;
    std::vector<int64_t> num_new = {};  // tokens that each completion gets
    int64_t most_new = 0, num_steps = 0;
  };

  int64_t length_of(uint64_t sample_id) const {
    return 1 + static_cast<int64_t>(draw(sample_id, 0) * static_cast<double>(settings_.longest));
  }

  static double draw(uint64_t sample_id, uint64_t i) { return base::uniform(7, sample_id, i); }

  void hand_over(const Running& running, rl::FinishReason reason) {
    const rollout::GroupRequest& request = running.request;
    num_unfinished_ -= std::ssize(request.sample_ids);
    rl::Group group{.group_id = request.group_id, .prompt = request.prompt, .completions = {}};
    for (size_t s = 0; s < request.sample_ids.size(); ++s) {
      rl::Completion completion = request.begun.empty() ? rl::Completion() : request.begun[s];
      completion.sample_id = request.sample_ids[s];
      const int64_t begin = std::ssize(completion.tokens), length = length_of(completion.sample_id);
      const int64_t end = begin + std::min(running.num_new[s], running.num_steps);
      completion.finish_reason = reason == rl::FinishReason::kStop && end < length ? rl::FinishReason::kPaused : reason;
      if (end > begin && (completion.versions.empty() || completion.versions.back().version != version_))
        completion.versions.push_back({.begin = begin, .version = version_});
      for (int64_t t = begin; t < end; ++t) {
        const double number = draw(completion.sample_id, static_cast<uint64_t>(t) + 1);
        const double shift = static_cast<double>(request.prompt->tokens.front()) + static_cast<double>(version_);
        completion.tokens.push_back(32 + static_cast<int32_t>(number * 60.0 + shift) % 60);
        completion.logprobs.push_back(static_cast<float>(-number));
      }
      stats_.generated_tokens += end - begin;
      stats_.resumed_tokens += begin;
      group.completions.push_back(std::move(completion));
    }
    finished_.push_back(std::move(group));
  }

  const Settings settings_;
  std::deque<Running> groups_;
  std::deque<rl::Group> finished_;
  rollout::EngineStats stats_;
  uint64_t version_ = 3;
  int64_t num_steps_ = 0, num_added_ = 0;
  int64_t num_unfinished_ = 0, most_unfinished_ = 0;  // samples
};

}  // namespace tandem::sampling
