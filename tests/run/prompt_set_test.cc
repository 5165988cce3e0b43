// Prompts as the run sees them: templates, lengths, vocabulary.
#include "run/prompt_set.h"

#include <gtest/gtest.h>

#include "base/files.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"

namespace tandem::run {
namespace {

constexpr const char* kModel = "tests/golden/models/qwen3-tied";

// One worker for all tests: starting Python takes longer than they do.
text::TextWorker& worker() {
  static text::TextWorker text(text::default_worker_config(), kModel);
  return text;
}

class PromptSetTest : public testing::Test {
 protected:
  PromptSet load(const std::string& lines) {
    base::write_file_durably(folder_ / "data.jsonl", lines);
    options_.prompt_data = folder_ / "data.jsonl";
    return load_prompts(options_, worker());
  }
  std::string refusal(const std::string& lines) {
    try {
      load(lines);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
  base::TemporaryDirectory folder_;
  DataOptions options_;
};

TEST_F(PromptSetTest, RendersMessagesAndLeavesTextsAlone) {
  const PromptSet set = load(
      "{\"prompt\": \"1 + 1 =\", \"label\": 2}\n"
      "{\"prompt\": [{\"role\": \"user\", \"content\": \"1 + 1?\"}], \"label\": \"2\", \"level\": 3}\n");
  ASSERT_EQ(set.prompts.size(), 2U);
  EXPECT_EQ(set.prompts[0].text, "1 + 1 =");
  EXPECT_EQ(set.prompts[0].record.label, "2");
  EXPECT_NE(set.prompts[1].text.find("1 + 1?"), std::string::npos);
  EXPECT_GT(set.prompts[1].text.size(), set.prompts[0].text.size());
  EXPECT_TRUE(set.prompts[1].text.ends_with("assistant\n")) << set.prompts[1].text;
  EXPECT_EQ(worker().decode({set.prompts[1].tokens}, false).front(), set.prompts[1].text);
  EXPECT_EQ(set.longest_tokens, static_cast<int64_t>(set.prompts[1].tokens.size()));
}

TEST_F(PromptSetTest, TemplateForTextsOnRequest) {
  const std::string line = "{\"prompt\": \"1 + 1?\"}\n";
  options_.apply_chat_template = true;
  const std::string as_user = load(line).prompts[0].text;
  options_.apply_chat_template.reset();
  EXPECT_EQ(as_user, load("{\"prompt\": [{\"role\": \"user\", \"content\": \"1 + 1?\"}]}\n").prompts[0].text);
}

TEST_F(PromptSetTest, TemplateArgumentsReachTheTemplate) {
  const std::string line = "{\"prompt\": [{\"role\": \"user\", \"content\": \"1 + 1?\"}]}\n";
  const std::string thinking = load(line).prompts[0].text;
  options_.apply_chat_template_kwargs = "{\"enable_thinking\": false}";
  EXPECT_NE(load(line).prompts[0].text, thinking);
  options_.apply_chat_template_kwargs = "[1]";
  EXPECT_NE(refusal(line).find("--apply-chat-template-kwargs"), std::string::npos);
}

TEST_F(PromptSetTest, LongPromptsAreLeftOutAndCounted) {
  options_.max_prompt_len = 8;
  const PromptSet set = load("{\"prompt\": \"ab\"}\n{\"prompt\": \"a b c d e f g h i j k l m n o p q r s t\"}\n");
  EXPECT_EQ(set.prompts.size(), 1U);
  EXPECT_EQ(set.num_too_long, 1);
  EXPECT_NE(refusal("{\"prompt\": \"a b c d e f g h i j k l m n o p q r s t\"}\n").find("--rollout-max-prompt-len"),
            std::string::npos);
}

TEST_F(PromptSetTest, MalformedLinesNameTheirPlaceOrAreCounted) {
  const std::string lines = "{\"prompt\": \"ab\"}\n{\"prompt\": \n";
  EXPECT_NE(refusal(lines).find("data.jsonl:2:"), std::string::npos) << refusal(lines);
  options_.skip_bad_lines = true;
  EXPECT_EQ(load(lines).num_bad_lines, 1);
}

TEST_F(PromptSetTest, MessagesWithoutTemplateAreRefused) {
  options_.apply_chat_template = false;
  const std::string message = refusal("{\"prompt\": [{\"role\": \"user\", \"content\": \"x\"}]}\n");
  EXPECT_NE(message.find("data.jsonl:1"), std::string::npos) << message;
}

}  // namespace
}  // namespace tandem::run
