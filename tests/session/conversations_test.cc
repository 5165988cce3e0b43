// Checks conversations with --system-prompt, and those whose answer has begun.
#include "session/conversations.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "base/files.h"
#include "session/answer_end.h"
#include "session/prompt_set.h"
#include "session/sft_samples.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"
#include "tests/base/thrown.h"
#include "tests/session/small_model.h"
#include "tests/text/parquet_lines.h"

namespace tandem::session {
namespace {

const std::string kChatMl =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
// Llama 3's template trims messages; Mistral's writes a space before answers and EOS after them.
const std::string kTrimming =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n\n{{ m.content | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}";
const std::string kBracketed =
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}"
    "<|endoftext|>{% endif %}{% endfor %}";

class Conversations : public testing::Test {
 protected:
  Conversations() { use_template(kChatMl); }
  // All tests share one worker a template: starting Python takes longer than they do.
  void use_template(const std::string& chat_template) {
    static std::map<std::string, std::unique_ptr<text::TextWorker>> workers;
    std::unique_ptr<text::TextWorker>& worker = workers[chat_template];
    if (worker == nullptr) {
      const base::TemporaryDirectory model;
      base::write_file_durably(model / "tokenizer.json", base::read_file(std::string(kModel) + "/tokenizer.json"));
      base::write_file_durably(model / "tokenizer_config.json", base::dump_json({{"chat_template", chat_template}}));
      worker = std::make_unique<text::TextWorker>(worker::default_worker_config(), model.path());
    }
    text_ = worker.get();
  }
  PromptSet load(const std::string& lines) {
    base::write_file_durably(folder_ / "data.jsonl", lines);
    options_.lines.path = folder_ / "data.jsonl";
    return load_prompts(options_, *text_);
  }
  // Renders a prompt of messages; the arguments are roles and contents in turn.
  std::string rendered(const std::vector<std::string>& messages) {
    base::Json prompt = base::Json::array();
    for (size_t i = 0; i < messages.size(); i += 2) {
      prompt.push_back({{"role", messages[i]}, {"content", messages[i + 1]}});
    }
    return load(base::dump_json({{"prompt", prompt}}) + "\n").prompts[0].prompt->text;
  }
  std::string refusal(const std::string& lines) {
    return base::thrown_by([&] { load(lines); });
  }
  std::string why(const std::string& chat_template, const std::vector<int32_t>& eos) {
    use_template(chat_template);
    model_.eos_token_ids = eos;
    return why_answers_run_on(options_, rollout_, model_, *text_);
  }
  base::TemporaryDirectory folder_;
  config::DataOptions options_;
  config::RolloutOptions rollout_;
  model::ModelConfig model_;
  text::TextWorker* text_ = nullptr;
};

TEST_F(Conversations, ThatEndWithAnAnswerAreContinued) {
  EXPECT_EQ(rendered({"user", "a?", "assistant", "Let us "}),
            "<|im_start|>user\na?<|im_end|>\n<|im_start|>assistant\nLet us ");
  EXPECT_EQ(rendered({"user", "a?", "assistant", ""}), "<|im_start|>user\na?<|im_end|>\n<|im_start|>assistant\n");
  // The same text in an earlier message is not taken for the last one.
  EXPECT_EQ(rendered({"assistant", "x<|im_end|>", "user", "x", "assistant", "x"}),
            "<|im_start|>assistant\nx<|im_end|><|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\nx");
  use_template(kTrimming);
  EXPECT_EQ(rendered({"user", "a?", "assistant", " Let us \n"}),
            "<|im_start|>user\n\na?<|im_end|><|im_start|>assistant\n\nLet us");
  use_template(kBracketed);
  EXPECT_EQ(rendered({"user", "a?", "assistant", "Let us "}), "[INST] a? [/INST] Let us ");
}

TEST_F(Conversations, OthersEndAsBefore) {
  EXPECT_EQ(rendered({"user", "a?"}), "<|im_start|>user\na?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(rendered({"user", "a?", "assistant", "b", "tool", "c"}),
            "<|im_start|>user\na?<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>tool\nc<|im_end|>\n"
            "<|im_start|>assistant\n");
}

// The golden template is Qwen3's, which writes an empty think block before the last answer.
TEST_F(Conversations, AreContinuedByThePublishedTemplate) {
  text::TextWorker published(worker::default_worker_config(), kModel);
  text_ = &published;
  const std::string text = rendered({"user", "a?", "assistant", "Let us "});
  EXPECT_TRUE(text.ends_with("</think>\n\nLet us ")) << text;
  EXPECT_NE(text.find("<|im_start|>user\na?<|im_end|>\n"), std::string::npos) << text;
}

TEST_F(Conversations, CanBeToldNotToContinue) {
  options_.apply_chat_template_kwargs = "{\"continue_final_message\": false, \"add_generation_prompt\": true}";
  EXPECT_EQ(rendered({"user", "a?", "assistant", "b"}),
            "<|im_start|>user\na?<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>assistant\n");
  options_.apply_chat_template_kwargs = "{\"add_generation_prompt\": true}";
  const std::string line = R"({"prompt": [{"role": "assistant", "content": "b"}]})";
  EXPECT_NE(refusal(line).find("data.jsonl:1: the chat template refuses the prompt: add_generation_prompt opens"),
            std::string::npos)
      << refusal(line);
}

TEST_F(Conversations, WithoutATextToContinueAreRefused) {
  const std::string calls = R"({"prompt": [{"role": "assistant", "tool_calls": []}]})";
  EXPECT_NE(refusal(calls).find("data.jsonl:1: "), std::string::npos);
  EXPECT_NE(refusal(calls).find("has no text that could be continued"), std::string::npos) << refusal(calls);
  use_template("{% for m in messages %}{{ m.role }}{% endfor %}");
  const std::string text = R"({"prompt": [{"role": "assistant", "content": "b"}]})";
  EXPECT_NE(refusal(text).find("it leaves out text of the last message"), std::string::npos) << refusal(text);
}

TEST_F(Conversations, GetASystemMessageWhereTheyHaveNone) {
  options_.system_prompt = "Be brief.";
  const std::string system = "<|im_start|>system\nBe brief.<|im_end|>\n";
  EXPECT_EQ(rendered({"user", "a?"}), system + "<|im_start|>user\na?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(rendered({"user", "a?", "assistant", "b"}),
            system + "<|im_start|>user\na?<|im_end|>\n<|im_start|>assistant\nb");
  EXPECT_EQ(rendered({"system", "Own.", "user", "a?"}).find("Be brief."), std::string::npos);
  EXPECT_EQ(rendered({"developer", "Own.", "user", "a?"}).find("Be brief."), std::string::npos);
  const std::string text = "{\"prompt\": \"a?\"}\n";
  EXPECT_NE(refusal(text).find("data.jsonl:1: the prompt is a plain text, which has no place for --system-prompt; give "
                               "--apply-chat-template"),
            std::string::npos)
      << refusal(text);
  options_.apply_chat_template = true;
  EXPECT_TRUE(load(text).prompts[0].prompt->text.starts_with(system + "<|im_start|>user\na?"));
}

TEST_F(Conversations, ToImitateHaveTheSystemMessageInTheirContext) {
  options_.system_prompt = "Be brief.";
  options_.lines.label_key = "response";
  options_.lines.path = folder_ / "data.jsonl";
  model_.eos_token_ids = {kImEnd};
  model_.max_positions = 1024;
  base::write_file_durably(options_.lines.path, R"({"prompt": [{"role": "user", "content": "a?"}], "response": "b"})");
  const SftSamples samples = load_sft_samples(options_, data::Answers::kToImitate, /*append_eos=*/true, *text_, model_);
  EXPECT_EQ(text_->decode({samples.samples.at(0).prompt->tokens}, false)[0],
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na?<|im_end|>\n<|im_start|>assistant\n");
  base::write_file_durably(options_.lines.path, R"({"prompt": "a?", "response": "b"})");
  EXPECT_THROW(load_sft_samples(options_, data::Answers::kToImitate, true, *text_, model_), UserError);
}

// Qwen2.5's Base checkpoints have <|endoftext|> as EOS, and the template of their Instruct siblings.
TEST_F(Conversations, SayWhereSamplingDoesNotStopAtTheEndOfAnAnswer) {
  const std::string warning = why(kChatMl, {kEndOfText});
  EXPECT_NE(warning.find("ends an answer with <|im_end|> (token 473)"), std::string::npos) << warning;
  EXPECT_NE(warning.find("give --rollout-stop-token-ids 473"), std::string::npos) << warning;
  EXPECT_NE(why(kTrimming, {}), "");
  EXPECT_EQ(why(kChatMl, {kEndOfText, kImEnd}), "");
  EXPECT_EQ(why(kBracketed, {kEndOfText}), "");
  EXPECT_EQ(why(kChatMl + "{% if not add_generation_prompt %}<|endoftext|>{% endif %}", {kEndOfText}), "")
      << "a second token ends the answer (Phi 3)";
  EXPECT_EQ(why("{% for m in messages %}{{ m.content }}\n\n{% endfor %}", {kEndOfText}), "") << "no token ends it";
  EXPECT_EQ(why("{{ raise_exception('no') }}", {kEndOfText}), "") << "it cannot be asked";
  rollout_.stop_token_ids = {kImEnd};
  EXPECT_EQ(why(kChatMl, {kEndOfText}), "");
  rollout_.stop_token_ids = {};
  rollout_.stop = {"<|im_end|>"};
  EXPECT_EQ(why(kChatMl, {kEndOfText}), "");
  rollout_.stop = {};
  rollout_.ignore_eos = true;
  EXPECT_EQ(why(kChatMl, {kEndOfText}), "");
}

// verl's columns, as its scripts write them, give the same prompts from Parquet as from JSON lines.
TEST_F(Conversations, AreTheSameFromParquetAsFromLines) {
  std::string lines;
  for (int i = 0; i < 330; ++i) {
    const std::string number = std::to_string(i);
    lines += R"({"data_source": "d", "prompt": [{"role": "user", "content": ")" + number +
             R"( + 1?"}], "ability": "math", "reward_model": {"style": "rule", "ground_truth": ")" +
             std::to_string(i + 1) + R"("}, "extra_info": {"index": )" + number + "}}\n";
  }
  options_.lines.label_key = "reward_model.ground_truth";
  options_.lines.label_needed_by = "--rm-type math";
  base::write_file_durably(folder_ / "lines.jsonl", lines);
  text::write_parquet(folder_ / "rows.parquet", lines, /*rows_per_group=*/100);
  for (const std::string slice : {"", "@[-3:]", "@[50:250]"}) {
    options_.lines.path = folder_ / "lines.jsonl" + slice;
    const PromptSet expected = load_prompts(options_, *text_);
    options_.lines.path = folder_ / "rows.parquet" + slice;
    const PromptSet found = load_prompts(options_, *text_);
    ASSERT_EQ(found.prompts.size(), expected.prompts.size()) << slice;
    for (size_t i = 0; i < found.prompts.size(); ++i) {
      EXPECT_EQ(found.prompts[i].record.line, expected.prompts[i].record.line);
      EXPECT_EQ(found.prompts[i].record.label, expected.prompts[i].record.label);
      EXPECT_EQ(found.prompts[i].record.metadata, expected.prompts[i].record.metadata);
      EXPECT_EQ(found.prompts[i].prompt->tokens, expected.prompts[i].prompt->tokens);
    }
  }
}

}  // namespace
}  // namespace tandem::session
