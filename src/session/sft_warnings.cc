#include "session/sft_warnings.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "base/log.h"
#include "data/lines.h"

namespace tandem::session {

namespace {

// Returns whether an assistant's message says nothing: no text, no reasoning and no call of a tool.
bool is_empty_message(const base::Json& message) {
  for (const auto& [key, value] : message.items()) {
    const bool is_text = value.is_string() && !data::is_blank(value.get_ref<const std::string&>());
    if (key != "role" && (is_text || (!value.is_string() && !value.empty()))) return false;
  }
  return true;
}

bool has_empty_answer(const data::SftRecord& record) {
  if (record.messages.is_null()) return data::is_blank(record.response);
  return std::ranges::any_of(record.trained, [&](size_t i) { return is_empty_message(record.messages[i]); });
}

}  // namespace

void warn_of_answers(const data::SftData& data, const std::string& path) {
  const auto warn = [&](auto&& is_one, std::string_view what) {
    const auto first = std::ranges::find_if(data.records, is_one);
    if (first == data.records.end()) return;
    base::log_warning("{}: {} of {} lines {}; the first is line {}", path, std::ranges::count_if(data.records, is_one),
                      data.records.size(), what, first->line);
  };
  warn([](const data::SftRecord& record) { return !record.is_desirable; },
       "have a label that is false, and their answers are imitated like the others (--preference-loss kto learns from "
       "the label)");
  warn(has_empty_answer, "have an answer without any text, which the model learns to give");
}

void warn_of_preferences(const SftSamples& samples, data::Answers answers) {
  if (answers == data::Answers::kPairs) {
    size_t num_alike = 0, first = 0;
    for (size_t i = 0; i + 1 < samples.samples.size(); i += 2) {
      if (samples.samples[i].completion != samples.samples[i + 1].completion) continue;
      if (num_alike++ == 0) first = i;
    }
    if (num_alike > 0) {
      base::log_warning(
          "{}: chosen and rejected are the same answer, as in {} of {} pairs: nothing is learnt from them",
          samples.places[first], num_alike, samples.samples.size() / 2);
    }
  } else if (answers == data::Answers::kLabelled) {
    const bool label = samples.desirable.front() != 0;
    if (std::ranges::all_of(samples.desirable, [&](uint8_t one) { return (one != 0) == label; })) {
      base::log_warning(
          "the labels of all {} answers are {}: --preference-loss kto weighs desirable answers against "
          "others, and there is one kind alone",
          samples.desirable.size(), label);
    }
  }
}

}  // namespace tandem::session
