// Loans of samples against shares of whole groups: a rollout on four ranks that are threads, with engines that sleep
// for as long as a step of so many rows takes. Lengths are drawn; members of a group are alike. Samples are lent by the
// code that a run has (sampling/rollout_phase). Whole groups are dealt as runs dealt them before there was a pool: the
// longest first, to and fro over the ranks, and who is done early takes what others have not begun. Prints seconds of a
// rollout whose lengths nobody knows, of one of the same prompts, and of one of other prompts where all completions
// have one length and had it before, as medians of the rounds. Needs no torch.
//
//   cmake --preset release && cmake --build build/release --target loans_bench
//   build/release/bench/loans_bench [ROUNDS]
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <list>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "sampling/rollout_phase.h"
#include "tests/sampling/thread_mesh.h"

namespace tandem::sampling {
namespace {

constexpr int kRanks = 4;
constexpr int64_t kGroups = 32, kCompletions = 8, kLongest = 400, kMedian = 60;

// A step takes `step_ms` and `row_ms` for each of at most `most_rows` rows, and a prompt's prefill `prefill_ms` a
// token.
struct Cost {
  const char* name;
  double step_ms, row_ms;
  int64_t most_rows;
  int64_t prompt_tokens = 2;
  double prefill_ms = 0.0;
};

struct Lengths {
  uint64_t seed = 0;
  bool are_equal = false;
};

// Lognormal over the groups; members are within a tenth of their group's length.
int64_t length_of(const Lengths& lengths, uint64_t group, uint64_t member) {
  if (lengths.are_equal) return kMedian;
  constexpr double kTau = 6.283185307179586;
  const double radius = std::sqrt(-2.0 * std::log(1.0 - base::uniform(lengths.seed, group, 0)));
  const double mean = kMedian * std::exp(0.8 * radius * std::cos(kTau * base::uniform(lengths.seed, group, 1)));
  const double length = mean * (0.9 + 0.2 * base::uniform(lengths.seed, group, 2 + member));
  return std::clamp(static_cast<int64_t>(length), int64_t{1}, kLongest);
}

// Rows run in the order in which they were added, as many as fit.
class SleepingEngine final : public rollout::Engine {
 public:
  SleepingEngine(const Cost& cost, const Lengths& lengths) : cost_(cost), lengths_(lengths) {}

  void add(rollout::GroupRequest request) override {
    Loan loan{.request = std::move(request)};
    for (const uint64_t id : loan.request.sample_ids) {
      const uint64_t number = id % static_cast<uint64_t>(kGroups * kCompletions);  // in its rollout
      loan.lengths.push_back(length_of(lengths_, number / kCompletions, number % kCompletions));
    }
    loan.left = loan.lengths;
    loans_.push_back(std::move(loan));
  }
  bool step() override {
    if (loans_.empty()) return false;
    int64_t num_rows = 0, num_prefilled = 0;
    for (Loan& loan : loans_) {
      if (!loan.runs && num_rows + std::ssize(loan.left) > cost_.most_rows) break;
      if (!loan.runs) num_prefilled += cost_.prompt_tokens;
      loan.runs = true;
      for (int64_t& left : loan.left) {
        num_rows += left > 0 ? 1 : 0;
        left -= left > 0 ? 1 : 0;
      }
    }
    std::this_thread::sleep_for(
        std::chrono::duration<double, std::milli>(cost_.step_ms + cost_.row_ms * static_cast<double>(num_rows) +
                                                  cost_.prefill_ms * static_cast<double>(num_prefilled)));
    for (auto it = loans_.begin(); it != loans_.end();) {
      if (it->runs && std::ranges::all_of(it->left, [](int64_t left) { return left == 0; })) {
        finish(*it);
        it = loans_.erase(it);
      } else {
        ++it;
      }
    }
    return true;
  }
  std::optional<rl::Group> next_finished() override {
    if (finished_.empty()) return std::nullopt;
    rl::Group group = std::move(finished_.front());
    finished_.pop_front();
    return group;
  }
  int64_t num_unfinished_groups() const override { return std::ssize(loans_); }
  bool has_room() const override {
    return std::ranges::all_of(loans_, [](const Loan& loan) { return loan.runs; });
  }
  rollout::EngineStats stats() const override { return {}; }
  void reset_stats() override {}
  void abort(uint64_t /*group_id*/) override {}
  void abort_all() override {}
  void release(uint64_t /*sample_id*/) override {}
  void update_weights(const weights::WeightsView& /*view*/) override {}

