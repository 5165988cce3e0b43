#include "device_check/answers.h"

#include <fmt/format.h>

#include <cstdio>

namespace tandem::device_check {

void Answers::begin(std::string_view section) {
  section_ = section;
  record_[section_] = base::Json::array();
}

void Answers::answer(const std::string& question, bool is_yes, const std::string& detail) {
  if (!is_yes && first_no_.empty()) first_no_ = fmt::format("{}: {}", section_, question);
  base::Json entry = {{"question", question}, {"answer", is_yes ? "yes" : "no"}};
  if (!detail.empty()) entry["detail"] = detail;
  record_[section_].push_back(std::move(entry));
  if (!prints_) return;
  fmt::print("{:<4} {:<8} {}{}{}\n", is_yes ? "yes" : "NO", section_, question, detail.empty() ? "" : ": ", detail);
  std::fflush(stdout);
}

void Answers::answer(const std::string& question, const Comparison& comparison, const std::string& what) {
  answer(question, comparison.is_equal(), comparison.text(what));
}

void Answers::tell(const std::string& what, const base::Json& value) {
  record_[section_].push_back({{"what", what}, {"value", value}});
  if (!prints_) return;
  fmt::print("     {:<8} {}: {}\n", section_, what,
             value.is_string() ? value.get<std::string>() : base::dump_json(value));
  std::fflush(stdout);
}

}  // namespace tandem::device_check
