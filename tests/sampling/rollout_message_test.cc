// Groups as bytes between ranks: every field comes back as it was, and bytes that are no message are refused.
#include "sampling/rank_message.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/rng.h"
#include "base/wire.h"
#include "reward/grade_wire.h"
#include "rl/sample_wire.h"
#include "tandem/error.h"

namespace tandem::sampling {
namespace {

constexpr uint32_t kFormat = 1;  // of rank messages
constexpr size_t kNumPrompts = 12;

rl::SharedPrompt prompt_of(size_t index) {
  static const std::vector<rl::SharedPrompt> prompts = [] {
    std::vector<rl::SharedPrompt> result;
    for (int32_t i = 0; i < static_cast<int32_t>(kNumPrompts); ++i) result.push_back(rl::make_prompt({i, 7, i + 1}));
    return result;
  }();
  if (index >= prompts.size()) throw EnvironmentError("a group that is none");
  return prompts[index];
}

// Values of any bits, drawn from a seed.
class Drawn {
 public:
  explicit Drawn(uint64_t seed) : seed_(seed) {}
  uint64_t bits() {
    const std::array<uint32_t, 4> words = base::philox(seed_, 0, next_++);
    return (uint64_t{words[0]} << 32) | words[1];
  }
  size_t below(size_t end) { return static_cast<size_t>(bits() % end); }
  bool flag() { return below(2) == 1; }
  template <typename T>
  T number() {
    constexpr std::array<double, 5> kStrange = {-0.0, 5e-324, 1e308, std::numeric_limits<double>::infinity(), NAN};
    if (std::is_floating_point_v<T> && below(4) == 0) return static_cast<T>(kStrange[below(kStrange.size())]);
    const uint64_t from = bits();
    T value;
    std::memcpy(&value, &from, sizeof value);
    return value;
  }
  template <typename T>
  std::vector<T> list() {
    std::vector<T> values(below(3) == 0 ? 0 : below(40));
    for (T& value : values) value = number<T>();
    return values;
  }
  std::string text() {
    std::string value(below(3) == 0 ? 0 : below(30), '\0');
    for (char& c : value) c = static_cast<char>(bits());
    return value;
  }
  base::Json scalar() {
    switch (below(6)) {
      case 0: return nullptr;
      case 1: return flag();
      case 2: return number<int64_t>();
      case 3: return number<uint64_t>();
      case 4: return number<double>();
      default: return text();
    }
  }

