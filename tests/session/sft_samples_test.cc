// Checks what supervised training learns of each kind of data, token by token, against the chat template's own text.
#include "session/sft_samples.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/files.h"
#include "base/log.h"
#include "session/given_answers.h"
#include "session/prompt_set.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"
#include "tests/session/small_model.h"

namespace tandem::session {
namespace {

text::TextWorker& qwen3() {
  static text::TextWorker text(worker::default_worker_config(), kModel);
  return text;
}

class SftSamplesTest : public testing::Test {
 protected:
  SftSamplesTest() {
    model_.eos_token_ids = {kImEnd, kEndOfText};
    model_.max_positions = 1024;
    data_.lines.label_key = "response";
  }

  SftSamples load(const std::string& lines) {
    base::write_file_durably(folder_ / "data.jsonl", lines);
    data_.lines.path = folder_ / "data.jsonl";
    return load_sft_samples(data_, kind_, append_eos_, *text_, model_);
  }
  void expect_refusal(const std::string& lines, const std::string& says) {
    try {
      load(lines);
      FAIL() << "accepted: " << lines;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what() << "\nexpected: " << says;
    }
  }
  // Uses another template for the same tokenizer.
  void use_template(const std::string& chat_template) {
    base::write_file_durably(folder_ / "tokenizer.json", base::read_file(std::string(kModel) + "/tokenizer.json"));
    base::write_file_durably(folder_ / "tokenizer_config.json", base::dump_json({{"chat_template", chat_template}}));
    own_text_ = std::make_unique<text::TextWorker>(worker::default_worker_config(), folder_.path());
    text_ = own_text_.get();
  }

  std::vector<int32_t> encode(const std::string& text) { return text_->encode({text}).front(); }
  std::string decode(const std::vector<int32_t>& ids) { return text_->decode({ids}, false).front(); }
  // Returns the trained stretches of a sample, or what lies between them, as texts.
  std::vector<std::string> stretches(const rl::Sample& sample, bool trained) {
    std::vector<std::string> result;
    std::vector<int32_t> ids;
    for (size_t i = 0; i <= sample.completion.size(); ++i) {
      if (i < sample.completion.size() && (sample.loss_mask[i] != 0) == trained) {
        ids.push_back(sample.completion[i]);
      } else if (!ids.empty()) {
        result.push_back(decode(ids));
        ids.clear();
      }
    }
    return result;
  }
  // Expects one answer after one prompt: exactly the tokens of the two texts.
  void expect_tokens(const rl::Sample& sample, const std::string& prompt, const std::string& answer) {
    EXPECT_EQ(sample.prompt->tokens, encode(prompt)) << decode(sample.prompt->tokens);
    EXPECT_EQ(sample.completion, encode(answer)) << decode(sample.completion);
    EXPECT_EQ(sample.loss_mask, std::vector<uint8_t>(sample.completion.size(), 1));
  }

