#include "checkpoint/saving_ranks.h"

#include <exception>

#include "tandem/error.h"

namespace tandem::checkpoint {

namespace {

// A rank's message to the others begins with one of these: its result follows, or the words of its error.
constexpr char kDone = '+', kFailed = '-';

}  // namespace

std::vector<std::string> SavingRanks::together(const std::function<std::string()>& work) const {
  if (size == 1) return {work()};
  std::exception_ptr own;
  std::string mine;
  try {
    mine = kDone + work();
  } catch (const std::exception& error) {
    own = std::current_exception();
    mine = kFailed + std::string(error.what());
  }
  std::vector<std::string> texts = all_gather(mine);
  if (own) std::rethrow_exception(own);
  for (std::string& text : texts) {
    if (text.front() == kFailed) throw EnvironmentError(text.substr(1));
    text.erase(0, 1);
  }
  return texts;
}

void SavingRanks::wait_for_all() const {
  together([] { return std::string(); });
}

bool SavingRanks::of_conductor(const std::function<bool()>& question) const {
  const std::vector<std::string> answers =
      together([&] { return is_conductor() && question() ? std::string("yes") : std::string(); });
  return !answers.front().empty();
}

void SavingRanks::conductor_alone(const std::function<void()>& work) const {
  together([&] {
    if (is_conductor()) work();
    return std::string();
  });
}

}  // namespace tandem::checkpoint
