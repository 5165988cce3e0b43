// Tests of inputs that fuzzers with their small inputs do not reach: a megabyte of one thing. Each parser answers it in
// time that grows with the input and not with its square, and on a stack that does not grow with its depth.
#include <gtest/gtest.h>

#include <ctime>
#include <functional>

#include "base/json.h"
#include "data/prompts.h"
#include "model/config.h"
#include "options/options.h"
#include "tests/fuzz/target.h"
#include "weights/safetensors.h"
#include "worker/message.h"

namespace tandem::fuzz {
namespace {

constexpr size_t kBytes = size_t{1} << 20;
constexpr double kMaxSeconds = 20;  // of a processor, sanitized; what is quadratic takes minutes

std::string repeated(const std::string& text, size_t num_bytes = kBytes) {
  std::string all;
  while (all.size() + text.size() <= num_bytes) all += text;
  return all;
}

// "k0": VALUE, "k1": VALUE, ...
std::string members(size_t count, const std::string& value) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += (i == 0 ? "\"k" : ",\"k") + std::to_string(i) + "\":" + value;
  return all;
}

// Runs `read` and says whether it accepted; fails the test when it takes too long or throws anything but UserError.
bool accepts_in_time(const std::function<void()>& read) {
  const std::clock_t start = std::clock();  // time of this process alone, however busy the machine is
  const bool accepted = accepts(read, [](std::string_view message) { require_message(message, ""); });
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, kMaxSeconds);
  return accepted;
}

bool accepts_json(const std::string& text) {
  return accepts_in_time([&] { base::parse_json(text, "input"); });
}

TEST(LargeInput, JsonIsReadInLinearTime) {
  EXPECT_FALSE(accepts_json(repeated("[")));
  EXPECT_FALSE(accepts_json(repeated("{\"a\":")));
  EXPECT_FALSE(accepts_json("{\"" + repeated("a", kBytes / 2) + "\":1,\"" + repeated("a", kBytes / 2) + "\":1}"));
  EXPECT_FALSE(accepts_json("{\"" + repeated("\\\\") + "\":1,\"a\":1,\"a\":2}"));
  EXPECT_TRUE(accepts_json("{" + members(60000, "0") + "}"));
  EXPECT_TRUE(accepts_json("[" + repeated("{},") + "0]"));
}

// A line of 80,000 keys took more than 50 s: each key of the metadata was looked up among those before it.
TEST(LargeInput, LinesOfManyKeysAreReadInLinearTime) {
  const MemoryFile file;
  for (const std::string& line : {"{\"prompt\":\"a\"," + members(60000, "0") + "}",
                                  "{\"prompt\":\"a\",\"metadata\":{" + members(60000, "0") + "}}"}) {
    file.write(line);
    tandem::data::PromptData data;
    ASSERT_TRUE(accepts_in_time([&] { data = data::read_prompts({.path = file.path()}); }));
    EXPECT_GE(data.records.at(0).metadata.size(), 60000U);  // the metadata's own key stands beside its members
  }
}

TEST(LargeInput, FilesOfManyLinesAreReadInLinearTime) {
  const MemoryFile file;
  file.write(repeated("\n", kBytes / 2) + repeated("x\n", kBytes / 4) + "{\"prompt\":\"a\"}");
  EXPECT_TRUE(accepts_in_time([&] { data::read_prompts({.path = file.path(), .skip_bad_lines = true}); }));
}

// A list of 150,000 ids took more than 50 s: each was looked for among those before it.
TEST(LargeInput, ManyEndTokensAreReadInLinearTime) {
  std::string ids;
  for (int i = 0; i < 150000; ++i) ids += (i == 0 ? "" : ",") + std::to_string(i);
  const std::string text =
      R"({"architectures":["Qwen3ForCausalLM"],"hidden_size":8,"num_hidden_layers":1,"num_attention_heads":2,)"
      R"("num_key_value_heads":1,"head_dim":4,"intermediate_size":8,"vocab_size":1000000,)"
      R"("max_position_embeddings":64,"rope_theta":10000.0,"rms_norm_eps":1e-6,"dtype":"float32","eos_token_id":[)" +
      ids + "]}";
  EXPECT_TRUE(accepts_in_time([&] { model::parse_model_config(text, "config.json"); }));
}

// toml++ makes a table of each part of a name, and frees a table within the one around it: half a million parts in a
// config file of the allowed size overflowed the stack.
TEST(LargeInput, ConfigFilesOfDeepNamesAreRefused) {
  const MemoryFile file;
  int64_t steps = 0;
  std::vector<int64_t> devices;
  options::Options options;
  options.option(steps, "steps", "run", "a number");
  options.option(devices, "devices", "run", "a list");
  const auto accepts_file = [&](const std::string& text) {
    file.write(text);
    return accepts_in_time([&] { options.parse({"--config", file.path()}); });
  };
  constexpr size_t kRoom = kBytes - 100;
  EXPECT_FALSE(accepts_file("a" + repeated(".a", kRoom) + " = 1\n"));
  EXPECT_FALSE(accepts_file("[a" + repeated(".a", kRoom) + "]\n"));
  EXPECT_FALSE(accepts_file("\"a\"" + repeated(" . \"a\"", kRoom) + " = 1\n"));
  EXPECT_FALSE(accepts_file("devices = " + repeated("[", kRoom) + "\n"));
  EXPECT_FALSE(accepts_file("steps = " + repeated("{a=", kRoom) + "\n"));
  EXPECT_FALSE(accepts_file(repeated("n", kRoom) + " = 1\n"));  // compared with every option's name for a typo
  EXPECT_TRUE(accepts_file("devices = [" + repeated("1,", kRoom) + "]\n"));
}

// A grader can write to the worker's line what it likes. Replies were parsed without a limit of depth and then copied,
// which takes a stack frame a level.
TEST(LargeInput, RepliesOfGreatDepthAreNonsense) {
  const auto reply = [](const std::string& result) {
    const std::string body = R"({"id":1,"result":)" + result + "}";
    const auto length = static_cast<uint32_t>(body.size());
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + body;
  };
  EXPECT_THROW(worker::result_of(reply(repeated("[", kBytes / 2) + repeated("]", kBytes / 2)), 1), worker::BadReply);
  EXPECT_EQ(worker::result_of(reply("[" + repeated("1,", kBytes / 2) + "1]"), 1).size(), kBytes / 4 + 1);
}

TEST(LargeInput, SafetensorsHeadersAreReadInTimeOfTheirLength) {
  std::string tensors;
  for (int i = 0; i < 15000; ++i) {
    tensors += (i == 0 ? "\"t" : ",\"t") + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  const auto accepts_header = [](const std::string& json) {
    return accepts_in_time([&] { weights::parse_safetensors_header(json, 0, "header"); });
  };
  EXPECT_TRUE(accepts_header("{" + tensors + "}"));
  EXPECT_TRUE(accepts_header("{\"__metadata__\":{" + members(60000, "\"\"") + "}}"));
  EXPECT_FALSE(accepts_header("{" + repeated("\"a\":{")));
}

}  // namespace
}  // namespace tandem::fuzz
