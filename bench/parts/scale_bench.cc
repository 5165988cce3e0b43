// Measures what rank 0 does for a step of thousands of engines, in virtual time: engines ask for samples, and answer at
// once and in a drawn order. Everything else is the code of a run: the pool, and the messages as bytes. Sockets, seals
// and graders are left out. Prints the messages of a step and rank 0's processor time; then bytes and time a token, for
// messages with bodies. Needs no torch.
//
//   cmake --preset release && cmake --build build/release --target scale_bench
//   build/release/bench/scale_bench
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <deque>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "groups/group_pool.h"
#include "sampling/processes/messages.h"
#include "sampling/processes/rollout_message.h"

namespace tandem::sampling {
namespace {

constexpr int64_t kCompletions = 16, kPromptTokens = 200;

double cpu_seconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// The processor time of rank 0; that of the engines, which this process plays too, is left out.
class Rank0Time {
 public:
  template <typename F>
  auto of(F work) {
    const double begin = cpu_seconds();
    auto result = work();
    seconds += cpu_seconds() - begin;
    return result;
  }
  double seconds = 0.0;
};

groups::Member member_of(int64_t tokens, uint64_t id) {
  groups::Member member;
  member.sample.sample_id = id;
  member.sample.completion.resize(static_cast<size_t>(tokens), 12345);
  member.sample.rollout_logprobs.resize(static_cast<size_t>(tokens), -0.5F);
  member.sample.loss_mask.resize(static_cast<size_t>(tokens), 1);
  member.sample.text = std::string(static_cast<size_t>(4 * tokens), 'x');
  member.sample.versions = {{.begin = 0, .version = 1}};
  return member;
}

session::PromptLine prompt_line() {
  session::PromptLine line;
  line.prompt = rl::make_prompt(std::vector<int32_t>(kPromptTokens, 7), std::string(4 * kPromptTokens, 'p'), "42");
  return line;
}

struct Step {
  int64_t num_loans = 0, num_gradings = 0, num_pulls = 0, num_messages = 0, num_bytes = 0;
  double pool_s = 0.0, messages_s = 0.0, look_s = 0.0;  // look_s: whether each engine has loans, once
};

// A step of that many groups over that many engines, each with room for an even share.
Step sample_step(int64_t num_engines, int64_t num_groups, int64_t tokens) {
  Step step;
  Rank0Time pool_time, message_time;
  const auto encoded = [&](const Message& message) {
    std::string bytes = message_time.of([&] { return to_bytes(message); });
    ++step.num_messages;
    step.num_bytes += std::ssize(bytes);
    return bytes;
  };
  const auto decoded = [&](const Message& message) {
    const std::string bytes = to_bytes(message);
    ++step.num_messages;
    step.num_bytes += std::ssize(bytes);
    return message_time.of([&] { return message_of(bytes); });
  };
  const session::PromptLine line = prompt_line();
  groups::GroupPool pool(kCompletions, /*is_graded=*/true);
  for (int64_t g = 0; g < num_groups; ++g) {
    pool_time.of([&] {
      pool.open(static_cast<size_t>(g), line, {.completion = tokens, .prompt = kPromptTokens});
      return 0;
    });
  }
  for (int64_t id = 0; id < num_engines; ++id) pool.join(id);
  const int64_t room = (num_groups * kCompletions + num_engines - 1) / num_engines;
  std::vector<std::pair<groups::SamplerId, groups::SampleLoan>> loans;
  for (int64_t id = 0; id < num_engines; ++id) {
    decoded(Pull{.rollout = 1, .count = room});
    ++step.num_pulls;
    for (int64_t left = room; left > 0;) {
      const auto loan = pool_time.of([&] { return pool.lend(id, left); });
      if (!loan) break;
      left -= static_cast<int64_t>(loan->count);
      encoded(LendSamples{.rollout = 1,
                          .key = loan->key,
                          .group = loan->group,
                          .first = loan->first,
                          .count = loan->count,
                          .line = line});
      ++step.num_loans;
      loans.emplace_back(id, *loan);
    }
  }
  Rank0Time look_time;
  const int64_t num_busy = look_time.of([&] {
    int64_t count = 0;
    for (int64_t id = 0; id < num_engines; ++id) count += pool.num_loans(id) > 0 ? 1 : 0;
    return count;
  });
  TANDEM_CHECK(num_busy > 0, "nobody has a loan");
  for (size_t i = loans.size(); i > 1; --i)
    std::swap(loans[i - 1], loans[static_cast<size_t>(base::uniform(7, i, 0) * static_cast<double>(i))]);
  for (auto& [id, loan] : loans) {
    Sampled sampled{.rollout = 1, .key = loan.key, .members = {}, .numbers = {}};
    for (size_t i = 0; i < loan.count; ++i)
      sampled.members.push_back(member_of(tokens, loan.group * kCompletions + loan.first + i));
    Message message = decoded(sampled);
    auto& heard = std::get<Sampled>(message);
    pool_time.of(
        [&] { return pool.take_back(id, groups::SampledLoan{.key = heard.key, .members = std::move(heard.members)}); });
    for (auto& [grader, grading] : pool_time.of([&] { return pool.lend_grading(); })) {
      ++step.num_gradings;
      Graded graded{.rollout = 1, .key = grading.key, .graded = {}, .numbers = {}};
      graded.graded.grades.resize(kCompletions);
      encoded(LendGrading{.rollout = 1,
                          .key = grading.key,
                          .group = grading.group,
                          .line = line,
                          .members = std::move(grading.members)});
      Message answer = decoded(graded);
      auto& said = std::get<Graded>(answer);
      pool_time.of([&] {
        return pool.take_back(grader, groups::GradedLoan{.key = said.key, .graded = std::move(said.graded)});
      });
    }
  }
  TANDEM_CHECK_EQ(std::ssize(pool.take_done()), num_groups);
  step.pool_s = pool_time.seconds, step.messages_s = message_time.seconds, step.look_s = look_time.seconds;
  return step;
}

void print_steps() {
  std::printf("devices  engines   samples  loans  gradings  messages  pool ms  messages ms  us a message  us a look\n");
  constexpr int64_t kTokens = 40;  // short ones: what bodies cost is measured apart
  for (const auto& [devices, samples_a_device] : {std::pair{8, 128}, {64, 64}, {512, 32}, {4096, 16}}) {
    const int64_t engines = devices * 5 / 8, groups = int64_t{devices} * samples_a_device / kCompletions;
    const Step step = sample_step(engines, groups, kTokens);
    std::printf("%7d  %7ld  %8ld  %5ld  %8ld  %8ld  %7.1f  %11.1f  %12.1f  %9.1f\n", devices, engines,
                groups * kCompletions, step.num_loans, step.num_gradings, step.num_messages, 1e3 * step.pool_s,
                1e3 * step.messages_s, 1e6 * (step.pool_s + step.messages_s) / static_cast<double>(step.num_messages),
                1e6 * step.look_s);
  }
}

void print_bodies() {
  constexpr int64_t kTokens = 4000, kSamples = 64;
  const auto num_tokens = static_cast<double>(kTokens * kSamples);
  const auto print = [&](const char* what, const std::string& bytes, double write_s, double read_s) {
    std::printf("%-32s %6.2f bytes a token; written in %.2f ns, read in %.2f ns a token\n", what,
                static_cast<double>(bytes.size()) / num_tokens, 1e9 * write_s / num_tokens, 1e9 * read_s / num_tokens);
  };
  Sampled sampled{.rollout = 1, .key = 1, .members = {}, .numbers = {}};
  Rollout rollout;
  std::vector<size_t> groups;
  const session::PromptLine line = prompt_line();
  for (int64_t i = 0; i < kSamples; ++i) {
    sampled.members.push_back(member_of(kTokens, static_cast<uint64_t>(i)));
    rollout.samples.push_back(sampled.members.back().sample);
    rollout.samples.back().prompt = line.prompt;
    rollout.grades.emplace_back();
    if (i % kCompletions == 0) groups.push_back(static_cast<size_t>(i / kCompletions));
  }
  Rank0Time write, read;
  std::string bytes = write.of([&] { return to_bytes(Message(sampled)); });
  read.of([&] { return message_of(bytes); });
  print("samples from an engine", bytes, write.seconds, read.seconds);
  Rank0Time write_all, read_all;
  bytes = write_all.of([&] { return to_bytes(std::optional(rollout), groups); });
  read_all.of([&] { return rollout_of(bytes, [&](size_t /*group*/) { return line.prompt; }); });
  print("the rollout, to every rank", bytes, write_all.seconds, read_all.seconds);
}

}  // namespace
}  // namespace tandem::sampling

int main() {
  tandem::sampling::print_steps();
  tandem::sampling::print_bodies();
}