  base::TemporaryDirectory folder_;
  config::DataOptions data_;
  model::ModelConfig model_;
  data::Answers kind_ = data::Answers::kToImitate;
  bool append_eos_ = true;
  text::TextWorker* text_ = &qwen3();
  std::unique_ptr<text::TextWorker> own_text_;
};

const std::string kAsk = R"({"role": "user", "content": "1 + 1?"})";
const std::string kTwo = R"({"role": "assistant", "content": "2"})";
const std::string kAskAgain = R"({"role": "user", "content": "1 + 2?"})";
const std::string kThree = R"({"role": "assistant", "content": "3"})";

const std::string kAsked = "<|im_start|>user\n1 + 1?<|im_end|>\n<|im_start|>assistant\n";
const std::string kNoThoughts = "<think>\n\n</think>\n\n";

std::string messages(const std::string& list, const std::string& more = "") {
  return R"({"messages": [)" + list + "]" + more + "}\n";
}

TEST_F(SftSamplesTest, AreWhatTheTemplateMakesOfEveryFormat) {
  const std::vector<std::string> formats = {
      messages(kAsk + "," + kTwo), R"({"prompt": [)" + kAsk + R"(], "completion": [)" + kTwo + "]}\n",
      R"({"prompt": [)" + kAsk + R"(], "response": "2"})", R"({"prompt": [)" + kAsk + R"(], "completion": "2"})",
      messages(R"({"role": "user", "content": [{"type": "text", "text": "1 + "}, {"type": "text", "text": "1?"}]},)"
               R"({"role": "assistant", "content": [{"type": "text", "text": "2"}]})")};
  for (const std::string& line : formats) {
    const SftSamples data = load(line);
    ASSERT_EQ(data.samples.size(), 1U) << line;
    expect_tokens(data.samples[0], kAsked, kNoThoughts + "2<|im_end|>");
    EXPECT_EQ(data.samples[0].completion.back(), kImEnd) << "not the line break that the template writes behind it";
    EXPECT_EQ(data.num_trained_tokens, static_cast<int64_t>(data.samples[0].completion.size()));
  }
  data_.apply_chat_template = true;
  expect_tokens(load(R"({"prompt": "1 + 1?", "response": "2"})").samples.at(0), kAsked, kNoThoughts + "2<|im_end|>");
  // With thinking switched off the template writes the empty block into the prompt.
  data_.apply_chat_template_kwargs = R"({"enable_thinking": false})";
  expect_tokens(load(formats[0]).samples.at(0), kAsked + kNoThoughts, "2<|im_end|>");
}

TEST_F(SftSamplesTest, LearnReasoningAndToolCalls) {
  const std::string tools = R"([{"type": "function", "function": {"name": "add", "parameters": {"a": 1}}}])";
  const std::string call =
      R"({"role": "assistant", "content": "I add.", "reasoning_content": "one and one", "tool_calls": )"
      R"([{"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 1}}}]})";
  const std::string result = R"({"role": "tool", "content": "2"})";
  const std::string last = R"({"role": "assistant", "content": "It is 2.", "reasoning_content": "got it"})";
  const std::string line = messages(kAsk + "," + call + "," + result + "," + last, R"(, "tools": )" + tools);
  const SftSamples data = load(line);
  ASSERT_EQ(data.samples.size(), 1U) << "the template keeps the thoughts of messages behind the last question";
  const rl::Sample& sample = data.samples[0];
  EXPECT_EQ(stretches(sample, true),
            (std::vector<std::string>{
                "<think>\none and one\n</think>\n\nI add.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, "
                "\"b\": 1}}\n</tool_call><|im_end|>",
                "<think>\ngot it\n</think>\n\nIt is 2.<|im_end|>"}));
  EXPECT_EQ(stretches(sample, false),
            (std::vector<std::string>{"\n<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n"
                                      "<|im_start|>assistant\n"}));
  // The reference is the template's text of the whole conversation, without the line break at its end.
  const base::Json whole = base::parse_json(line, "line");
  const std::string rendered = text_->apply_chat_template({whole["messages"]}, {{"tools", whole["tools"]}}).front();
  std::vector<int32_t> all = sample.prompt->tokens;
  all.insert(all.end(), sample.completion.begin(), sample.completion.end());
  EXPECT_EQ(decode(all) + "\n", rendered);
  EXPECT_NE(decode(sample.prompt->tokens).find("\"name\": \"add\", \"parameters\""), std::string::npos);
}

