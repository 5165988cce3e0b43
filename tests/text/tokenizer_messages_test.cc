// Answers that a tokenizer process may give; tests/fuzz/tokenizer_reply.cc has all the rest, which it may not.
#include "text/tokenizer_messages.h"

#include <gtest/gtest.h>

#include "worker/message.h"

namespace tandem::text {
namespace {

using base::Json;

Json facts(const Json& vocab_size, const Json& special_ids) {
  return {{"vocab_size", vocab_size}, {"has_chat_template", true}, {"special_ids", special_ids}};
}

TEST(TokenizerMessages, FactsAreRead) {
  Json answer = facts(3, {0, 2});
  answer["template_path"] = "m/chat_template.jinja";
  const TokenizerFacts read = tokenizer_facts(answer);
  EXPECT_EQ(read.vocab_size, 3);
  EXPECT_TRUE(read.has_chat_template);
  EXPECT_EQ(read.template_path, "m/chat_template.jinja");
  EXPECT_EQ(read.is_special, (std::vector<bool>{true, false, true}));
  EXPECT_EQ(tokenizer_facts(facts(0, Json::array())).vocab_size, 0);
  EXPECT_EQ(read.eos_id, std::nullopt);
  answer["eos_id"] = 2;
  EXPECT_EQ(tokenizer_facts(answer).eos_id, 2);
  EXPECT_TRUE(read.text_prefix.empty());
  answer["text_prefix"] = {2, 0};
  EXPECT_EQ(tokenizer_facts(answer).text_prefix, (std::vector<int32_t>{2, 0}));
  for (const Json& prefix : {Json(2), Json({3}), Json({-1}), Json({"2"})}) {
    answer["text_prefix"] = prefix;
    EXPECT_THROW(tokenizer_facts(answer), worker::BadReply) << prefix;
  }
}

// A vocabulary of -1 ids asked for a list of 2^64 - 1 bits: std::length_error, exit code 1.
TEST(TokenizerMessages, SizesHaveBounds) {
  for (const Json& size : {Json(-1), Json(kMaxTokenizerIds + 1), Json(UINT64_MAX), Json(2.0), Json("3"), Json()}) {
    EXPECT_THROW(tokenizer_facts(facts(size, Json::array())), worker::BadReply) << size;
  }
  for (const Json& id : {Json(-1), Json(3), Json(UINT64_MAX), Json(1.5), Json("0")}) {
    Json answer = facts(3, Json::array());
    answer["eos_id"] = id;
    EXPECT_THROW(tokenizer_facts(answer), worker::BadReply) << id;
    EXPECT_THROW(tokenizer_facts(facts(3, Json::array({id}))), worker::BadReply) << id;
    EXPECT_THROW(token_ids(Json::array({Json::array({id})}), 1, 3), worker::BadReply) << id;
  }
  EXPECT_THROW(tokenizer_facts(Json::array()), worker::BadReply);
  EXPECT_THROW(tokenizer_facts(Json::object()), worker::BadReply);
}

TEST(TokenizerMessages, ThereIsOneResultForEachItem) {
  EXPECT_EQ(token_ids({{1, 2}, Json::array()}, 2, 3), (std::vector<std::vector<int32_t>>{{1, 2}, {}}));
  EXPECT_EQ(texts({"a", ""}, 2), (std::vector<std::string>{"a", ""}));
  EXPECT_THROW(token_ids(Json::array({Json::array()}), 2, 3), worker::BadReply);
  EXPECT_THROW(texts({"a"}, 2), worker::BadReply);
  EXPECT_THROW(texts({1, 2}, 2), worker::BadReply);
  EXPECT_THROW(token_table({"61"}, 2), worker::BadReply);
}

TEST(TokenizerMessages, BytesAreHexadecimalDigits) {
  EXPECT_EQ(token_table({"61", "", "c3a9"}, 3), (std::vector<std::string>{"a", "", "\xc3\xa9"}));
  for (const char* hex : {"6", "zz", "C3", "6 ", "-1", "\xc3\xa9"}) {
    EXPECT_THROW(token_table(Json::array({hex}), 1), worker::BadReply) << hex;
  }
}

}  // namespace
}  // namespace tandem::text
