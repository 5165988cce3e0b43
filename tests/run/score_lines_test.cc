// Checks the lines of `tandem score`. tests/fuzz/score_lines.cc checks all that they may not be.
#include "run/score_lines.h"

#include <gtest/gtest.h>

#include "base/files.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"
#include "tests/base/thrown.h"

namespace tandem::run {
namespace {

constexpr int64_t kVocab = 10;

TEST(ScoreLines, ASequenceIsTokensOrTwoTexts) {
  const base::TemporaryDirectory folder;
  const std::string path = folder / "lines.jsonl";
  base::write_file_durably(path, "{\"tokens\":[1,2,3],\"prompt_length\":2}\n\n{\"prompt\":\"a\",\"response\":\"b\"}\n");
  const std::vector<ScoreLine> lines = read_score_lines(path);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_TRUE(lines[0].has_tokens());
  EXPECT_EQ(token_sample(lines[0], kVocab).prompt->tokens, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(token_sample(lines[0], kVocab).completion, (std::vector<int32_t>{3}));
  EXPECT_EQ(lines[1].place, path + ":3");
  EXPECT_EQ(text_of(lines[1], "response"), "b");
  // A table of both kinds has null in the columns of the other.
  base::write_file_durably(path, R"({"tokens": null, "prompt_length": null, "prompt": "a", "response": "b"})"
                                 "\n"
                                 R"({"tokens": [1, 2], "prompt_length": null, "prompt": null, "response": null})");
  const std::vector<ScoreLine> mixed = read_score_lines(path);
  EXPECT_FALSE(mixed.at(0).has_tokens());
  EXPECT_TRUE(mixed.at(1).has_tokens());
  EXPECT_EQ(token_sample(mixed[1], kVocab).prompt->tokens, std::vector<int32_t>{1});
}

TEST(ScoreLines, OfASliceAreSomeAndTheFirstWrongOneIsRefused) {
  const base::TemporaryDirectory folder;
  const std::string path = folder / "lines.jsonl";
  base::write_file_durably(path, "{\"tokens\":[1,2]}\n{\"tokens\":[3,4]}\n\n{\"tokens\":[5,6]}\n");
  const std::vector<ScoreLine> lines = read_score_lines(path + "@[1:]");
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].place, path + ":2");
  EXPECT_EQ(lines[1].place, path + ":4");
  const auto refusal = [&](const std::string& text) {
    base::write_file_durably(path, text);
    return base::thrown_by([&] { read_score_lines(path); }, "accepted");
  };
  EXPECT_EQ(refusal("{}\n7\n[]\n"), path + ":2:1: the line is a JSON number - write one object {...} per line");
  EXPECT_TRUE(refusal("\n \n").starts_with(path + ": no record to work on: 2 blank and 0 bad lines"));
}

// A long list in place of an id was once quoted whole in the error's one line.
TEST(ScoreLines, ARefusalNamesTheLineAndIsShort) {
  const ScoreLine line = {.place = "f.jsonl:7", .record = {{"tokens", {1, std::vector<int>(100000, 1)}}}};
  try {
    token_sample(line, kVocab);
    FAIL();
  } catch (const UserError& error) {
    const std::string message = error.what();
    EXPECT_TRUE(message.starts_with("f.jsonl:7: [1,1")) << message;
    EXPECT_LT(message.size(), 300U);
  }
}

}  // namespace
}  // namespace tandem::run
