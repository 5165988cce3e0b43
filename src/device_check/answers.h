// The answers of `tandem device --check`: a line for each question, and the same as JSON. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"
#include "bench/comparison.h"

namespace tandem::device_check {

using bench::Comparison;

class Answers {
 public:
  // `prints` tells whether people see the lines; the record is kept in any case.
  explicit Answers(bool prints) : prints_(prints) {}

  // A section holds the questions that follow: "memory".
  void begin(std::string_view section);
  // Answers a question. Where the answer is no, `detail` says what was seen.
  void answer(const std::string& question, bool is_yes, const std::string& detail = "");
  // Answers whether two lists of numbers agree; `what` they are: "numbers", "log-probs".
  void answer(const std::string& question, const Comparison& comparison, const std::string& what = "numbers");
  // Tells something that is neither right nor wrong.
  void tell(const std::string& what, const base::Json& value);

  bool all_yes() const { return first_no_.empty(); }
  // Returns the first question that was answered by no, with its section: "rows: rms_norm".
  const std::string& first_no() const { return first_no_; }
  const base::Json& record() const { return record_; }

 private:
  bool prints_;
  std::string section_, first_no_;
  base::Json record_ = base::Json::object();
};

}  // namespace tandem::device_check
