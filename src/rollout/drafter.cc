#include "rollout/drafter.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace tandem::rollout {

namespace {

constexpr size_t kKeyTokens = 3;      // a match has at least so many tokens
constexpr size_t kLongestMatch = 32;  // longer matches are equally good
constexpr int64_t kMostPlaces = 16;   // places that are compared for one guess

// Hundredths of a decode step. A step of 16 rows in the place of one took 1.0 to 1.4 times as long where it was
// measured (bench/results/speculative.md), and its price is 1.35.
constexpr int64_t kTokenCredit = 1, kRightCredit = 100, kMostCredit = 100;
constexpr int64_t kWaitPrice = 5, kRowPrice = 2;

// Different tokens may have one key: a match is compared token by token.
uint64_t key_before(const std::vector<int32_t>& text, size_t position) {
  uint64_t key = 0;
  for (size_t i = position - kKeyTokens; i < position; ++i) key = key << 21 ^ static_cast<uint64_t>(text[i]);
  return key;
}

}  // namespace

Drafter::Drafter(const std::vector<int32_t>& prompt, size_t num_samples)
    : prompt_tokens_(prompt.size()), samples_(num_samples) {
  for (Sample& sample : samples_) sample.text = prompt;
  add_places(0, 0);
}

void Drafter::read(size_t index, std::span<const int32_t> completion) {
  Sample& sample = samples_[index];
  const size_t known = sample.text.size();
  TANDEM_CHECK(prompt_tokens_ + completion.size() >= known, "a completion has lost tokens");
  const std::span<const int32_t> drawn = completion.subspan(known - prompt_tokens_);
  if (drawn.empty()) return;
  if (!sample.guess.empty()) settle(sample, drawn);
  sample.credit = std::min(kMostCredit, sample.credit + kTokenCredit * std::ssize(drawn));
  sample.text.insert(sample.text.end(), drawn.begin(), drawn.end());
  add_places(index, known);
}

void Drafter::add_places(size_t index, size_t begin) {
  const std::vector<int32_t>& text = samples_[index].text;
  for (size_t position = std::max(begin, kKeyTokens); position < text.size(); ++position) {
    const auto [last, is_first] = last_places_.try_emplace(key_before(text, position), -1);
    places_.push_back(
        {.sample = static_cast<int32_t>(index), .position = static_cast<int32_t>(position), .previous = last->second});
    last->second = static_cast<int32_t>(places_.size() - 1);
  }
}

size_t Drafter::match_length(const std::vector<int32_t>& text, const Place& place) const {
  const std::vector<int32_t>& other = samples_[static_cast<size_t>(place.sample)].text;
  const auto position = static_cast<size_t>(place.position);
  const size_t most = std::min({text.size(), position, kLongestMatch});
  size_t length = 0;
  while (length < most && text[text.size() - 1 - length] == other[position - 1 - length]) ++length;
  return length;
}

const Drafter::Place* Drafter::best_place(const std::vector<int32_t>& text) const {
  if (text.size() < kKeyTokens) return nullptr;
  const auto last = last_places_.find(key_before(text, text.size()));
  if (last == last_places_.end()) return nullptr;
  const Place* best = nullptr;
  size_t best_length = kKeyTokens - 1;
  int32_t index = last->second;
  for (int64_t i = 0; i < kMostPlaces && index >= 0; ++i) {
    const Place& place = places_[static_cast<size_t>(index)];
    index = place.previous;
    const size_t length = match_length(text, place);
    if (length <= best_length) continue;
    best_length = length;
    best = &place;
  }
  return best;
}

std::vector<int32_t> Drafter::continuation(const Sample& sample, int64_t least_credit, int64_t most) const {
  const Place* const place = sample.credit < least_credit ? nullptr : best_place(sample.text);
  if (place == nullptr) return {};
  const std::vector<int32_t>& source = samples_[static_cast<size_t>(place->sample)].text;
  std::vector<int32_t> tokens;
  for (auto next = static_cast<size_t>(place->position); std::ssize(tokens) < most; ++next) {
    if (next < source.size()) {
      tokens.push_back(source[next]);
    } else if (&source == &sample.text) {
      tokens.push_back(tokens[next - source.size()]);  // the text repeats itself, and the guess goes on with itself
    } else {
      break;
    }
  }
  return tokens;
}

bool Drafter::can_guess(size_t index, int64_t num_tokens) const {
  return std::ssize(continuation(samples_[index], /*least_credit=*/0, num_tokens)) == num_tokens;
}

void Drafter::charge_wait(size_t index) { samples_[index].credit -= kWaitPrice; }

std::vector<int32_t> Drafter::guess(size_t index, int64_t most) {
  Sample& sample = samples_[index];
  sample.guess = continuation(sample, -kWaitPrice, std::min(most, sample.longest_guess));
  if (!sample.guess.empty()) sample.credit -= kWaitPrice + kRowPrice * std::ssize(sample.guess);
  return sample.guess;
}

void Drafter::settle(Sample& sample, std::span<const int32_t> drawn) {
  const auto right = std::ranges::mismatch(sample.guess, drawn).in1 - sample.guess.begin();
  sample.credit += right * kRightCredit;
  // With the row before it a guess fills a step of 2, 4, 8 or 16 rows.
  sample.longest_guess = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(right + 2))) - 1;
  sample.guess.clear();
}

}  // namespace tandem::rollout
