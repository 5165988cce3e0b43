// Replies that may come from a worker process, byte by byte; tests/fuzz/worker_reply.cc has all the rest that may.
#include "worker/message.h"

#include <gtest/gtest.h>

#include <string>

#include "base/check.h"
#include "tests/base/thrown.h"

namespace tandem::worker {
namespace {

std::string framed(const std::string& body) {
  std::string frame = {static_cast<char>(body.size() & 0xFF), static_cast<char>(body.size() >> 8), 0, 0};
  return frame + body;
}

template <typename Error>
std::string message_of(const std::string& body) {
  SCOPED_TRACE(body);
  return base::refusal_of<Error>([&] { result_of(framed(body), 7); });
}

TEST(Message, ARequestIsItsLengthAndItsJson) {
  EXPECT_EQ(framed_request(7, "encode", {{"texts", {"a"}}}),
            framed(R"({"id":7,"call":"encode","arguments":{"texts":["a"]}})"));
  EXPECT_THROW(framed_request(7, "encode", "\xFF"), UserError);
}

TEST(Message, AReplyIsWholeAtItsLengthAlone) {
  const std::string reply = framed(R"({"id":7,"result":[1]})");
  for (size_t i = 0; i < reply.size(); ++i) EXPECT_EQ(arrival_of(reply.substr(0, i)), Arrival::kPartial) << i;
  EXPECT_EQ(arrival_of(reply), Arrival::kWhole);
  EXPECT_EQ(arrival_of(reply + "x"), Arrival::kNonsense);
  EXPECT_EQ(arrival_of(std::string("\x01\x00\x00\x10", 4)), Arrival::kNonsense);  // more than 256 MiB
  EXPECT_EQ(result_of(reply, 7), base::Json({1}));
}

TEST(Message, FaultsAreOneLine) {
  EXPECT_EQ(message_of<UserError>(R"({"id":7,"user_fault":"a\nb \"c\""})"), "a\\nb \"c\"");
  EXPECT_EQ(message_of<EnvironmentError>(R"({"id":7,"machine_fault":"no jinja2"})"), "no jinja2");
  EXPECT_LT(message_of<UserError>(R"({"id":7,"user_fault":")" + std::string(50000, 'x') + "\"}").size(), 5000U);
}

TEST(Message, AnythingElseIsABadReply) {
  const std::string no_reply = "answered with something other than a reply";
  for (const char* body : {"", "{]", "[]", "7", R"({"result":1})", R"({"id":8,"result":1})", R"({"id":"7","result":1})",
                           R"({"id":7,"result":1,"result":2})"}) {
    EXPECT_EQ(message_of<BadReply>(body), no_reply) << body;
  }
  for (const char* body : {R"({"id":7})", R"({"id":7,"user_fault":3})"}) {
    EXPECT_EQ(message_of<BadReply>(body), "answered without a result") << body;
  }
}

}  // namespace
}  // namespace tandem::worker
