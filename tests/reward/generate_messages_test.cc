// Messages that a process with a generate function may send: user code may have written them.
#include "reward/generate_messages.h"

#include <gtest/gtest.h>

#include "worker/message.h"

namespace tandem::reward {
namespace {

using base::Json;

Json ended() {
  return {{"run", 3},
          {"tokens", {1, 2, 3}},
          {"response_length", 2},
          {"loss_mask", "10"},
          {"sequence_begins", {0}},
          {"endpoint", {{"answers", 4}, {"restarts", 3}, {"untrained", 2}, {"refused", 1}}},
          {"status", "completed"},
          {"metadata", {{"a", 1}}},
          {"attributes", Json::object()}};
}

// Returns the message as it is read, where a number that is not negative is unsigned.
Json reply(const Json& asked, const Json& ended_ones) {
  const Json message = {{"asked", asked}, {"ended", ended_ones}, {"all_wait", true}};
  return base::parse_json(base::dump_json(message), "reply");
}

TEST(GenerateMessages, ReadWhatAProcessSays) {
  const Json asked = {{"run", 1}, {"call", 2}, {"input_ids", {7, 8}}, {"sampling_params", {{"top_p", 0.5}}}};
  const Json failed = {{"run", 4},
                       {"endpoint", {{"answers", 8}, {"restarts", 7}, {"untrained", 6}, {"refused", 5}}},
                       {"failure", "KeyError:\n'x'"},
                       {"hung", false},
                       {"out_of_memory", true}};
  const GeneratorReply read = reply_of(reply(Json::array({asked}), Json::array({ended(), failed})));
  ASSERT_EQ(read.asked.size(), 1U);
  EXPECT_EQ(read.asked[0].run, 1U);
  EXPECT_EQ(read.asked[0].call.call, 2U);
  EXPECT_EQ(read.asked[0].call.input_ids, (std::vector<int32_t>{7, 8}));
  ASSERT_EQ(read.ended.size(), 2U);
  EXPECT_EQ(read.ended[0].result.loss_mask, (std::vector<uint8_t>{1, 0}));
  EXPECT_EQ(read.ended[0].result.metadata["a"], 1);
  EXPECT_EQ(read.ended[0].result.sequence_begins, std::vector<int64_t>{0});
  EXPECT_EQ(read.ended[0].result.endpoint_answers, 4);
  EXPECT_EQ(read.ended[0].result.endpoint_restarts, 3);
  EXPECT_EQ(read.ended[0].result.endpoint_untrained, 2);
  EXPECT_EQ(read.ended[0].result.endpoint_refused, 1);
  EXPECT_EQ(read.ended[1].result.failure, "KeyError:\\n'x'") << "one line";
  EXPECT_TRUE(read.ended[1].out_of_memory);
  EXPECT_EQ(read.ended[1].result.endpoint_answers, 8);
  EXPECT_EQ(read.ended[1].result.endpoint_restarts, 7);
  EXPECT_EQ(read.ended[1].result.endpoint_untrained, 6);
  EXPECT_EQ(read.ended[1].result.endpoint_refused, 5);
  EXPECT_TRUE(read.all_wait);
}

// python/tandem_worker/user_functions/engine_calls.py lets a function have 64 KiB of parameters as JSON.
TEST(GenerateMessages, TakeAllSamplingParametersThatAFunctionMayHave) {
  const auto asked = [](size_t stop_bytes) {
    const Json sampling = {{"stop", Json::array({std::string(stop_bytes, 'x')})}};
    const Json call = {{"run", 1}, {"call", 2}, {"input_ids", {7, 8}}, {"sampling_params", sampling}};
    return Json::array({call});
  };
  const GeneratorReply read = reply_of(reply(asked(size_t{1} << 16), Json::array()));
  ASSERT_EQ(read.asked.size(), 1U);
  EXPECT_EQ(read.asked[0].call.sampling["stop"][0].get<std::string>().size(), size_t{1} << 16);
  EXPECT_THROW(reply_of(reply(asked(size_t{1} << 18), Json::array())), worker::BadReply);
}

TEST(GenerateMessages, RefuseWhatNoHonestProcessSays) {
  for (const auto& [key, value] :
       std::initializer_list<std::pair<const char*, Json>>{{"run", -1},
                                                           {"run", "1"},
                                                           {"tokens", {1, -2, 3}},
                                                           {"tokens", {1, 2, int64_t{1} << 31}},
                                                           {"tokens", 5},
                                                           {"response_length", 4},
                                                           {"sequence_begins", {2}},
                                                           {"sequence_begins", {1, 0}},
                                                           {"sequence_begins", {-1}},
                                                           {"endpoint", {{"answers", 1}}},
                                                           {"loss_mask", "1"},
                                                           {"loss_mask", "12"},
                                                           {"loss_mask", {1, 0}},
                                                           {"status", "pending"},
                                                           {"metadata", nullptr},
                                                           {"metadata", {{"a", std::string(1 << 19, 'x')}}},
                                                           {"attributes", 1},
                                                           {"failure", ""},
                                                           {"failure", std::string(5000, 'x')}}) {
    Json changed = ended();
    changed[key] = value;
    EXPECT_THROW(reply_of(reply(Json::array(), Json::array({changed}))), worker::BadReply)
        << key << " " << value.dump();
  }
  for (const char* key : {"run", "tokens", "response_length", "loss_mask", "sequence_begins", "endpoint", "status",
                          "metadata", "attributes"}) {
    Json changed = ended();
    changed.erase(key);
    EXPECT_THROW(reply_of(reply(Json::array(), Json::array({changed}))), worker::BadReply) << key;
  }
  EXPECT_THROW(reply_of(Json::array()), worker::BadReply);
  EXPECT_THROW(reply_of(Json::object()), worker::BadReply);
  EXPECT_THROW(reply_of(reply(Json::array({1}), Json::array())), worker::BadReply);
}

}  // namespace
}  // namespace tandem::reward
