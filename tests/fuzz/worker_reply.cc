// worker/message: whatever a worker process sends is a result, a fault on one line, or nonsense; a reply is whole at
// one length only, however it comes in pieces. A result is also read as the grades of a call: a grade that is accepted
// keeps to its bounds and belongs to its sample; and as a turn of generate functions, which belongs to its sample too.
// An input that begins with 'r' is what came, raw; of any other, the rest is the JSON of a reply and gets its length in
// front.
#include "worker/message.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tests/fuzz/json_mutator.h"

#include "reward/generate_messages.h"
#include "reward/grade_messages.h"

using namespace tandem::fuzz;
using namespace tandem::reward;
using namespace tandem::worker;

namespace {

constexpr uint64_t kId = 7;

void check_arrival(std::string_view bytes) {
  const Arrival all = arrival_of(bytes);
  for (const size_t num_cut : {size_t{1}, size_t{2}, bytes.size() / 2}) {
    if (num_cut == 0 || num_cut > bytes.size()) continue;
    const Arrival piece = arrival_of(bytes.substr(0, bytes.size() - num_cut));
    require(piece == Arrival::kPartial || all == Arrival::kNonsense, "only nonsense is whole before its end");
  }
}

std::vector<GradeRequest> samples_of_a_call(size_t count) {
  std::vector<GradeRequest> samples(count);
  for (size_t i = 0; i < count; ++i) {
    samples[i].sample_id = 100 + i;
    samples[i].response_tokens.assign(1 + i % 4, 5);
  }
  return samples;
}

template <typename Map>
void require_names(const Map& named) {
  require(named.size() <= 256, "a grade has so many names at most");
  for (const auto& [name, value] : named) require(name.size() <= 800, "a name is short");
}

void require_grade(const Grade& grade, const GradeRequest& sample) {
  static constexpr std::array<std::string_view, 3> kStatuses = {"completed", "truncated", "aborted"};
  require(grade.sample_id == sample.sample_id, "grades are in the order of their samples");
  require(std::isfinite(grade.reward) && (!grade.failed || grade.reward == 0.0), "a reward is a finite number");
  require(grade.failed == !grade.reason_class.empty(), "a failure has a class");
  require(grade.reason.find('\n') == std::string::npos && grade.reason.size() < 5000, "a reason is one short line");
  require_names(grade.extras);
  require_names(grade.columns);
  require_names(grade.metrics);
  for (const auto& [name, value] : grade.extras) require(std::isfinite(value), "an extra is a finite number", name);
  for (const auto& [name, values] : grade.metrics) {
    require(std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); }), "so is a metric",
            name);
  }
  for (const auto& [name, value] : grade.columns) require(value.is_primitive(), "a column holds one value", name);
  if (grade.status) require(std::ranges::count(kStatuses, *grade.status) == 1, "a status is one of three");
  if (!grade.loss_mask) return;
  require(grade.loss_mask->size() == sample.response_tokens.size(), "a mask has a bit for each token");
  require(std::ranges::all_of(*grade.loss_mask, [](uint8_t bit) { return bit <= 1; }), "a mask is 0 or 1");
}

// The call asked for as many samples as there are grades, and for one more.
void check_grades(const tandem::base::Json& result) {
  for (const size_t more : {size_t{0}, size_t{1}}) {
    const auto samples = samples_of_a_call(std::min<size_t>(result.size(), 300) + more);
    try {
      const std::vector<Grade> grades = grades_of(result, samples);
      require(more == 0 && grades.size() == samples.size(), "each sample has its grade, and no other");
      for (size_t i = 0; i < grades.size(); ++i) require_grade(grades[i], samples[i]);
    } catch (const BadReply& bad) {
      require_message(bad.what(), "answered ");
    }
  }
}

void check_turns(const tandem::base::Json& result) {
  try {
    for (const GeneratorReply::Ended& ended : reply_of(result).ended) {
      const Generated& made = ended.result;
      require(made.failure.find('\n') == std::string::npos && made.failure.size() < 5000,
              "a failure is one short line");
      if (!made.failure.empty()) continue;
      require(made.response_length >= 0 && made.response_length <= std::ssize(made.tokens),
              "a response has its tokens");
      require(made.loss_mask.empty() || std::ssize(made.loss_mask) == made.response_length,
              "a mask has a bit for each");
      require(made.metadata.is_object() && made.attributes.is_object(), "what is left has names");
    }
  } catch (const BadReply& bad) {
    require_message(bad.what(), "answered ");
  }
}

void check_result(std::string_view reply) {
  try {
    const tandem::base::Json result = result_of(reply, kId);
    check_grades(result);
    check_turns(result);
    // An accepted result can be sent: it goes into a request and comes out of it as it was.
    const std::string request = framed_request(kId, "echo", result);
    require(arrival_of(request) == Arrival::kWhole, "a request is one whole message");
    const auto again = tandem::base::parse_json(std::string_view(request).substr(4), "request");
    require(again.at("arguments") == result, "a request holds its arguments", request);
  } catch (const tandem::UserError& fault) {
    require_message(fault.what(), "");
  } catch (const tandem::EnvironmentError& fault) {
    require_message(fault.what(), "");
  } catch (const BadReply& bad) {
    require_message(bad.what(), "answered ");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string bytes(text_of(data, size).substr(1));
  if (data[0] != 'r') {
    const auto length = static_cast<uint32_t>(bytes.size());
    bytes.insert(0, reinterpret_cast<const char*>(&length), sizeof length);
  }
  const std::vector<char> exact(bytes.begin(), bytes.end());
  const std::string_view arrived(exact.data(), exact.size());
  check_arrival(arrived);
  if (arrival_of(arrived) == Arrival::kWhole) check_result(arrived);
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return mutate_json(data, size, max_size, seed, /*num_prefix=*/1);
}
