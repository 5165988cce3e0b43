// Guesses how the samples of one prompt go on, and says when a guess is worth its time. No model has a part in it.
//
// A guess is text that was seen before: it follows the last tokens of a sample where the same tokens stand earlier in
// its own text, or in the text of another sample of its group. The longest match counts, of matches of one length the
// one that was seen last.
//
// The engine computes a guess in rows of the next step, which takes longer with them; a token that was guessed right
// saves a step. So each sample has a credit, in hundredths of a step. Tokens that are drawn raise it by little, right
// guesses by a whole step each, and a guess lowers it by its price. Without credit nothing is guessed: a sample that
// cannot be guessed loses about a hundredth of its time. All of this counts tokens and never looks at a clock, so it is
// the same in every run and on every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace tandem::rollout {

class Drafter {
 public:
  Drafter(const std::vector<int32_t>& prompt, size_t num_samples);

  // Takes the tokens of the sample's completion that it does not know yet. A completion only grows.
  void read(size_t sample, std::span<const int32_t> completion);
  // Returns whether the sample has credit and a guess of so many tokens.
  bool can_guess(size_t sample, int64_t num_tokens) const;
  // Lowers the credit of a sample for whose guess the device waits for the host. The guess itself may be made then.
  void charge_wait(size_t sample);
  // Returns the tokens that should come next, at most so many: none if the text has no match or the sample no credit.
  // The price is due at once, the credit for right ones at the next read().
  std::vector<int32_t> guess(size_t sample, int64_t most);

 private:
  struct Sample {
    std::vector<int32_t> text;  // prompt and completion
    int64_t credit = 0;
    int64_t longest_guess = 3;   // grows with right guesses, shrinks with wrong ones
    std::vector<int32_t> guess;  // the last one, until tokens come
  };
  // A place in a text at which the last tokens before it are those of its key.
  struct Place {
    int32_t sample = 0, position = 0;
    int32_t previous = -1;  // index of the place with the same key that was seen before; -1: none
  };

  // Returns no token if the credit is below `least_credit`.
  std::vector<int32_t> continuation(const Sample& sample, int64_t least_credit, int64_t most) const;
  // Compares the last guess with the tokens that came.
  static void settle(Sample& sample, std::span<const int32_t> drawn);
  // Adds the places from `begin` to the end of the sample's text.
  void add_places(size_t sample, size_t begin);
  // Returns the place before which the text's last tokens match best, or nullptr.
  const Place* best_place(const std::vector<int32_t>& text) const;
  // Returns how many of the last tokens of `text` stand before the place, in order.
  size_t match_length(const std::vector<int32_t>& text, const Place& place) const;

  const size_t prompt_tokens_;
  std::vector<Sample> samples_;
  std::vector<Place> places_;
  std::unordered_map<uint64_t, int32_t> last_places_;  // by key: index of the place that was seen last
};

}  // namespace tandem::rollout
