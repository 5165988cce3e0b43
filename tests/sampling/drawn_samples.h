// Samples and grades of any bits, drawn from a seed, and what is equal of two of them, by hand: so a field that a
// message neither writes nor reads is missed.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/rng.h"
#include "reward/graders.h"
#include "rl/sample.h"

namespace tandem::sampling {

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
  base::Json json() {
    if (flag()) return scalar();
    return base::Json::object({{"a", below(9)}, {"b", {1, "two", nullptr}}});
  }
  // `bytes` with up to three changes: an early end, bytes between others, another byte, another bit.
  std::string changed(std::string bytes) {
    for (size_t left = 1 + below(3); left > 0; --left) {
      const size_t at = below(bytes.size());
      switch (below(4)) {
        case 0: bytes.resize(std::max<size_t>(at, 1)); break;
        case 1: bytes.insert(at, text()); break;
        case 2: bytes[at] = static_cast<char>(0xFF); break;
        default: bytes[at] ^= static_cast<char>(1 << below(8)); break;
      }
    }
    return bytes;
  }

 private:
  uint64_t seed_, next_ = 0;
};

// Compares all but the prompt.
inline rl::Sample drawn_sample(Drawn& drawn) {
  rl::Sample sample;
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
  for (int64_t begin = 0; begin < std::min<int64_t>(std::ssize(sample.completion), 3); ++begin)
    sample.pieces.push_back({.begin = begin, .is_sampled = drawn.flag(), .text = drawn.text()});
  return sample;
}

inline reward::Grade drawn_grade(Drawn& drawn) {
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

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}
inline bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

inline void expect_same(const base::Json& a, const base::Json& b) {
  ASSERT_EQ(a.type(), b.type());
  if (a.is_number_float()) {
    EXPECT_TRUE(same_bits(a.get<double>(), b.get<double>()));
  } else {
    EXPECT_EQ(a, b);
  }
}

inline void expect_same(const rl::Sample& a, const rl::Sample& b) {
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
  ASSERT_EQ(a.pieces.size(), b.pieces.size());
  for (size_t i = 0; i < a.pieces.size(); ++i) {
    EXPECT_EQ(std::tie(a.pieces[i].begin, a.pieces[i].is_sampled, a.pieces[i].text),
              std::tie(b.pieces[i].begin, b.pieces[i].is_sampled, b.pieces[i].text));
  }
}

inline void expect_same(const reward::Grade& a, const reward::Grade& b) {
  EXPECT_EQ(std::tie(a.sample_id, a.failed, a.reason_class, a.reason, a.remove_sample, a.loss_mask, a.status),
            std::tie(b.sample_id, b.failed, b.reason_class, b.reason, b.remove_sample, b.loss_mask, b.status));
  EXPECT_TRUE(same_bits(a.reward, b.reward));
  ASSERT_EQ(a.extras.size(), b.extras.size());
  for (const auto& [name, value] : a.extras) EXPECT_TRUE(same_bits(value, b.extras.at(name)));
  ASSERT_EQ(a.columns.size(), b.columns.size());
  for (const auto& [name, value] : a.columns) expect_same(value, b.columns.at(name));
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

}  // namespace tandem::sampling
