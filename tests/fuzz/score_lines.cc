// run/score_lines: what `tandem score` accepts has ids of the model and something to score; a refusal names the line.
#include "run/score_lines.h"

#include <algorithm>

#include "tests/fuzz/json_mutator.h"

using namespace tandem::fuzz;
using tandem::run::ScoreLine;

namespace {

constexpr int64_t kVocab = 1000;

bool are_known(const std::vector<int32_t>& tokens) {
  return std::all_of(tokens.begin(), tokens.end(), [](int32_t id) { return id >= 0 && id < kVocab; });
}

void check_line(const ScoreLine& line) {
  const auto check_message = [&](std::string_view message) { require_message(message, line.place + ": "); };
  if (!line.has_tokens()) {
    for (const char* key : {"prompt", "response"}) accepts([&] { text_of(line, key); }, check_message);
    return;
  }
  accepts(
      [&] {
        const tandem::rl::Sample sample = token_sample(line, kVocab);
        require(!sample.prompt->tokens.empty() && !sample.completion.empty(), "one token before and one to score");
        require(are_known(sample.prompt->tokens) && are_known(sample.completion), "all ids are the model's");
        const size_t length = sample.prompt->tokens.size() + sample.completion.size();
        require(length == line.record.at("tokens").size(), "no token is lost");
      },
      check_message);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const MemoryFile file;
  file.write(text_of(data, size));
  accepts(
      [] {
        const std::vector<ScoreLine> lines = tandem::run::read_score_lines(file.path());
        require(!lines.empty(), "an accepted file has lines");
        for (const ScoreLine& line : lines) check_line(line);
      },
      [](std::string_view message) { require_message(message, file.path() + ":"); });
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return mutate_json_lines(data, size, max_size, seed);
}
