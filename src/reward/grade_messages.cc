#include "reward/grade_messages.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/message_text.h"
#include "base/utf8_stream.h"
#include "worker/message.h"

namespace tandem::reward {
namespace {

using base::Json;
using worker::kMaxReasonBytes;

// python/tandem_worker/outcomes.py has the same bounds, and refuses more with a reason.
constexpr size_t kMaxNames = 256;
constexpr size_t kMaxNameBytes = 800;   // 200 characters
constexpr size_t kMaxTextBytes = 8000;  // 2000 characters

void require_grades(bool holds) {
  if (!holds) throw worker::BadReply("answered with something other than grades");
}

Json request_json(const GradeRequest& sample) {
  Json json = {{"group_id", sample.group_id},
               {"sample_id", sample.sample_id},
               {"prompt", sample.prompt},
               {"prompt_text", base::utf8_text(sample.prompt_text)},
               {"response", base::utf8_text(sample.response)},
               {"label", sample.label},
               {"metadata", sample.metadata.is_object() ? sample.metadata : Json::object()},
               {"rm_type", sample.rm_type},
               {"prompt_tokens", sample.prompt_tokens},
               {"response_tokens", sample.response_tokens},
               {"truncated", sample.truncated}};
  if (!sample.loss_mask.empty()) json["loss_mask"] = sample.loss_mask;
  if (!sample.attributes.empty()) json["attributes"] = sample.attributes;
  if (const std::optional<TrainingState>& state = sample.state) {
    json["trainer_state"] = {{"global_step", state->global_step},
                             {"max_steps", state->max_steps},
                             {"epoch", state->epoch},
                             {"num_train_epochs", state->num_train_epochs}};
  }
  if (const std::optional<Graded>& graded = sample.graded) {
    json["graded"] = {{"reward", graded->reward},
                      {"extras", graded->extras},
                      {"remove_sample", graded->remove_sample},
                      {"status", graded->status}};
  }
  return json;
}

const Json* find_member(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

const std::string& text_of(const Json& value, size_t max_bytes) {
  require_grades(value.is_string() && value.get_ref<const std::string&>().size() <= max_bytes);
  return value.get_ref<const std::string&>();
}

double number_of(const Json& value) {
  require_grades(value.is_number());
  return value.get<double>();
}

// Calls f(name, value) for each member of an object with names.
template <typename F>
void for_each_named(const Json& object, F f) {
  require_grades(object.is_object() && object.size() <= kMaxNames);
  for (const auto& [name, value] : object.items()) {
    require_grades(name.size() <= kMaxNameBytes);
    f(name, value);
  }
}

std::vector<uint8_t> mask_of(const std::string& text, size_t num_tokens) {
  require_grades(text.size() == num_tokens && text.find_first_not_of("01") == std::string::npos);
  std::vector<uint8_t> mask;
  mask.reserve(text.size());
  for (const char c : text) mask.push_back(c == '1' ? 1 : 0);
  return mask;
}

void read_logs(const Json& outcome, Grade& grade) {
  if (const Json* columns = find_member(outcome, "columns")) {
    for_each_named(*columns, [&](const std::string& name, const Json& value) {
      require_grades(value.is_primitive());
      if (value.is_string()) text_of(value, kMaxTextBytes);
      grade.columns[name] = value;
    });
  }
  if (const Json* metrics = find_member(outcome, "metrics")) {
    for_each_named(*metrics, [&](const std::string& name, const Json& values) {
      require_grades(values.is_array());
      for (const Json& value : values) grade.metrics[name].push_back(number_of(value));
    });
  }
}

void read_failure(const Json& outcome, Grade& grade) {
  constexpr std::array<std::string_view, 11> kClasses = {"exception",  "deadline",    "memory", "not_finite",
                                                         "wrong_type", "wrong_count", "none",   "status",
                                                         "service",    "http",        "line"};
  grade.failed = true;
  grade.reason_class = text_of(outcome.at("failed"), kMaxNameBytes);
  require_grades(std::find(kClasses.begin(), kClasses.end(), grade.reason_class) != kClasses.end());
  require_grades(outcome.contains("reason"));
  grade.reason = base::one_line(text_of(outcome.at("reason"), kMaxReasonBytes), kMaxReasonBytes);
}

// Reads what a slime function wrote into its sample.
void read_written(const Json& outcome, const GradeRequest& sample, Grade& grade) {
  if (const Json* remove = find_member(outcome, "remove_sample")) {
    require_grades(remove->is_boolean());
    grade.remove_sample = remove->get<bool>();
  }
  if (const Json* mask = find_member(outcome, "loss_mask")) {
    grade.loss_mask = mask_of(text_of(*mask, sample.response_tokens.size()), sample.response_tokens.size());
  }
  if (const Json* status = find_member(outcome, "status")) {
    constexpr std::array<std::string_view, 3> kStatuses = {"completed", "truncated", "aborted"};
    grade.status = text_of(*status, kMaxNameBytes);
    require_grades(std::find(kStatuses.begin(), kStatuses.end(), *grade.status) != kStatuses.end());
  }
}

Grade grade_of(const Json& outcome, const GradeRequest& sample) {
  require_grades(outcome.is_object());
  Grade grade;
  grade.sample_id = sample.sample_id;
  read_logs(outcome, grade);
  if (outcome.contains("failed")) {
    read_failure(outcome, grade);
    return grade;
  }
  require_grades(outcome.contains("reward") && outcome.contains("extras"));
  grade.reward = number_of(outcome.at("reward"));
  for_each_named(outcome.at("extras"),
                 [&](const std::string& name, const Json& value) { grade.extras[name] = number_of(value); });
  read_written(outcome, sample, grade);
  return grade;
}

}  // namespace

Json to_json(const std::vector<GradeRequest>& samples) {
  Json array = Json::array();
  for (const GradeRequest& sample : samples) array.push_back(request_json(sample));
  return array;
}

std::vector<Grade> grades_of(const Json& message, const std::vector<GradeRequest>& samples) {
  require_grades(message.is_array() && message.size() == samples.size());
  std::vector<Grade> grades;
  for (size_t i = 0; i < samples.size(); ++i) grades.push_back(grade_of(message[i], samples[i]));
  return grades;
}

std::vector<Grade> all_failed(const std::vector<GradeRequest>& samples, const std::string& reason_class,
                              const std::string& reason) {
  std::vector<Grade> grades;
  for (const GradeRequest& sample : samples) {
    Grade grade;
    grade.sample_id = sample.sample_id;
    grade.failed = true;
    grade.reason_class = reason_class;
    grade.reason = reason;
    grades.push_back(grade);
  }
  return grades;
}

}  // namespace tandem::reward
