// Grades that a grader process may send, which has run user code: what no honest one writes is refused.
#include "reward/grade_messages.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/message.h"

namespace tandem::reward {
namespace {

std::vector<GradeRequest> two_samples() {
  GradeRequest sample;
  sample.sample_id = 5;
  sample.response_tokens = {7, 8, 9};
  return {sample, sample};
}

std::vector<Grade> parsed(const std::string& message) {
  return grades_of(base::parse_json(message, "grades"), two_samples());
}

// The first of two grades.
Grade first(const std::string& grade) { return parsed("[" + grade + R"(, {"reward": 0, "extras": {}}])").at(0); }

TEST(GradeMessages, HoldWhatAGraderSays) {
  const Grade grade = first(R"({"reward": 1.5, "extras": {"acc": 1}, "remove_sample": true, "loss_mask": "011",
      "status": "aborted", "columns": {"a": "x", "b": null, "c": 2}, "metrics": {"m": [1, 2.5]}})");
  EXPECT_EQ(grade.sample_id, 5U);
  EXPECT_EQ(grade.reward, 1.5);
  EXPECT_EQ(grade.extras.at("acc"), 1.0);
  EXPECT_EQ(grade.remove_sample, true);
  EXPECT_EQ(grade.loss_mask, (std::vector<uint8_t>{0, 1, 1}));
  EXPECT_EQ(grade.status, "aborted");
  EXPECT_EQ(grade.columns.at("b"), nullptr);
  EXPECT_EQ(grade.metrics.at("m"), (std::vector<double>{1, 2.5}));

  const Grade failed = first(R"({"failed": "none", "reason": "a\nb", "columns": {"a": 1}, "loss_mask": "011"})");
  EXPECT_TRUE(failed.failed);
  EXPECT_EQ(failed.reason_class, "none");
  EXPECT_EQ(failed.reason.find('\n'), std::string::npos);
  EXPECT_EQ(failed.columns.at("a"), 1);
  EXPECT_FALSE(failed.loss_mask);
}

TEST(GradeMessages, AreRefusedWhenNoHonestGraderWritesThem) {
  std::string many = "{";
  for (int i = 0; i < 257; ++i) many += (i == 0 ? "\"" : ", \"") + std::to_string(i) + "\": 1";
  many += "}";
  const std::string good = R"({"reward": 1, "extras": {})";
  for (const std::string& grade : {std::string("1"),
                                   std::string("{}"),
                                   std::string("null"),
                                   std::string(R"({"reward": "1", "extras": {}})"),
                                   std::string(R"({"reward": null, "extras": {}})"),
                                   std::string(R"({"reward": 1})"),
                                   std::string(R"({"reward": 1, "extras": []})"),
                                   std::string(R"({"reward": 1, "extras": {"a": "b"}})"),
                                   R"({"reward": 1, "extras": )" + many + "}",
                                   R"({"reward": 1, "extras": {")" + std::string(801, 'x') + "\": 1}}",
                                   std::string(R"({"failed": "exception"})"),
                                   std::string(R"({"failed": "bad luck", "reason": ""})"),
                                   std::string(R"({"failed": true, "reason": ""})"),
                                   std::string(R"({"failed": "none", "reason": 1})"),
                                   R"({"failed": "none", "reason": ")" + std::string(5000, 'x') + "\"}",
                                   good + R"(, "remove_sample": 1})",
                                   good + R"(, "loss_mask": "01"})",
                                   good + R"(, "loss_mask": "012"})",
                                   good + R"(, "loss_mask": [0, 1, 1]})",
                                   good + R"(, "status": "failed"})",
                                   good + R"(, "status": 1})",
                                   good + R"(, "columns": {"a": [1]}})",
                                   good + R"(, "columns": {"a": ")" + std::string(9000, 'x') + "\"}}",
                                   good + R"(, "columns": )" + many + "}",
                                   good + R"(, "metrics": {"a": 1}})",
                                   good + R"(, "metrics": {"a": ["1"]}})"}) {
    EXPECT_THROW(first(grade), worker::BadReply) << grade.substr(0, 100);
  }
  EXPECT_THROW(parsed("[]"), worker::BadReply);
  EXPECT_THROW(parsed("{}"), worker::BadReply);
  EXPECT_THROW(parsed("[" + good + "}]"), worker::BadReply);
}

}  // namespace
}  // namespace tandem::reward