 private:
  uint64_t seed_, next_ = 0;
};

rl::Sample drawn_sample(Drawn& drawn, size_t index) {
  rl::Sample sample;
  sample.prompt = prompt_of(index);
  sample.group_id = drawn.bits();
  sample.sample_id = drawn.bits();
  sample.completion = drawn.list<int32_t>();
  sample.rollout_logprobs = drawn.list<float>();
  sample.behavior_logprobs = drawn.list<float>();
  sample.ref_logprobs = drawn.list<float>();
  sample.loss_mask = drawn.list<uint8_t>();
  sample.advantages = drawn.list<double>();
  sample.reward = drawn.number<double>();
  sample.overlong_penalty = drawn.number<double>();
  sample.kl_penalty = drawn.number<double>();
  sample.grading_failed = drawn.flag();
  sample.has_reward = drawn.flag();
  sample.status = static_cast<rl::SampleStatus>(drawn.below(3));
  sample.remove = drawn.flag();
  for (size_t left = drawn.below(4); left > 0; --left)
    sample.versions.push_back({drawn.number<int64_t>(), drawn.bits()});
  sample.num_turns = drawn.number<int64_t>();
  sample.text = drawn.text();
  return sample;
}

reward::Grade drawn_grade(Drawn& drawn) {
  reward::Grade grade;
  grade.sample_id = drawn.bits();
  grade.reward = drawn.number<double>();
  grade.failed = drawn.flag();
  grade.reason_class = drawn.text();
  grade.reason = drawn.text();
  for (size_t left = drawn.below(4); left > 0; --left) grade.extras[drawn.text()] = drawn.number<double>();
  if (drawn.flag()) grade.remove_sample = drawn.flag();
  if (drawn.flag()) grade.loss_mask = drawn.list<uint8_t>();
  if (drawn.flag()) grade.status = drawn.text();
  for (size_t left = drawn.below(4); left > 0; --left) grade.columns[drawn.text()] = drawn.scalar();
  for (size_t left = drawn.below(4); left > 0; --left) grade.metrics[drawn.text()] = drawn.list<double>();
  for (size_t left = drawn.below(4); left > 0; --left) {
    reward::RewardPart part{.name = drawn.text(), .reward = std::nullopt};
    if (drawn.flag()) part.reward = drawn.number<double>();
    grade.parts.push_back(part);
  }
  return grade;
}

RankMessage drawn_message(uint64_t seed) {
  Drawn drawn(seed);
  RankMessage message;
  message.is_stopped = drawn.flag();
  for (size_t left = drawn.below(4); left > 0; --left) {
    const size_t index = drawn.below(kNumPrompts);
    GradedGroup& group = message.groups[index];
    group = {};
    for (size_t samples = drawn.below(4); samples > 0; --samples) {
      group.samples.push_back(drawn_sample(drawn, index));
      group.grades.push_back(drawn_grade(drawn));
    }
    group.verdict = {.is_kept = drawn.flag(), .reason = drawn.text(), .failure = drawn.text()};
    group.is_judged = drawn.flag();
    group.reward_sum = drawn.number<double>();
    group.num_rewarded = drawn.number<int64_t>();
    group.longest = drawn.number<int64_t>();
  }
  message.stats.generated_tokens = drawn.number<int64_t>();
  message.stats.num_blocks = drawn.number<int64_t>();
  message.losses = {.grader_restarts = 1, .repeated_grades = 2, .generator_restarts = 3, .repeated_generations = 4};
  message.seconds = drawn.number<double>();
  return message;
}

bool reads(std::string_view bytes) {
  try {
    rank_message(bytes, prompt_of);
    return true;
  } catch (const EnvironmentError&) {
    return false;
  }
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}
bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// By hand, so that a field that is neither written nor read is missed.
void expect_same(const rl::Sample& a, const rl::Sample& b) {
  EXPECT_EQ(a.prompt, b.prompt) << "the same object";
  EXPECT_EQ(std::tie(a.group_id, a.sample_id, a.completion, a.loss_mask, a.grading_failed, a.has_reward, a.status,
                     a.remove, a.num_turns, a.text),
            std::tie(b.group_id, b.sample_id, b.completion, b.loss_mask, b.grading_failed, b.has_reward, b.status,
                     b.remove, b.num_turns, b.text));
  EXPECT_TRUE(same_bits(a.rollout_logprobs, b.rollout_logprobs));
  EXPECT_TRUE(same_bits(a.behavior_logprobs, b.behavior_logprobs));
  EXPECT_TRUE(same_bits(a.ref_logprobs, b.ref_logprobs));
  EXPECT_TRUE(same_bits(a.advantages, b.advantages));
  EXPECT_TRUE(same_bits(a.reward, b.reward) && same_bits(a.overlong_penalty, b.overlong_penalty) &&
              same_bits(a.kl_penalty, b.kl_penalty));
  ASSERT_EQ(a.versions.size(), b.versions.size());
  for (size_t i = 0; i < a.versions.size(); ++i) {
    EXPECT_EQ(a.versions[i].begin, b.versions[i].begin);
    EXPECT_EQ(a.versions[i].version, b.versions[i].version);
  }
}

void expect_same(const reward::Grade& a, const reward::Grade& b) {
  EXPECT_EQ(std::tie(a.sample_id, a.failed, a.reason_class, a.reason, a.remove_sample, a.loss_mask, a.status),
            std::tie(b.sample_id, b.failed, b.reason_class, b.reason, b.remove_sample, b.loss_mask, b.status));
  EXPECT_TRUE(same_bits(a.reward, b.reward));
  ASSERT_EQ(a.extras.size(), b.extras.size());
  for (const auto& [name, value] : a.extras) EXPECT_TRUE(same_bits(value, b.extras.at(name)));
  ASSERT_EQ(a.columns.size(), b.columns.size());
  for (const auto& [name, value] : a.columns) {
    const base::Json& other = b.columns.at(name);
    ASSERT_EQ(value.type(), other.type());
    if (value.is_number_float()) {
      EXPECT_TRUE(same_bits(value.get<double>(), other.get<double>()));
    } else {
      EXPECT_EQ(value, other);
    }
  }
  ASSERT_EQ(a.metrics.size(), b.metrics.size());
  for (const auto& [name, values] : a.metrics) EXPECT_TRUE(same_bits(values, b.metrics.at(name)));
  ASSERT_EQ(a.parts.size(), b.parts.size());
  for (size_t i = 0; i < a.parts.size(); ++i) {
    EXPECT_EQ(a.parts[i].name, b.parts[i].name);
    ASSERT_EQ(a.parts[i].reward.has_value(), b.parts[i].reward.has_value());
    if (a.parts[i].reward) {
      EXPECT_TRUE(same_bits(*a.parts[i].reward, *b.parts[i].reward));
    }
  }
}

TEST(RankMessage, BringsEveryFieldBitForBit) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const RankMessage sent = drawn_message(seed);
    const std::string bytes = to_bytes(sent, prompt_of);
    const RankMessage read = rank_message(bytes, prompt_of);
    EXPECT_EQ(to_bytes(read, prompt_of), bytes);
    EXPECT_EQ(read.is_stopped, sent.is_stopped);
    EXPECT_EQ(read.stats.generated_tokens, sent.stats.generated_tokens);
    EXPECT_EQ(read.losses.repeated_generations, 4);
    EXPECT_TRUE(same_bits(read.seconds, sent.seconds));
    ASSERT_EQ(read.groups.size(), sent.groups.size());
    for (const auto& [index, a] : sent.groups) {
      const GradedGroup& b = read.groups.at(index);
      ASSERT_EQ(a.samples.size(), b.samples.size());
      ASSERT_EQ(a.grades.size(), b.grades.size());
      for (size_t i = 0; i < a.samples.size(); ++i) {
        expect_same(a.samples[i], b.samples[i]);
        expect_same(a.grades[i], b.grades[i]);
      }
      EXPECT_EQ(
          std::tie(a.verdict.is_kept, a.verdict.reason, a.verdict.failure, a.is_judged, a.num_rewarded, a.longest),
          std::tie(b.verdict.is_kept, b.verdict.reason, b.verdict.failure, b.is_judged, b.num_rewarded, b.longest));
      EXPECT_TRUE(same_bits(a.reward_sum, b.reward_sum));
    }
  }
}

