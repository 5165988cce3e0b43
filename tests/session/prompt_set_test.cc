// Checks prompts as the run sees them: templates, lengths, vocabulary.
#include "session/prompt_set.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/files.h"
#include "base/log.h"
#include "session/conversations.h"
#include "tests/base/temporary_directory.h"
#include "tests/base/thrown.h"
#include "tests/session/small_model.h"

namespace tandem::session {
namespace {

// All tests share one worker: starting Python takes longer than they do.
text::TextWorker& worker() {
  static text::TextWorker text(worker::default_worker_config(), kModel);
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
    return base::thrown_by([&] { load(lines); });
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
  EXPECT_EQ(set.longest_place, options_.lines.path + ":2");
}

TEST_F(PromptSetTest, TemplateForTextsOnRequest) {
  const std::string line = "{\"prompt\": \"1 + 1?\"}\n";
  options_.apply_chat_template = true;
  const std::string as_user = load(line).prompts[0].prompt->text;
  options_.apply_chat_template.reset();
  EXPECT_EQ(as_user, load("{\"prompt\": [{\"role\": \"user\", \"content\": \"1 + 1?\"}]}\n").prompts[0].prompt->text);
}

TEST_F(PromptSetTest, ToolsThatTheTemplateDoesNotShowAreCounted) {
  const std::string line = R"({"prompt": [{"role": "user", "content": "1 + 1?"}], "tools": [{"name": "add"}]})";
  const std::string text = R"({"prompt": "1 + 1 =", "tools": [{"name": "add"}]})";
  const int64_t before = base::num_warnings();
  load(line + "\n" + text);
  EXPECT_EQ(base::num_warnings(), before) << "the template shows the tools of messages, and a text is used as it is";
  base::write_file_durably(folder_ / "tokenizer.json", base::read_file(std::string(kModel) + "/tokenizer.json"));
  const std::string plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: ";
  base::write_file_durably(folder_ / "tokenizer_config.json", base::dump_json({{"chat_template", plain}}));
  text::TextWorker without_tools(worker::default_worker_config(), folder_.path());
  std::string said;
  base::set_log_sink([&](base::LogLevel, const std::string& what) { said += what; });
  load_prompts(options_, without_tools);
  base::set_log_sink({});
  EXPECT_NE(said.find("data.jsonl:1: 1 of 1 prompts with tools are rendered without them"), std::string::npos) << said;
}

TEST_F(PromptSetTest, TemplateArgumentsReachTheTemplate) {
  const std::string line = "{\"prompt\": [{\"role\": \"user\", \"content\": \"1 + 1?\"}]}\n";
  const std::string thinking = load(line).prompts[0].prompt->text;
  options_.apply_chat_template_kwargs = "{\"enable_thinking\": false}";
  EXPECT_NE(load(line).prompts[0].prompt->text, thinking);
  for (const char* const no_object : {"[1]", "no JSON"}) {
    options_.apply_chat_template_kwargs = no_object;
    EXPECT_TRUE(refusal(line).starts_with("--apply-chat-template-kwargs:"))
        << "the flag is at fault: " << refusal(line);
  }
}

text::TextWorker& worker_with_bos() {
  static text::TextWorker text(worker::default_worker_config(), "tests/golden/tokenizer_bos");
  return text;
}
constexpr int32_t kBos = 484;

// Tokens are those of tok(text) in the tokenizers library (tests/golden/tokenizer_bos); a chat template writes its own
// BOS.
TEST_F(PromptSetTest, TextsBeginWithBosOnce) {
  base::write_file_durably(folder_ / "data.jsonl",
                           "{\"prompt\": \"alpha beta\"}\n{\"prompt\": \"<|begin_of_text|>alpha beta\"}\n"
                           "{\"prompt\": [{\"role\": \"user\", \"content\": \"alpha\"}]}\n");
  options_.lines.path = folder_ / "data.jsonl";
  const PromptSet set = load_prompts(options_, worker_with_bos());
  const std::vector<int32_t> text = {kBos, 364, 79, 266, 273, 299, 64};
  EXPECT_EQ(set.prompts[0].prompt->tokens, text);
  EXPECT_EQ(set.prompts[0].prompt->text, "alpha beta");
  EXPECT_EQ(set.prompts[1].prompt->tokens, text);
  const std::vector<int32_t>& rendered = set.prompts[2].prompt->tokens;
  EXPECT_EQ(rendered.front(), kBos);
  EXPECT_EQ(std::ranges::count(rendered, kBos), 1);
  EXPECT_EQ(set.text_prefix, (std::vector<int32_t>{kBos}));
  EXPECT_EQ(set.longest_tokens, static_cast<int64_t>(rendered.size()));

  options_.add_special_tokens = false;
  const PromptSet without = load_prompts(options_, worker_with_bos());
  EXPECT_EQ(without.prompts[0].prompt->tokens, std::vector<int32_t>(text.begin() + 1, text.end()));
  EXPECT_EQ(without.prompts[1].prompt->tokens, text);
  EXPECT_EQ(without.prompts[2].prompt->tokens, rendered);
  EXPECT_TRUE(without.text_prefix.empty());
  // --apply-chat-template makes messages of texts.
  options_.add_special_tokens = true;
  options_.apply_chat_template = true;
  EXPECT_EQ(std::ranges::count(load_prompts(options_, worker_with_bos()).prompts[0].prompt->tokens, kBos), 1);
}

TEST_F(PromptSetTest, ATextWhoseTokenizerWritesNothingBeforeItStaysAsItIs) {
  const PromptSet set = load("{\"prompt\": \"alpha beta\"}\n");
  EXPECT_EQ(set.prompts[0].prompt->tokens, worker().encode({"alpha beta"}).front());
  EXPECT_TRUE(set.text_prefix.empty());
}

TEST_F(PromptSetTest, SeveralFilesFollowEachOtherAndAreNamed) {
  base::write_file_durably(folder_ / "a.jsonl", "{\"prompt\": \"a\"}\n\n{\"prompt\": \"b\"}\n");
  base::write_file_durably(folder_ / "b.jsonl", "{\"prompt\": \"x\"}\n{\"prompt\": \"c c c\"}\n{\"prompt\": \"y\"}\n");
  options_.prompt_data = {folder_ / "a.jsonl", (folder_ / "b.jsonl") + "@[1:]"};
  const PromptSet set = load_all_prompts(options_, worker());
  EXPECT_EQ(set.file_sizes, (std::vector<int64_t>{2, 2}));
  std::vector<std::string> texts, sources;
  for (const PromptLine& line : set.prompts) {
    texts.push_back(line.prompt->text);
    rl::Sample sample;
    sample.prompt = line.prompt;
    sources.push_back(set.sources_of({&sample, 1}).at(0).substr(folder_.path().size() + 1));
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"a", "b", "c c c", "y"}));
  EXPECT_EQ(sources, (std::vector<std::string>{"a.jsonl:1", "a.jsonl:3", "b.jsonl:2", "b.jsonl:3"}));
  EXPECT_EQ(set.longest_tokens, static_cast<int64_t>(set.prompts[2].prompt->tokens.size()));
  EXPECT_TRUE(set.longest_place.ends_with("b.jsonl:2")) << set.longest_place;
  options_.prompt_data.pop_back();
  EXPECT_TRUE(load_all_prompts(options_, worker()).sources.empty()) << "of one file, everybody knows";
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

const std::string kGoodLine = "{\"prompt\": [{\"role\": \"user\", \"content\": \"1 + 1?\"}]}\n";
// The golden template knows no such role.
const std::string kRefusedLine = "{\"prompt\": [{\"role\": \"robot\", \"content\": \"1 + 1?\"}]}\n";

TEST_F(PromptSetTest, LinesThatTheTemplateRefusesNameTheirPlaceOrAreCounted) {
  const std::string lines = kGoodLine + kRefusedLine + "{\"prompt\": \n" + kRefusedLine + kGoodLine;
  const std::string refused = refusal(kGoodLine + kRefusedLine);
  EXPECT_NE(refused.find("data.jsonl:2: the chat template refuses the prompt: "), std::string::npos) << refused;
  EXPECT_TRUE(refused.ends_with(" (--skip-bad-lines counts such lines instead)")) << refused;
  options_.lines.skip_bad_lines = true;
  std::string said;
  base::set_log_sink([&](base::LogLevel, const std::string& line) { said += line; });
  const PromptSet set = load(lines);
  base::set_log_sink({});
  EXPECT_EQ(set.num_bad_lines, 3);
  ASSERT_EQ(set.prompts.size(), 2U);
  EXPECT_EQ(set.prompts[0].record.line, 1);
  EXPECT_EQ(set.prompts[1].record.line, 5);
  EXPECT_EQ(set.prompts[0].prompt->tokens, set.prompts[1].prompt->tokens);
  EXPECT_FALSE(set.prompts[1].prompt->tokens.empty());
  EXPECT_NE(said.find("3 bad lines left out (--skip-bad-lines), the first: "), std::string::npos) << said;
  EXPECT_NE(said.find("data.jsonl:2: the chat template refuses"), std::string::npos) << said;
  const std::string none = refusal(kRefusedLine + kRefusedLine);
  EXPECT_NE(none.find("data.jsonl: no record to work on: 2 bad lines; the first bad one: "), std::string::npos) << none;
  EXPECT_NE(none.find("data.jsonl:1: the chat template refuses"), std::string::npos) << none;
}

// Many prompts are rendered in one call; the ones that are refused are found among the others of their batch.
TEST_F(PromptSetTest, RefusedLinesAreFoundInEveryBatch) {
  std::string lines;
  for (int i = 0; i < 1100; ++i) lines += i % 500 == 7 ? kRefusedLine : kGoodLine;
  options_.lines.skip_bad_lines = true;
  const PromptSet set = load(lines);
  EXPECT_EQ(set.num_bad_lines, 3);
  ASSERT_EQ(set.prompts.size(), 1097U);
  std::vector<int64_t> numbers;
  for (const PromptLine& line : set.prompts) numbers.push_back(line.record.line);
  for (const int64_t refused : {8, 508, 1008}) EXPECT_EQ(std::ranges::count(numbers, refused), 0) << refused;
  EXPECT_TRUE(std::ranges::is_sorted(numbers));
}

TEST_F(PromptSetTest, MistakesOfFlagsAreNoBadLines) {
  options_.lines.skip_bad_lines = true;
  const std::string good_text = "{\"prompt\": \"1 + 1 =\"}\n";
  options_.apply_chat_template_kwargs = "no JSON";
  EXPECT_TRUE(refusal(good_text + kGoodLine).starts_with("--apply-chat-template-kwargs:"));
  options_.apply_chat_template_kwargs = "{\"add_generation_prompt\": true}";
  const std::string continued = "{\"prompt\": [{\"role\": \"assistant\", \"content\": \"b\"}]}\n";
  EXPECT_NE(refusal(good_text + continued).find("data.jsonl:2: the chat template refuses the prompt: add_generation"),
            std::string::npos);
  options_.apply_chat_template_kwargs = "{}";
  options_.system_prompt = "Be brief.";
  EXPECT_NE(refusal(kGoodLine + good_text).find("data.jsonl:2: the prompt is a plain text"), std::string::npos);
  options_.system_prompt = "";
  options_.apply_chat_template = false;
  EXPECT_NE(refusal(good_text + kGoodLine).find("leave --no-apply-chat-template out"), std::string::npos);
}

TEST_F(PromptSetTest, TextsThatAreTooLargeForTheTokenizerAreBadLines) {
  const std::string large(text::kMaxTextBytes + 1, 'a');
  const std::string text = base::dump_json({{"prompt", large}}) + "\n";
  const std::string message =
      base::dump_json({{"prompt", base::Json::array({{{"role", "user"}, {"content", large}}})}}) + "\n";
  const std::string says =
      "data.jsonl:2: the text has 8388609 bytes, more than the 8388608 that a text may have; shorten or remove it "
      "(--skip-bad-lines counts such lines instead)";
  const int64_t pid = worker().process_id();
  for (const std::string& line : {text, message}) {
    EXPECT_NE(refusal(kGoodLine + line).find(says), std::string::npos) << refusal(kGoodLine + line);
  }
  options_.lines.skip_bad_lines = true;
  const PromptSet set = load(text + kGoodLine + message);
  EXPECT_EQ(set.num_bad_lines, 2);
  ASSERT_EQ(set.prompts.size(), 1U);
  EXPECT_EQ(set.prompts[0].record.line, 2);
  // What the template writes around a text counts too.
  const std::string close =
      base::dump_json({{"prompt", base::Json::array({{{"role", "user"}, {"content", large.substr(1)}}})}});
  EXPECT_EQ(load(kGoodLine + close).num_bad_lines, 1);
  EXPECT_EQ(worker().process_id(), pid) << "the tokenizer has seen none of them";
}

TEST_F(PromptSetTest, MessagesWithoutTemplateAreRefused) {
  options_.apply_chat_template = false;
  const std::string message = refusal("{\"prompt\": [{\"role\": \"user\", \"content\": \"x\"}]}\n");
  EXPECT_NE(message.find("data.jsonl:1"), std::string::npos) << message;
}

// Returns whether a prompt ends where an answer begins, with the tiny model's tokenizer and another template.
bool opens_answer_with(const std::string& chat_template, const std::string& kwargs = "{}") {
  base::TemporaryDirectory folder;
  base::write_file_durably(folder / "tokenizer.json", base::read_file(std::string(kModel) + "/tokenizer.json"));
  base::write_file_durably(folder / "tokenizer_config.json", base::dump_json({{"chat_template", chat_template}}));
  text::TextWorker text(worker::default_worker_config(), folder.path());
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
}  // namespace tandem::session
