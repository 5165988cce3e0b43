// Files of data to imitate, good and bad, are read or refused.
#include "data/sft.h"

#include <gtest/gtest.h>

#include "tandem/error.h"
#include "tests/base/thrown.h"
#include "tests/data/data_file.h"

namespace tandem::data {
namespace {

SftRecord read_line(const std::string& line) {
  const DataFile file(line + "\n");
  SftData data = read_sft({.path = file.path()});
  EXPECT_EQ(data.records.size(), 1U);
  return data.records.at(0);
}

std::string refusal(const std::string& line, const std::string& response_key = "response") {
  const DataFile file(line);
  EXPECT_THROW(read_sft({.path = file.path(), .response_key = response_key, .skip_bad_lines = true}), UserError)
      << "nothing is left: " << line;
  std::string text = base::thrown_by([&] { read_sft({.path = file.path(), .response_key = response_key}); });
  EXPECT_TRUE(text.starts_with(file.path() + ":1:")) << text;
  return text;
}

void expect_refusal(const std::string& line, const std::string& says) {
  const std::string text = refusal(line);
  EXPECT_NE(text.find(says), std::string::npos) << text << "\nexpected: " << says;
}

const std::string kUser = R"({"role": "user", "content": "hi"})";
const std::string kAnswer = R"({"role": "assistant", "content": "ho"})";

std::string answer_with(const std::string& member) {
  return R"({"role": "assistant", "content": "ho", )" + member + "}";
}

TEST(Sft, ReadsTextsAndConversations) {
  const SftRecord texts = read_line(R"({"prompt": "1+1=", "response": "2"})");
  EXPECT_TRUE(texts.messages.is_null());
  EXPECT_EQ(texts.prompt, "1+1=");
  EXPECT_EQ(texts.response, "2");
  EXPECT_EQ(read_line(R"({"prompt": "1+1=", "completion": "2"})").response, "2");
  EXPECT_EQ(read_line(R"({"prompt": "1+1=", "completion": "3", "response": "2"})").response, "2");

  // "messages" trains on all assistant's messages, a completion on those of the completion.
  const std::string four = kUser + "," + kAnswer + "," + kUser + "," + kAnswer;
  const SftRecord conversation = read_line(R"({"prompt": "title", "tools": [{}], "messages": [)" + four + "]}");
  EXPECT_EQ(conversation.messages.size(), 4U);
  EXPECT_EQ(conversation.trained, (std::vector<size_t>{1, 3}));
  EXPECT_EQ(conversation.tools.size(), 1U);
  const SftRecord halves = read_line(R"({"prompt": [)" + kUser + "," + kAnswer + "," + kUser + R"(], "completion": [)" +
                                     kAnswer + "," + kUser + "," + kAnswer + "]}");
  EXPECT_EQ(halves.messages.size(), 6U);
  EXPECT_EQ(halves.trained, (std::vector<size_t>{3, 5}));
  const SftRecord mixed = read_line(R"({"prompt": [)" + kUser + R"(], "response": "ho"})");
  EXPECT_EQ(mixed.messages.back(), base::parse_json(kAnswer, "answer"));
  EXPECT_EQ(mixed.trained, (std::vector<size_t>{1}));
  const SftRecord parts = read_line(R"({"messages": [)" + kUser +
                                    R"(, {"role": "assistant", "content": [{"type": "text", "text": "ho"}]}]})");
  EXPECT_EQ(parts.messages[1]["content"], "ho");
  const SftRecord calls = read_line(R"({"messages": [)" + kUser +
                                    R"(, {"role": "assistant", "content": null, "tool_calls": [{"name": "f"}]}]})");
  EXPECT_EQ(calls.messages[1]["tool_calls"].size(), 1U);
}

TEST(Sft, KeysAreFollowedAlongDots) {
  const DataFile file(R"({"a": {"question": "1+1"}, "b": {"answer": "2"}})"
                      "\n");
  const SftData data = read_sft({.path = file.path(), .prompt_key = "a.question", .response_key = "b.answer"});
  EXPECT_EQ(data.records.at(0).prompt, "1+1");
  EXPECT_EQ(data.records.at(0).response, "2");
}

TEST(Sft, MessagesSayThatTheyAreNotLearnt) {
  for (const char* off : {R"("train": false)", R"("train": 0)", R"("step_loss_mask": 0)", R"("weight": 0)",
                          R"("weight": 0, "train": null)"}) {
    const SftRecord record = read_line(R"({"messages": [)" + kUser + "," + answer_with(off) + "," + kUser + "," +
                                       answer_with(R"("step_loss_mask": 1, "train": true)") + "]}");
    EXPECT_EQ(record.trained, (std::vector<size_t>{3})) << off;
    // The chat template sees the messages without these keys.
    EXPECT_EQ(base::dump_json(record.messages[1]), base::dump_json(record.messages[3]));
    EXPECT_EQ(record.messages[1].size(), 2U);
  }
  const SftRecord prompt = read_line(R"({"prompt": [)" + kUser + "," + answer_with(R"("train": true)") + "," + kUser +
                                     R"(], "response": "ho"})");
  EXPECT_EQ(prompt.trained, (std::vector<size_t>{1, 3}));
  const SftRecord first =
      read_line(R"({"messages": [)" + answer_with(R"("train": false)") + "," + kUser + "," + kAnswer + "]}");
  EXPECT_EQ(first.trained, (std::vector<size_t>{2}));
  expect_refusal(R"({"messages": [)" + kUser + "," + answer_with(R"("train": "no")") + "]}",
                 ":1:2: message 2 has a train that is neither true nor false");
  expect_refusal(R"({"messages": [)" + kUser + "," + answer_with(R"("weight": 0.5)") + "]}", "has a weight that is");
  // Data of preferences are no answers to imitate, with or without a prompt, unless one of the two is named.
  expect_refusal(R"({"prompt": "a", "chosen": "b", "rejected": "c"})", ":1:17: a line with chosen and rejected has no");
  expect_refusal(R"({"chosen": [)" + kUser + "," + kAnswer + R"(], "rejected": [)" + kUser + "," + kAnswer + "]}",
                 "give --preference-loss sigmoid (DPO)");
  const DataFile pair(R"({"prompt": "a", "chosen": "b", "rejected": "c"})");
  EXPECT_EQ(read_sft({.path = pair.path(), .response_key = "chosen"}).records.at(0).response, "b");
  const DataFile nested(R"({"prompt": "a", "best": {"text": "d"}, "chosen": "b", "rejected": "c"})");
  EXPECT_EQ(read_sft({.path = nested.path(), .response_key = "best.text"}).records.at(0).response, "d");
}

TEST(Sft, RefusesLinesWithNothingToLearn) {
  expect_refusal(R"({"prompt": "a"})", R"(add the answer to train on: "response", "completion" or "messages")");
  expect_refusal(R"({"prompt": "a", "response": 1})", ":1:17: response is a number");
  expect_refusal(R"({"prompt": "a", "completion": null})", ":1:17: completion is a null");
  expect_refusal(R"({"prompt": "a", "completion": [)" + kAnswer + "]}", "write both in one form");
  expect_refusal(R"({"messages": []})", "the message list is empty");
  expect_refusal(R"({"messages": "hi"})", "messages is a string");
  expect_refusal(R"({"messages": [)" + kAnswer + "]}", "message 1 is an assistant's with nothing before it");
  expect_refusal(R"({"messages": [)" + kUser + "," + kAnswer + "," + kUser + "]}", "ends with a message of role user");
  expect_refusal(R"({"prompt": [)" + kUser + R"(], "completion": [)" + kUser + "]}", "ends with a message of role");
  expect_refusal(R"({"messages": [)" + kUser + "," + answer_with(R"("train": false)") + "]}",
                 "no message is trained on");
  EXPECT_NE(refusal(R"({"prompt": "a", "completion": "b"})", "answer").find("the key answer is missing"),
            std::string::npos);
}

TEST(Sft, NamesWhatIsWrongInTheFormatsOfOthers) {
  expect_refusal(R"({"conversations": []})", "conversations is no list of turns");
  expect_refusal(R"({"conversations": [{"from": "human"}]})", "turn 1 is no turn");
  expect_refusal(R"({"conversations": [{"from": "narrator", "value": "a"}]})", "turn 1 is from narrator");
  expect_refusal(R"({"conversations": [{"from": "human", "value": 7}]})", "message 1 has no text");
  expect_refusal(R"({"conversations": [{"from": "human", "value": "a"}]})", "ends with a message of role user");
  expect_refusal(R"({"conversations": [{"from": "gpt", "value": "a"}]})", "nothing before it to answer");
  expect_refusal(R"({"instruction": "", "input": "", "output": "a"})", "instruction and input are empty");
  expect_refusal(R"({"instruction": 7, "output": "a"})", "instruction is a number");
  expect_refusal(R"({"instruction": "a", "output": null})", "output is a null");
  expect_refusal(R"({"instruction": "a", "context": 7, "response": "b"})", "context is a number");
  expect_refusal(R"({"instruction": "a", "response": null})", "response is a null");
  expect_refusal(R"({"instruction": "a", "output": "b", "history": ["c"]})",
                 "history is no list of [question, answer]");
  expect_refusal(R"({"instruction": "a", "output": "b", "system": 7})", "system is a number");
  expect_refusal(R"({"text": ""})", "text is empty");
  expect_refusal(R"({"text": ["a"]})", "text is an array");
}

SftData read_pairs(const std::string& line) {
  const DataFile file(line + "\n");
  return read_sft({.path = file.path(), .answers = Answers::kPairs});
}

std::string pair_refusal(const std::string& line) {
  return base::thrown_by([&] { read_pairs(line); }, "accepted");
}

const std::string kWorse = R"({"role": "assistant", "content": "hm"})";

// UltraFeedback-binarized has the prompt as a text beside two whole conversations.
TEST(Sft, APairOfConversationsMayRepeatItsPromptAsText) {
  const std::string whole =
      R"("chosen": [)" + kUser + "," + kAnswer + R"(], "rejected": [)" + kUser + "," + kWorse + "]}";
  const std::string answers = R"("chosen": [)" + kAnswer + R"(], "rejected": [)" + kWorse + "]}";
  const SftData expected = read_pairs("{" + whole);
  ASSERT_EQ(expected.records.size(), 2U);
  for (const std::string& line :
       {R"({"prompt": "hi", )" + whole, R"({"prompt": null, )" + whole, R"({"prompt": "hi", )" + answers}) {
    const SftData data = read_pairs(line);
    ASSERT_EQ(data.records.size(), 2U) << line;
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(data.records[i].messages, expected.records[i].messages) << line;
      EXPECT_EQ(data.records[i].trained, expected.records[i].trained) << line;
    }
  }
}

// Orca's pairs have a system message in a column of its own.
TEST(Sft, APromptMayHaveItsSystemMessageBeside) {
  const SftData pair = read_pairs(R"({"system": "short", "prompt": "hi", "chosen": "ho", "rejected": "hm"})");
  for (const SftRecord& record : pair.records) EXPECT_EQ(record.system, "short");
  const SftRecord list = read_line(R"({"system": "short", "prompt": [)" + kUser + R"(], "response": "ho"})");
  EXPECT_EQ(list.messages.size(), 3U);
  EXPECT_EQ(list.messages[0]["content"], "short");
  EXPECT_EQ(list.trained, std::vector<size_t>{2});
  const std::string own = R"({"role": "system", "content": "long"})";
  const SftRecord kept =
      read_line(R"({"system": "short", "prompt": [)" + own + "," + kUser + R"(], "response": "ho"})");
  EXPECT_EQ(kept.messages.size(), 3U);
  EXPECT_EQ(kept.messages[0]["content"], "long");
  // Other data have columns of that name that hold no message.
  EXPECT_EQ(read_line(R"({"system": {"os": "linux"}, "prompt": "hi", "response": "ho"})").system, "");
}

TEST(Sft, OneAnswerOfAPairOfConversationsCanBeImitated) {
  const std::string whole =
      R"("chosen": [)" + kUser + "," + kAnswer + R"(], "rejected": [)" + kUser + "," + kWorse + "]}";
  for (const std::string& line : {"{" + whole, R"({"prompt": "hi", )" + whole}) {
    const DataFile file(line);
    const SftRecord chosen = read_sft({.path = file.path(), .response_key = "chosen"}).records.at(0);
    EXPECT_EQ(base::dump_json(chosen.messages),
              base::dump_json(base::parse_json("[" + kUser + "," + kAnswer + "]", "m")));
    EXPECT_EQ(chosen.trained, std::vector<size_t>{1});
    const SftRecord rejected = read_sft({.path = file.path(), .response_key = "rejected"}).records.at(0);
    EXPECT_EQ(rejected.messages[1]["content"], "hm");
  }
}

TEST(Sft, ColumnsOfOtherFormatsMayBeNull) {
  const std::string messages = R"("messages": [)" + kUser + "," + kAnswer + "]";
  const std::string turns = R"("conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}])";
  const std::string alpaca = R"("instruction": "hi", "output": "ho")";
  for (const std::string& line : {R"({"prompt": null, "response": null, "text": null, )" + messages + "}",
                                  R"({"messages": null, "prompt": null, )" + turns + "}",
                                  R"({"messages": null, "conversations": null, )" + alpaca + "}"}) {
    EXPECT_EQ(read_line(line).messages.size(), 2U) << line;
  }
  EXPECT_EQ(read_line(R"({"messages": null, "prompt": "a", "response": null, "completion": "b"})").response, "b");
  EXPECT_EQ(read_line(R"({"messages": null, "instruction": null, "output": null, "text": "b"})").response, "b");
}

TEST(Sft, RemediesNameKeysThatHelp) {
  const std::string pair = pair_refusal(R"({"question": "a", "chosen": "b", "rejected": "c"})");
  EXPECT_NE(pair.find("the key prompt is missing: there are question, chosen, rejected - name the prompt's key with "
                      "--input-key question"),
            std::string::npos)
      << pair;
  const DataFile labelled(R"({"question": "a", "answer": "b", "label": true})");
  try {
    read_sft({.path = labelled.path(), .answers = Answers::kLabelled});
    FAIL() << "accepted";
  } catch (const UserError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("--input-key question --label-key answer"), std::string::npos)
        << "label is the verdict: " << text;
  }
}

TEST(Sft, ListsTheKeysThatAreThere) {
  expect_refusal(R"({"question": "1 + 1?", "answer": "2"})",
                 "the key prompt is missing: there are question, answer - add it, or name the prompt's key with "
                 "--input-key question --label-key answer");
  expect_refusal(R"({"prompt": "1 + 1?", "answer": "2"})",
                 "the key response is missing: there are prompt, answer - add the answer to train on: \"response\", "
                 "\"completion\" or \"messages\", or name its key with --label-key answer");
}

}  // namespace
}  // namespace tandem::data