TEST(RankMessage, ThatIsCutOrChangedIsRefused) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::string bytes = to_bytes(drawn_message(seed), prompt_of);
    ASSERT_TRUE(reads(bytes));
    Drawn drawn(seed + 1000);
    for (size_t end = 0; end < bytes.size(); end += 1 + drawn.below(1 + bytes.size() / 200))
      EXPECT_FALSE(reads(std::string_view(bytes).substr(0, end))) << seed << " " << end;
    for (int i = 0; i < 300; ++i) {
      std::string changed = bytes;
      changed[drawn.below(changed.size())] ^= static_cast<char>(1 << drawn.below(8));
      EXPECT_FALSE(reads(changed)) << seed;
    }
    EXPECT_FALSE(reads(bytes + "x"));
    EXPECT_FALSE(reads(base::sealed(base::unsealed(bytes, kFormat), kFormat + 1))) << "another format";
  }
}

// Whoever can make a checksum can send any payload: it is read, or refused, within its bytes (ASan watches) and without
// memory for what it says it has.
TEST(RankMessage, OfAnyPayloadIsReadOrRefusedWithinItsBytes) {
  int64_t num_read = 0, num_refused = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const std::string bytes = to_bytes(drawn_message(seed % 20), prompt_of);
    const std::string_view payload = base::unsealed(bytes, kFormat);
    Drawn drawn(seed + 2000);
    for (int i = 0; i < 50; ++i) {
      std::string changed(payload);
      for (size_t left = 1 + drawn.below(3); left > 0; --left) {
        const size_t at = drawn.below(changed.size());
        switch (drawn.below(4)) {
          case 0: changed.resize(std::max<size_t>(at, 1)); break;
          case 1: changed.insert(at, drawn.text()); break;
          case 2: changed[at] = static_cast<char>(0xFF); break;
          default: changed[at] ^= static_cast<char>(1 << drawn.below(8)); break;
        }
      }
      ++(reads(base::sealed(changed, kFormat)) ? num_read : num_refused);
    }
  }
  EXPECT_GT(num_read, 100);
  EXPECT_GT(num_refused, 1000);
}

}  // namespace
}  // namespace tandem::sampling