 private:
  struct Loan {
    rollout::GroupRequest request;
    std::vector<int64_t> lengths = {}, left = {};  // tokens of each sample, and those that are still to come
    bool runs = false;
  };

  void finish(const Loan& loan) {
    rl::Group group{.group_id = loan.request.group_id, .prompt = loan.request.prompt, .completions = {}};
    for (size_t i = 0; i < loan.lengths.size(); ++i) {
      rl::Completion completion;
      completion.sample_id = loan.request.sample_ids[i];
      completion.tokens.assign(static_cast<size_t>(loan.lengths[i]), 40);
      completion.logprobs.assign(completion.tokens.size(), -1.0F);
      completion.finish_reason = rl::FinishReason::kStop;
      group.completions.push_back(std::move(completion));
    }
    finished_.push_back(std::move(group));
  }

  const Cost cost_;
  const Lengths lengths_;
  std::deque<Loan> loans_;
  std::deque<rl::Group> finished_;
};

struct Seconds {
  double first, second;
};

// Returns the seconds of two rollouts: of the same prompts, or, where completions have one length, of others.
Seconds lend_samples(const Cost& cost, const Lengths& lengths, std::list<text::TextWorker>& texts) {
  std::vector<session::PromptLine> lines;
  for (int32_t i = 0; i < 2 * kGroups; ++i) {
    std::vector<int32_t> tokens(static_cast<size_t>(cost.prompt_tokens), 40 + i);
    lines.push_back({.record = {}, .prompt = rl::make_prompt(std::move(tokens))});
  }
  std::vector<double> seconds;
  ThreadRanks ranks(kRanks);
  ranks.run([&](mesh::Mesh& mesh) {
    SleepingEngine engine(cost, lengths);
    RolloutPhase phase(engine, *std::next(texts.begin(), mesh.rank()), mesh, LinkSettings());
    report::Report report;
    for (size_t i = 0; i < 2; ++i) {
      RolloutRequest request;
      request.is_graded = false;
      request.n_samples_per_prompt = kCompletions;
      request.sampling.max_new_tokens = kLongest;
      request.first_sample_id = i * static_cast<uint64_t>(kGroups * kCompletions);
      const size_t first = lengths.are_equal ? i * kGroups : 0;
      for (size_t k = 0; k < kGroups; ++k) request.prompts.push_back(&lines[first + k]);
      const Rollout rollout = phase.run(request, nullptr, report).value();
      if (mesh.rank() == 0) seconds.push_back(rollout.seconds);
    }
  });
  return {.first = seconds.at(0), .second = seconds.at(1)};
}

// Returns the shares of the ranks.
std::vector<std::vector<uint64_t>> dealt(const Lengths& lengths, bool are_known) {
  std::vector<uint64_t> order(kGroups);
  std::iota(order.begin(), order.end(), uint64_t{0});
  const auto longest = [&](uint64_t group) {
    int64_t result = 0;
    for (uint64_t member = 0; member < kCompletions; ++member)
      result = std::max(result, length_of(lengths, group, member));
    return result;
  };
  if (are_known) std::ranges::stable_sort(order, std::greater(), longest);
  std::vector<std::vector<uint64_t>> shares(kRanks);
  for (size_t place = 0; place < order.size(); ++place) {
    const size_t round = place / kRanks, seat = place % kRanks;
    shares[round % 2 == 0 ? seat : kRanks - 1 - seat].push_back(order[place]);
  }
  return shares;
}

double deal_groups(const Cost& cost, const Lengths& lengths, std::list<text::TextWorker>& texts, bool are_known) {
  const std::vector<std::vector<uint64_t>> shares = dealt(lengths, are_known);
  std::array<std::atomic<size_t>, kRanks> num_taken = {};
  const auto next = [&](size_t rank) -> std::optional<uint64_t> {
    for (size_t i = 0; i < kRanks; ++i) {
      const size_t owner = (rank + i) % kRanks, ticket = num_taken[owner]++;
      if (ticket < shares[owner].size()) return shares[owner][ticket];
    }
    return std::nullopt;
  };
  const base::Clock::time_point begin = base::Clock::now();
  {
    std::vector<std::jthread> ranks;
    for (size_t rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        SleepingEngine engine(cost, lengths);
        text::TextWorker& text = *std::next(texts.begin(), static_cast<std::ptrdiff_t>(rank));
        bool is_some_left = true;
        while (is_some_left || engine.num_unfinished_groups() > 0) {
          while (is_some_left && engine.num_unfinished_groups() < kGroups / kRanks &&
                 (engine.num_unfinished_groups() == 0 || engine.has_room())) {
            const std::optional<uint64_t> group = next(rank);
            is_some_left = group.has_value();
            if (!group) break;
            rollout::GroupRequest request{
                .group_id = *group, .prompt = rl::make_prompt({40}), .sample_ids = {}, .sampling = {}};
            for (uint64_t i = 0; i < kCompletions; ++i) request.sample_ids.push_back(*group * kCompletions + i);
            engine.add(std::move(request));
          }
          engine.step();
          while (const std::optional<rl::Group> group = engine.next_finished()) {
            std::vector<std::vector<int32_t>> tokens;
            for (const rl::Completion& completion : group->completions) tokens.push_back(completion.tokens);
            text.decode(tokens, /*skip_special_tokens=*/false);
          }
        }
      });
    }
  }
  return base::seconds_since(begin);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void measure(int rounds) {
  std::list<text::TextWorker> texts;
  for (int rank = 0; rank < kRanks; ++rank)
    texts.emplace_back(worker::default_worker_config(), "tests/golden/models/qwen3-tied");
  std::printf("seconds of a rollout, %d ranks, %lld groups of %lld, medians of %d rounds\n", kRanks,
              static_cast<long long>(kGroups), static_cast<long long>(kCompletions), rounds);
  for (const Cost& cost :
       {Cost{"rows cost, all fit", 0.2, 0.1, 64}, Cost{"rows cost, half fit", 0.2, 0.1, 32},
        Cost{"steps cost, all fit", 2.0, 0.01, 64}, Cost{"steps cost, half fit", 2.0, 0.01, 32},
        Cost{"prompts of 20", 0.2, 0.1, 32, 20, 0.05}, Cost{"prompts of 100", 0.2, 0.1, 32, 100, 0.05},
        Cost{"prompts of 500", 0.2, 0.1, 32, 500, 0.05}}) {
    struct Case {
      const char* name;
      std::vector<double> groups = {}, samples = {};
    };
    std::array<Case, 3> cases = {Case{"lengths unknown"}, Case{"lengths known"}, Case{"equal lengths"}};
    auto& [unknown, known, equal] = cases;
    for (int round = 0; round < rounds; ++round) {
      const Lengths drawn = {.seed = static_cast<uint64_t>(round)}, one = {.are_equal = true};
      unknown.groups.push_back(deal_groups(cost, drawn, texts, /*are_known=*/false));
      known.groups.push_back(deal_groups(cost, drawn, texts, /*are_known=*/true));
      const Seconds seconds = lend_samples(cost, drawn, texts);
      unknown.samples.push_back(seconds.first);
      known.samples.push_back(seconds.second);
      equal.groups.push_back(deal_groups(cost, one, texts, /*are_known=*/true));
      equal.samples.push_back(lend_samples(cost, one, texts).second);
    }
    for (const auto& [what, groups, samples] : cases) {
      const double a = median(groups), b = median(samples);
      std::printf("%-22s %-16s groups %.3f, samples %.3f: %.2f x\n", cost.name, what, a, b, a / b);
    }
  }
}

}  // namespace
}  // namespace tandem::sampling

int main(int argc, char** argv) {
  tandem::sampling::measure(argc > 1 ? std::atoi(argv[1]) : 9);
  return 0;
}
