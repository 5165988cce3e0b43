// Prompts as the run sees them: templates, lengths, vocabulary.
#include "run/prompt_set.h"

#include <gtest/gtest.h>

#include "base/files.h"
#include "run/conversations.h"
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
    options_.lines.path = folder_ / "data.jsonl";
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
  config::DataOptions options_;
};

TEST_F(PromptSetTest, RendersMessagesAndLeavesTextsAlone) {
  const PromptSet set = load(
      "{\"prompt\": \"1 + 1 =\", \"label\": 2}\n"
      "{\"prompt\": [{\"role\": \"user\", \"content\": \"1 + 1?\"}], \"label\": \"2\", \"level\": 3}\n");
  ASSERT_EQ(set.prompts.size(), 2U);
  EXPECT_EQ(set.prompts[0].prompt->text, "1 + 1 =");
  EXPECT_EQ(set.prompts[0].record.label, base::Json(2));
  EXPECT_NE(set.prompts[1].prompt->text.find("1 + 1?"), std::string::npos);
  EXPECT_GT(set.prompts[1].prompt->text.size(), set.prompts[0].prompt->text.size());
  EXPECT_TRUE(set.prompts[1].prompt->text.ends_with("assistant\n")) << set.prompts[1].prompt->text;
  EXPECT_EQ(worker().decode({set.prompts[1].prompt->tokens}, false).front(), set.prompts[1].prompt->text);
  EXPECT_EQ(set.longest_tokens, static_cast<int64_t>(set.prompts[1].prompt->tokens.size()));
}

TEST_F(PromptSetTest, TemplateForTextsOnRequest) {
  const std::string line = "{\"prompt\": \"1 + 1?\"}\n";
  options_.apply_chat_template = true;
  const std::string as_user = load(line).prompts[0].prompt->text;
  options_.apply_chat_template.reset();
  EXPECT_EQ(as_user, load("{\"prompt\": [{\"role\": \"user\", \"content\": \"1 + 1?\"}]}\n").prompts[0].prompt->text);
}

TEST_F(PromptSetTest, TemplateArgumentsReachTheTemplate) {
  const std::string line = "{\"prompt\": [{\"role\": \"user\", \"content\": \"1 + 1?\"}]}\n";
  const std::string thinking = load(line).prompts[0].prompt->text;
  options_.apply_chat_template_kwargs = "{\"enable_thinking\": false}";
  EXPECT_NE(load(line).prompts[0].prompt->text, thinking);
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
  options_.lines.skip_bad_lines = true;
  EXPECT_EQ(load(lines).num_bad_lines, 1);
}

TEST_F(PromptSetTest, MessagesWithoutTemplateAreRefused) {
  options_.apply_chat_template = false;
  const std::string message = refusal("{\"prompt\": [{\"role\": \"user\", \"content\": \"x\"}]}\n");
  EXPECT_NE(message.find("data.jsonl:1"), std::string::npos) << message;
}

// Rendered by the tiny model's tokenizer with another template: does a prompt end where an answer begins?
bool opens_answer_with(const std::string& chat_template, const std::string& kwargs = "{}") {
  base::TemporaryDirectory folder;
  base::write_file_durably(folder / "tokenizer.json", base::read_file(std::string(kModel) + "/tokenizer.json"));
  base::write_file_durably(folder / "tokenizer_config.json", base::dump_json({{"chat_template", chat_template}}));
  text::TextWorker text(text::default_worker_config(), folder.path());
  config::DataOptions options;
  options.apply_chat_template_kwargs = kwargs;
  return opens_answer(options, text);
}

TEST(ChatTemplate, IsAskedWhetherItOpensAnAnswer) {
  const std::string turns = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
  const std::string header = "<|im_start|>assistant\n";
  const std::string asked = "{% if add_generation_prompt %}" + header + "{% endif %}";
  EXPECT_TRUE(opens_answer_with(turns + asked));
  EXPECT_FALSE(opens_answer_with(turns));
  EXPECT_FALSE(opens_answer_with(turns + asked, "{\"add_generation_prompt\": false}"));
  EXPECT_TRUE(opens_answer_with(turns + "{% if messages[-1].role == 'user' %}" + header + "{% endif %}"))
      << "the header is always there";
  EXPECT_TRUE(
      opens_answer_with("{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} "
                        "{{ m.content }}</s>{% endif %}{% endfor %}"))
      << "nothing stands between a question and its answer";
  EXPECT_TRUE(
      opens_answer_with("{% if messages | length > 1 %}{{ raise_exception('one message only') }}{% endif %}" + turns))
      << "it cannot be asked";
}

TEST_F(PromptSetTest, NotesATemplateThatOpensNoAnswer) {
  const std::string messages = "{\"prompt\": [{\"role\": \"user\", \"content\": \"1 + 1?\"}]}\n";
  EXPECT_TRUE(load(messages).template_opens_answer);
  options_.apply_chat_template_kwargs = "{\"add_generation_prompt\": false}";
  EXPECT_FALSE(load(messages).template_opens_answer);
  EXPECT_TRUE(load("{\"prompt\": \"1 + 1 =\"}\n").template_opens_answer) << "no template is used";
}

}  // namespace
}  // namespace tandem::run