// Qwen3-Instruct-2507's template knows no reasoning_content, and most data with reasoning have little else.
TEST_F(SftSamplesTest, ReasoningThatIsNotRenderedIsRefusedOrCounted) {
  const std::string thought =
      messages(kAsk + R"(, {"role": "assistant", "content": "2", "reasoning_content": "one and one"})");
  expect_tokens(load(thought).samples.at(0), kAsked, "<think>\none and one\n</think>\n\n2<|im_end|>");
  use_template(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  expect_refusal(messages(kAsk + "," + kTwo) + thought,
                 "data.jsonl:2: an answer has reasoning_content, which the chat template does not render");
  const std::string untrained = R"({"role": "assistant", "content": "2", "reasoning_content": "r", "train": false})";
  load(messages(kAsk + "," + untrained + "," + kAskAgain + "," + kThree));
  load(messages(kAsk + R"(, {"role": "assistant", "content": "2", "reasoning_content": " \n"})"));
  data_.allow_unrendered_reasoning = true;
  const int64_t before = base::num_warnings();
  expect_tokens(load(thought + messages(kAsk + "," + kTwo)).samples.at(0), kAsked, "2<|im_end|>");
  EXPECT_EQ(base::num_warnings(), before + 1);
}

// Answers of which nothing but a call is left out would teach the model to say nothing.
TEST_F(SftSamplesTest, CallsAndToolsThatAreNotRenderedAreRefused) {
  const std::string call = R"({"name": "add", "arguments": {"a": 1}})";
  const std::string calls = R"("tool_calls": [{"type": "function", "function": )" + call + "}]}";
  const std::string with_calls = messages(kAsk + R"(, {"role": "assistant", "content": "", )" + calls);
  const std::string with_old_call =
      messages(kAsk + R"(, {"role": "assistant", "content": "", "function_call": )" + call + "}");
  const std::string with_tools =
      messages(kAsk + "," + kTwo, R"(, "tools": [{"type": "function", "function": {"name": "add"}}])");
  load(with_calls + with_tools);
  expect_refusal(
      with_old_call,
      R"(data.jsonl:1: an answer has function_call, which the chat template does not render, so it would not be trained on; write it as "tool_calls":)");
  use_template(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  const std::string plain = messages(kAsk + "," + kTwo);
  expect_refusal(plain + with_calls,
                 "data.jsonl:2: an answer has tool_calls, which the chat template does not render, so it would not be "
                 "trained on; give a checkpoint");
  expect_refusal(plain + with_old_call,
                 "data.jsonl:2: an answer has function_call, which the chat template does not render, so it would not "
                 "be trained on; give a checkpoint");
  expect_refusal(plain + with_tools,
                 "data.jsonl:2: the line has tools, which the chat template does not show; give a checkpoint");
  load(messages(kAsk + R"(, {"role": "assistant", "content": "2", "tool_calls": [], "function_call": null})",
                R"(, "tools": [])"));
  load(messages(kAsk + R"(, {"role": "assistant", "content": "", "train": false, )" + calls + "," + kAskAgain + "," +
                kThree));
  data_.lines.tool_key = "no_tools";
  load(with_tools);
}

TEST_F(SftSamplesTest, ReasoningUnderAnotherKeyIsRefusedWithTheKeyThatIsRendered) {
  const auto thought = [](const std::string& key) {
    return messages(kAsk + R"(, {"role": "assistant", "content": "2", ")" + key + R"(": "one and one"})");
  };
  for (const std::string key : {"thinking", "reasoning"}) {
    expect_refusal(thought(key),
                   "data.jsonl:1: an answer has " + key +
                       ", which the chat template does not render, so it would not be trained on; rename it to "
                       "reasoning_content, which the template renders, or give --allow-unrendered-reasoning");
  }
  // A second copy of reasoning that is rendered is no loss.
  load(messages(kAsk + R"(, {"role": "assistant", "content": "2", "reasoning": "r", "reasoning_content": "r"})"));
  use_template(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ m.thinking }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  load(thought("thinking"));
  expect_refusal(thought("reasoning"), "write it into content, or give --allow-unrendered-reasoning");
}

// Each format of others is tested next to lines of our own that hold the same.
TEST_F(SftSamplesTest, OtherFormatsAreTheConversationsThatTheyStandFor) {
  const std::string system = R"({"role": "system", "content": "short"})";
  const std::vector<std::pair<std::string, std::string>> rows = {
      {R"({"conversations": [{"from": "human", "value": "1 + 1?"}, {"from": "gpt", "value": "2"}]})",
       messages(kAsk + "," + kTwo)},
      {R"({"system": "short", "conversations": [{"from": "user", "value": "1 + 1?"}, {"from": "assistant", "value": "2"}]})",
       messages(system + "," + kAsk + "," + kTwo)},
      {R"({"conversations": [)" + kAsk + "," + kTwo + "]}", messages(kAsk + "," + kTwo)},
      {R"({"instruction": "1 + 1?", "input": "", "output": "2"})", messages(kAsk + "," + kTwo)},
      {R"({"instruction": "1", "input": "+ 1?", "output": "2", "text": "Below is an instruction"})",
       messages(R"({"role": "user", "content": "1\n+ 1?"},)" + kTwo)},
      {R"({"instruction": "1", "context": "+ 1?", "response": "2", "category": "open_qa"})",
       messages(R"({"role": "user", "content": "1\n+ 1?"},)" + kTwo)},
      {R"({"instruction": "1 + 1?", "context": "", "response": "2"})", messages(kAsk + "," + kTwo)},
      {R"({"instruction": "1 + 2?", "output": "3", "system": "short", "history": [["1 + 1?", "2"]]})",
       messages(system + "," + kAsk + "," + kTwo + "," + kAskAgain + "," + kThree)}};
  for (const auto& [row, same] : rows) {
    const SftSamples found = load(row), expected = load(same);
    ASSERT_EQ(found.samples.size(), expected.samples.size()) << row;
    for (size_t i = 0; i < found.samples.size(); ++i) {
      EXPECT_EQ(found.samples[i].prompt->tokens, expected.samples[i].prompt->tokens) << row;
      EXPECT_EQ(found.samples[i].completion, expected.samples[i].completion) << row;
    }
  }
}

TEST_F(SftSamplesTest, ASystemMessageBesideATextIsRenderedOrCounted) {
  const std::string line = R"({"system": "short", "prompt": "1 + 1?", "response": "2"})"
                           "\n";
  const auto warned = [&] {
    testing::internal::CaptureStderr();
    load(line + line + R"({"system": "", "prompt": "1 + 1?", "response": "2"})");
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_NE(warned().find("data.jsonl:1: 2 lines have a text under system, which has no place in a plain text"),
            std::string::npos);
  data_.apply_chat_template = true;
  EXPECT_EQ(warned(), "");
  expect_tokens(load(line).samples.at(0), "<|im_start|>system\nshort<|im_end|>\n" + kAsked,
                kNoThoughts + "2<|im_end|>");
}

TEST_F(SftSamplesTest, TextsBeginAsTheTokenizerHasThem) {
  text::TextWorker with_bos(worker::default_worker_config(), "tests/golden/tokenizer_bos");
  constexpr int32_t kBos = 484, kEnd = 485;
  model_.eos_token_ids = {kEnd};
  std::vector<int32_t> whole = encode("alpha beta");
  whole.push_back(kImEnd);
  // The first token of a text cannot be predicted without a token before it.
  const rl::Sample plain = load(R"({"text": "alpha beta"})").samples.at(0);
  EXPECT_EQ(plain.prompt->tokens, std::vector<int32_t>{whole[0]});
  EXPECT_EQ(plain.completion, std::vector<int32_t>(whole.begin() + 1, whole.end()));
  whole.back() = kEnd;
  text_ = &with_bos;
  std::string said;
  base::set_log_sink(
      [&](base::LogLevel, const std::string& line) { said += line; });  // collects lines until the next report
  load("{\"text\": \"alpha beta\"}\n{\"text\": \"<|begin_of_text|>alpha\"}");
  EXPECT_NE(said.find("1 of 2 texts begin with <|begin_of_text|>, which the tokenizer writes before texts"),
            std::string::npos)
      << said;
  base::set_log_sink({});
  for (const char* row : {R"({"text": "alpha beta"})", R"({"text": "<|begin_of_text|>alpha beta"})"}) {
    const SftSamples data = load(row);
    EXPECT_EQ(data.samples.at(0).prompt->tokens, std::vector<int32_t>{kBos}) << row;
    EXPECT_EQ(data.samples.at(0).completion, whole) << row;
  }
  const SftSamples pair = load(R"({"prompt": "alpha", "response": " beta"})");
  std::vector<int32_t> asked = encode("alpha");
  asked.insert(asked.begin(), kBos);
  EXPECT_EQ(pair.samples.at(0).prompt->tokens, asked);
  EXPECT_EQ(std::ranges::count(pair.samples.at(0).completion, kBos), 0);
  EXPECT_EQ(pair.text_prefix, std::vector<int32_t>{kBos});
  data_.add_special_tokens = false;
  EXPECT_EQ(load(R"({"prompt": "alpha", "response": " beta"})").samples.at(0).prompt->tokens.front(), asked[1]);
}

// Qwen3's template removes the thoughts of earlier answers, so each answer is trained on where it would be said.
TEST_F(SftSamplesTest, PartWhereTheTemplateRewritesEarlierMessages) {
  const SftSamples data = load("\n" + messages(kAsk + "," + kTwo + "," + kAskAgain + "," + kThree));
  ASSERT_EQ(data.samples.size(), 2U);
  EXPECT_EQ(data.num_records, 1);
  EXPECT_EQ(data.places, (std::vector<std::string>(2, data_.lines.path + ":2")));
  expect_tokens(data.samples[0], kAsked, kNoThoughts + "2<|im_end|>");
  expect_tokens(data.samples[1], kAsked + "2<|im_end|>\n<|im_start|>user\n1 + 2?<|im_end|>\n<|im_start|>assistant\n",
                kNoThoughts + "3<|im_end|>");
}

TEST_F(SftSamplesTest, ShareASampleWhereTheTemplateKeepsThem) {
  use_template(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  const std::string between = "\n<|im_start|>user\n1 + 2?<|im_end|>\n<|im_start|>assistant\n";
  const SftSamples data = load(messages(kAsk + "," + kTwo + "," + kAskAgain + "," + kThree) +
                               messages(kAsk + "," + kTwo + "," + kAskAgain + "," + kThree));
  ASSERT_EQ(data.samples.size(), 2U) << "records never share one";
  for (const rl::Sample& sample : data.samples) {
    EXPECT_EQ(sample.prompt->tokens, encode(kAsked));
    EXPECT_EQ(stretches(sample, true), (std::vector<std::string>{"2<|im_end|>", "3<|im_end|>"}));
    EXPECT_EQ(stretches(sample, false), (std::vector<std::string>{between}));
  }
  EXPECT_NE(data.samples[0].group_id, data.samples[1].group_id);

  // An answer that is not trained on stays in the conversation.
  const std::string quiet = R"({"role": "assistant", "content": "2", "train": false})";
  const SftSamples masked = load(messages(kAsk + "," + quiet + "," + kAskAgain + "," + kThree));
  ASSERT_EQ(masked.samples.size(), 1U);
  expect_tokens(masked.samples[0], kAsked + "2<|im_end|>" + between, "3<|im_end|>");
}

// The place where a text is cut decides about tokens; generation never sees prompt and answer as one text.
TEST_F(SftSamplesTest, PromptTokensAreThoseOfGeneration) {
  ASSERT_NE(encode("the"), [this] {
    std::vector<int32_t> halves = encode("th");
    for (const int32_t id : encode("e")) halves.push_back(id);
    return halves;
  }());
  const rl::Sample sample = load(R"({"prompt": "th", "response": "e"})").samples.at(0);
  expect_tokens(sample, "th", "e<|im_end|>");
}

TEST_F(SftSamplesTest, AnswersEndOnce) {
  const auto completion = [this](const std::string& line) { return load(line).samples.at(0).completion; };
  const std::string text = R"({"prompt": "say", "response": " yes"})";
  std::vector<int32_t> yes = encode(" yes");
  append_eos_ = false;
  EXPECT_EQ(completion(text), yes);
  append_eos_ = true;
  yes.push_back(kImEnd);
  EXPECT_EQ(completion(text), yes);
  EXPECT_EQ(completion(R"({"prompt": "say", "response": " yes<|im_end|>"})"), yes);
  EXPECT_EQ(completion(messages(kAsk + R"(, {"role": "assistant", "content": "2<|im_end|>"})")),
            encode(kNoThoughts + "2<|im_end|>"));
  yes.back() = kEndOfText;
  EXPECT_EQ(completion(R"({"prompt": "say", "response": " yes<|endoftext|>"})"), yes) << "any of the model's EOS";

  // The EOS of a Base checkpoint is not the token with which the template ends answers.
  model_.eos_token_ids = {kEndOfText};
  std::string warned;
  base::set_log_sink([&](base::LogLevel, const std::string& line) { warned += line; });
  EXPECT_EQ(completion(messages(kAsk + "," + kTwo)), encode(kNoThoughts + "2<|im_end|>"));
  base::set_log_sink({});
  EXPECT_NE(warned.find("ends 1 of 1 answers with <|im_end|> (473), which is not among eos_token_id"),
            std::string::npos)
      << warned;

  // This template ends answers with text alone, and the tokenizer names no EOS.
  use_template(
      "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
      "{% if add_generation_prompt %}assistant: {% endif %}");
  EXPECT_EQ(completion(messages(kAsk + "," + kTwo)), encode("2\n<|endoftext|>"));
  model_.eos_token_ids = {};
  expect_refusal(text, "data.jsonl:1: nothing ends the answer, and the checkpoint names no EOS token");
}

// The files of a model may name several EOS tokens, or another one first than its publisher ends texts with.
TEST_F(SftSamplesTest, PlainAnswersEndWithTheTokenizersEosAsInTrl) {
  const std::string text = R"({"prompt": "say", "response": " yes"})";
  std::string warned;
  std::vector<int32_t> yes = encode(" yes");
  yes.push_back(kImEnd);  // the eos_token of its tokenizer_config.json
  for (const std::vector<int32_t>& of_model : {std::vector<int32_t>{kEndOfText, kImEnd}, {kImEnd}, {kEndOfText}, {}}) {
    model_.eos_token_ids = of_model;
    warned.clear();
    base::set_log_sink(
        [&](base::LogLevel, const std::string& line) { warned += line; });  // collects lines until the next report
    const SftSamples samples = load(text);
    EXPECT_EQ(samples.samples.at(0).completion, yes);
    EXPECT_EQ(samples.appended_eos, kImEnd);
    const bool stops = std::ranges::find(of_model, kImEnd) != of_model.end();
    EXPECT_EQ(warned.find("the tokenizer's EOS <|im_end|> (473), which is not among eos_token_id") == std::string::npos,
              stops)
        << warned;
  }
  model_.eos_token_ids = {kEndOfText};
  EXPECT_EQ(load(R"({"prompt": "say", "response": " yes<|im_end|>"})").samples.at(0).completion, yes) << "once";
  use_template("{{ messages }}");  // the tokenizer names no EOS
  const SftSamples fallen_back = load(text);
  EXPECT_EQ(fallen_back.samples.at(0).completion.back(), kEndOfText);
  EXPECT_EQ(fallen_back.appended_eos, kEndOfText);
  base::set_log_sink({});
}

TEST_F(SftSamplesTest, DataThatAreHardlyMeantSoAreSaid) {
  const auto warnings = [&](data::Answers answers, const std::string& lines) {
    base::write_file_durably(folder_ / "data.jsonl", lines);
    data_.prompt_data = {folder_ / "data.jsonl"};
    testing::internal::CaptureStderr();
    load_all_sft_samples(data_, answers, append_eos_, *text_, model_);
    return testing::internal::GetCapturedStderr();
  };
  const auto expect_said = [](const std::string& warned, const std::string& says) {
    EXPECT_NE(warned.find(says), std::string::npos) << warned << "\nexpected: " << says;
  };
  const std::string good = R"({"prompt": "a", "completion": " b", "label": true})"
                           "\n";
  const std::string bad = R"({"prompt": "a", "completion": " c", "label": false})"
                          "\n";
  EXPECT_EQ(warnings(data::Answers::kToImitate, good + good), "");
  expect_said(warnings(data::Answers::kToImitate, good + bad), "1 of 2 lines have a label that is false");
  EXPECT_EQ(warnings(data::Answers::kLabelled, good + bad), "");
  expect_said(warnings(data::Answers::kLabelled, good + good), "the labels of all 2 answers are true");
  expect_said(warnings(data::Answers::kLabelled, bad), "the labels of all 1 answers are false");
  const std::string empty = R"({"prompt": "a", "response": ""})"
                            "\n";
  expect_said(warnings(data::Answers::kToImitate, good + empty + empty),
              "2 of 3 lines have an answer without any text, which the model learns to give; the first is line 2");
  expect_said(warnings(data::Answers::kToImitate, messages(kAsk + R"(, {"role": "assistant", "content": " "})")),
              "1 of 1 lines have an answer without any text");
  EXPECT_EQ(warnings(data::Answers::kToImitate,
                     messages(kAsk + R"(, {"role": "assistant", "content": "", "tool_calls": [)"
                                     R"({"type": "function", "function": {"name": "add", "arguments": {}}}]})")),
            "");
  const std::string pair = R"({"prompt": "a", "chosen": " b", "rejected": " c"})"
                           "\n";
  const std::string alike = R"({"prompt": "a", "chosen": " b", "rejected": " b"})"
                            "\n";
  EXPECT_EQ(warnings(data::Answers::kPairs, pair), "");
  expect_said(warnings(data::Answers::kPairs, pair + alike),
              "data.jsonl:2: chosen and rejected are the same answer, as in 1 of 2 pairs");
}

// The answers have several messages, and only the context of the chosen one's last is beyond the limits.
TEST_F(SftSamplesTest, LimitsLeaveOutWholePreferences) {
  use_template(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  const std::string wordy = R"({"role": "assistant", "content": "2 and 2 and 2 and 2 and 2 and 2 and 2"})";
  const auto pair = [](const std::string& first) {
    const std::string rest = "," + kAskAgain + "," + kThree + "]";
    return R"({"chosen": [)" + kAsk + "," + first + rest + R"(, "rejected": [)" + kAsk + "," + kThree + rest + "}\n";
  };
  const auto labelled = [](const std::string& first) {
    return R"({"prompt": [)" + kAsk + R"(], "completion": [)" + first + "," + kAskAgain + "," + kThree +
           R"(], "label": true})"
           "\n";
  };
  const std::vector<std::pair<data::Answers, std::string>> files = {
      {data::Answers::kPairs, pair(wordy) + pair(kTwo) + pair(wordy)},
      {data::Answers::kLabelled, labelled(wordy) + labelled(kTwo) + labelled(wordy)}};
  for (const auto& [kind, lines] : files) {
    kind_ = kind;
    data_.max_prompt_len = 0;
    data_.lines.skip_bad_lines = false;
    model_.max_positions = 1024;
    const SftSamples all = load(lines);
    const size_t of_line = kind == data::Answers::kPairs ? 2 : 1;
    ASSERT_EQ(all.samples.size(), 3 * of_line);
    const std::vector<std::string> said_by_chosen = stretches(all.samples[of_line], true);
    ASSERT_EQ(said_by_chosen, (std::vector<std::string>{"2<|im_end|>", "3<|im_end|>"}));
    const int64_t longest = all.samples[of_line].num_tokens();
    const auto expect_the_second = [&](const std::string& says) {
      std::string said;
      base::set_log_sink(
          [&](base::LogLevel, const std::string& line) { said += line; });  // collects lines until the next report
      const SftSamples left = load(lines);
      base::set_log_sink({});
      ASSERT_EQ(left.samples.size(), of_line) << said;
      for (size_t i = 0; i < of_line; ++i) {
        EXPECT_EQ(left.places[i], data_.lines.path + ":2");
        EXPECT_EQ(left.samples[i].completion, all.samples[of_line + i].completion);
      }
      EXPECT_NE(said.find(says), std::string::npos) << said;
    };
    data_.max_prompt_len = longest;
    expect_the_second("2 of 3 lines left out, their prompts are longer than --rollout-max-prompt-len");
    data_.max_prompt_len = 0;
    model_.max_positions = longest;
    expect_refusal(lines, "data.jsonl:1: prompt and response have ");
    data_.lines.skip_bad_lines = true;
    expect_the_second("2 of 3 lines left out (--skip-bad-lines), the first: ");
  }
}

TEST_F(SftSamplesTest, LinesThatTheTemplateCannotRenderMayBeLeftOut) {
  const std::string good = messages(kAsk + "," + kTwo);
  const std::string robot = messages(R"({"role": "robot", "content": "x"},)" + kTwo);
  // The answer of the first turn can be rendered; the line is left out whole.
  const std::string half = messages(kAsk + "," + kTwo + R"(, {"role": "robot", "content": "x"}, )" + kThree);
  const std::string thoughtful =
      messages(kAsk + R"(, {"role": "assistant", "content": "2", "reasoning_content": "one and one"})");
  const std::string nothing = R"({"prompt": " ", "response": ""})"
                              "\n";
  data_.apply_chat_template_kwargs = R"({"enable_thinking": false})";
  append_eos_ = false;
  expect_refusal(nothing, "data.jsonl:1: prompt or response has no tokens; remove the line (--skip-bad-lines counts ");
  expect_refusal(robot, " (--skip-bad-lines counts such lines instead)");
  data_.lines.skip_bad_lines = true;
  std::string said;
  base::set_log_sink([&](base::LogLevel, const std::string& line) { said += line; });
  const SftSamples left = load(good + robot + half + thoughtful + nothing + "{\n" + good);
  base::set_log_sink({});
  EXPECT_EQ(left.places, (std::vector<std::string>{data_.lines.path + ":1", data_.lines.path + ":7"}));
  EXPECT_EQ(left.num_trained_tokens, 2 * load(good).num_trained_tokens);
  EXPECT_NE(said.find("5 bad lines left out (--skip-bad-lines), the first: "), std::string::npos) << said;
  EXPECT_NE(said.find("data.jsonl:2: the chat template refuses the prompt"), std::string::npos) << said;
  expect_refusal(robot + thoughtful, "data.jsonl: no record to work on: 2 bad lines; the first bad one: ");
  data_.apply_chat_template_kwargs = "no JSON";
  expect_refusal(good + robot, "--apply-chat-template-kwargs:");
}

// A prompt whose answer cannot be rendered is no bad line for those who sample from it.
// The first answer has reasoning that is not rendered, which is the template's fault, but the line is not used at all.
TEST_F(SftSamplesTest, ALineThatIsLeftOutForItsLastAnswerIsNotAskedForItsFirst) {
  use_template(
      "{% for m in messages %}{% if m.role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}"
      "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  const std::string good = messages(kAsk + "," + kTwo);
  const std::string first = kAsk + R"(, {"role": "assistant", "content": "2", "reasoning_content": "one and one"})";
  data_.lines.skip_bad_lines = true;
  expect_refusal(good + messages(first), "data.jsonl:2: an answer has reasoning_content");
  const SftSamples left = load(good + messages(first + R"(, {"role": "robot", "content": "x"}, )" + kThree) + good);
  EXPECT_EQ(left.places, (std::vector<std::string>{data_.lines.path + ":1", data_.lines.path + ":3"}));
}

TEST_F(SftSamplesTest, AnswersThatAreLeftOutAreMissedWhereTheyAreAskedFor) {
  const std::string line = R"({"prompt": [)" + kAsk + R"(], "response": [{"role": "assistant", "content": "2")";
  base::write_file_durably(folder_ / "data.jsonl",
                           line + "}]}\n" + line + R"(, "reasoning_content": "one and one"}]})");
  data_.prompt_data = {folder_ / "data.jsonl"};
  data_.lines.skip_bad_lines = true;
  data_.apply_chat_template_kwargs = R"({"enable_thinking": false})";
  PromptSet prompts = load_all_prompts(data_, *text_);
  ASSERT_EQ(prompts.prompts.size(), 2U);
  try {
    read_given_answers(data_, {.key = "response", .max_tokens = 100}, *text_, model_, prompts);
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("data.jsonl:2: the answer is left out, as a line above says"),
              std::string::npos)
        << error.what();
  }
}

// Qwen3's template removes the think blocks of earlier answers, so an answer of two messages is not one text.
TEST_F(SftSamplesTest, PreferencesThatTheTemplateCannotRenderMayBeLeftOut) {
  const auto pair = [](const std::string& chosen, const std::string& rejected) {
    return R"({"prompt": [)" + kAsk + R"(], "chosen": [)" + chosen + R"(], "rejected": [)" + rejected + "]}\n";
  };
  const std::string turns = kTwo + "," + kAskAgain + "," + kThree;
  const std::string good = pair(kTwo, kThree), several = pair(kTwo, turns);
  const std::string robot = pair(kTwo, kThree + R"(, {"role": "robot", "content": "x"}, )" + kThree);
  const auto labelled = [](const std::string& completion) {
    return R"({"prompt": [)" + kAsk + R"(], "completion": [)" + completion + "], \"label\": true}\n";
  };
  const std::vector<std::pair<data::Answers, std::vector<std::string>>> files = {
      {data::Answers::kPairs, {good, several, robot}},
      {data::Answers::kLabelled,
       {labelled(kTwo), labelled(turns), labelled(R"({"role": "robot", "content": "x"}, )" + kTwo)}}};
  for (const auto& [kind, lines] : files) {
    kind_ = kind;
    data_.lines.skip_bad_lines = false;
    expect_refusal(lines[0] + lines[1],
                   "data.jsonl:2: an answer of several messages, which the chat template does not ");
    expect_refusal(lines[0] + lines[2], "data.jsonl:2: the chat template refuses the prompt");
    data_.lines.skip_bad_lines = true;
    const SftSamples all = load(lines[0] + lines[0]);
    const SftSamples left = load(lines[0] + lines[1] + lines[2] + lines[1] + lines[0]);
    ASSERT_EQ(left.samples.size(), all.samples.size());
    for (size_t i = 0; i < all.samples.size(); ++i) {
      const std::string line = i < all.samples.size() / 2 ? ":1" : ":5";
      EXPECT_EQ(left.places[i], data_.lines.path + line);
      EXPECT_EQ(left.samples[i].completion, all.samples[i].completion);
      EXPECT_EQ(left.samples[i].group_id, all.samples[i].group_id);
      EXPECT_EQ(left.samples[i].sample_id, all.samples[i].sample_id);
    }
    EXPECT_EQ(left.num_trained_tokens, all.num_trained_tokens);
    expect_refusal(lines[1] + lines[2], "data.jsonl: no record to work on: 2 bad lines; the first bad one: ");
  }
}

TEST_F(SftSamplesTest, TextsThatAreTooLargeForTheTokenizerAreBadLines) {
  const std::string large(text::kMaxTextBytes + 1, 'a');
  const std::string short_one = R"({"prompt": "a", "response": "b"})"
                                "\n";
  const base::Json asked = base::Json::array({base::Json::parse(kAsk)});
  const std::vector<std::string> lines = {base::dump_json({{"prompt", large}, {"response", "b"}}) + "\n",
                                          base::dump_json({{"prompt", "a"}, {"response", large}}) + "\n",
                                          base::dump_json({{"text", large}}) + "\n",
                                          base::dump_json({{"prompt", asked}, {"response", large}}) + "\n"};
  for (const std::string& line : lines) {
    data_.lines.skip_bad_lines = false;
    expect_refusal(short_one + line, "data.jsonl:2: the text has 83886");
    data_.lines.skip_bad_lines = true;
    const SftSamples left = load(line + short_one);
    EXPECT_EQ(left.places, (std::vector<std::string>{data_.lines.path + ":2"}));
  }
}

TEST_F(SftSamplesTest, LinesThatCannotBeLearntAreNamed) {
  const std::string thoughtful =
      messages(kAsk + R"(, {"role": "assistant", "content": "2", "reasoning_content": "one and one"})");
  data_.apply_chat_template_kwargs = R"({"enable_thinking": false})";
  expect_refusal(messages(kAsk + "," + kTwo) + thoughtful,
                 "data.jsonl:2: what the chat template renders as the prompt does not begin the conversation with its "
                 "answer: the prompt continues with '\\n</think>\\n\\n' where the conversation has 'one and one");
  data_.apply_chat_template_kwargs = "{}";
  EXPECT_EQ(load(thoughtful).samples.size(), 1U);
  expect_refusal(messages(kAsk + "," + kTwo) + messages(R"({"role": "robot", "content": "x"},)" + kTwo),
                 "data.jsonl:2: the chat template refuses the prompt");
  model_.max_positions = 16;
  expect_refusal(R"({"prompt": "a", "response": "b"})"
                 "\n" +
                     messages(kAsk + "," + kTwo),
                 "data.jsonl:2: prompt and response have ");
  // Such a line may be left out.
  data_.lines.skip_bad_lines = true;
  const std::string short_one = R"({"prompt": "a", "response": "b"})"
                                "\n";
  const SftSamples left = load(short_one + messages(kAsk + "," + kTwo) + short_one);
  EXPECT_EQ(left.samples.size(), 2U);
  EXPECT_EQ(left.num_trained_tokens, 2 * load(short_one).num_trained_tokens);
  expect_refusal(messages(kAsk + "," + kTwo), "no answer is left; ");
  data_.lines.skip_bad_lines = false;
  data_.max_prompt_len = 4;
  EXPECT_EQ(load(R"({"prompt": "a", "response": "b"})"
                 "\n" +
                 messages(kAsk + "," + kTwo))
                .samples.size(),
            1U);
}

}  // namespace
}  // namespace tandem::session
