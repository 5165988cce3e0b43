#include "sampling/processes/pool_client.h"

#include <utility>
#include <vector>

#include "base/check.h"

namespace tandem::sampling {

namespace {

constexpr double kAliveInterval = 1.0;  // seconds

}  // namespace

const session::PromptLine* PoolClient::keep(uint64_t group, session::PromptLine& line) {
  return &lines_.try_emplace(group, std::move(line)).first->second;
}

void PoolClient::take(LendSamples& message) {
  if (message.rollout != rollout_) return;
  if (still_since_) still_s_ = base::seconds_since(*std::exchange(still_since_, std::nullopt));
  sampler_.add(groups::SampleLoan{.key = message.key,
                                  .group = message.group,
                                  .line = keep(message.group, message.line),
                                  .first = message.first,
                                  .count = message.count,
                                  .begun = std::move(message.begun),
                                  .budgets = std::move(message.budgets)});
}

void PoolClient::take(LendGrading& message) {
  if (message.rollout != rollout_) return;
  groups::GradeLoan loan = {.key = message.key,
                            .group = message.group,
                            .line = keep(message.group, message.line),
                            .members = std::move(message.members)};
  for (groups::Member& member : loan.members) member.sample.prompt = loan.line->prompt;
  sampler_.add(std::move(loan));
}

void PoolClient::take(const Abort& message) {
  if (message.rollout == rollout_) sampler_.abort(message.key);
}

void PoolClient::take(const Pause& message) {
  if (message.rollout == rollout_) sampler_.pause();
}

std::optional<std::string> PoolClient::receive(double wait_s, std::span<const int> news) {
  if (sampler_.is_busy()) return rank0_.receive(0.0);
  std::vector<int> descriptors = sampler_.descriptors();
  descriptors.insert(descriptors.end(), news.begin(), news.end());
  return rank0_.receive(wait_s, descriptors);
}

void PoolClient::work() {
  if (const int64_t count = sampler_.num_to_ask_for(); count > 0)
    rank0_.send(to_bytes(Pull{.rollout = rollout_, .count = count}));
  sampler_.advance();
  for (groups::SampledLoan& loan : sampler_.take_sampled())
    rank0_.send(to_bytes(
        Sampled{.rollout = rollout_, .key = loan.key, .members = std::move(loan.members), .numbers = numbers()}));
  for (groups::GradedLoan& loan : sampler_.take_graded())
    rank0_.send(to_bytes(Graded{.rollout = rollout_,
                                .key = loan.key,
                                .graded = std::move(loan.graded),
                                .texts = std::move(loan.texts),
                                .numbers = numbers()}));
  if (base::seconds_since(last_alive_) < kAliveInterval) return;
  last_alive_ = base::Clock::now();
  rank0_.send(to_bytes(Alive{}));
}

}  // namespace tandem::sampling
