// Ids, texts and rendered conversations equal those of the published libraries. Another set of cases in the same
// format: text_golden_test --golden DIR.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "tandem/error.h"
#include "tests/golden/golden.h"
#include "text/text_worker.h"

namespace tandem::text {
namespace {

std::vector<base::Json> read_cases(const std::string& path) {
  std::ifstream file(path);
  std::vector<base::Json> cases;
  for (std::string line; std::getline(file, line);) cases.push_back(base::parse_json(line, path));
  EXPECT_FALSE(cases.empty()) << path;
  return cases;
}

class Golden : public testing::TestWithParam<const char*> {
 protected:
  std::string directory() const { return golden::directory() + "/" + GetParam(); }
  std::vector<base::Json> cases(const std::string& name) const { return read_cases(directory() + "/" + name); }
};

TEST_P(Golden, EncodesAndDecodesAsPublished) {
  TextWorker worker(worker::default_worker_config(), directory());
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> ids;
  const auto tokenizer_cases = cases("tokenizer_cases.jsonl");
  for (const base::Json& expected : tokenizer_cases) {
    texts.push_back(expected["text"]);
    ids.push_back(expected["ids"]);
  }
  EXPECT_EQ(worker.encode(texts), ids);
  const std::vector<std::string> decoded = worker.decode(ids, /*skip_special_tokens=*/false);
  const std::vector<std::string> skipped = worker.decode(ids, /*skip_special_tokens=*/true);
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(base::Json(decoded[i]), tokenizer_cases[i]["decoded"]) << texts[i];
    EXPECT_EQ(base::Json(skipped[i]), tokenizer_cases[i]["decoded_skip_special"]) << texts[i];
  }
}

TEST_P(Golden, DecodesAnyIdsAsPublished) {
  TextWorker worker(worker::default_worker_config(), directory());
  for (const base::Json& expected : cases("decode_cases.jsonl")) {
    const std::vector<std::vector<int32_t>> ids = {expected["ids"]};
    EXPECT_EQ(base::Json(worker.decode(ids, false)[0]), expected["decoded"]) << expected["ids"];
    EXPECT_EQ(base::Json(worker.decode(ids, true)[0]), expected["decoded_skip_special"]) << expected["ids"];
  }
}

TEST_P(Golden, RendersConversationsAsPublished) {
  TextWorker worker(worker::default_worker_config(), directory());
  ASSERT_TRUE(worker.has_chat_template());
  for (const base::Json& expected : cases("chat_cases.jsonl")) {
    if (expected.contains("error")) {
      try {
        worker.apply_chat_template({expected["messages"]}, expected["kwargs"]);
        FAIL() << expected["name"] << " should be refused";
      } catch (const UserError& error) {
        EXPECT_NE(std::string(error.what()).find(expected["error"]), std::string::npos) << error.what();
      }
      continue;
    }
    const std::string rendered = worker.apply_chat_template({expected["messages"]}, expected["kwargs"])[0];
    EXPECT_EQ(base::Json(rendered), expected["rendered"]) << expected["name"];
    EXPECT_EQ(base::Json(worker.encode({rendered})[0]), expected["ids"]) << expected["name"];
  }
  EXPECT_EQ(worker.restarts(), 0);  // a refusal costs no process
}

// tests/golden/tokenizer_bos/make.py: a tokenizer in the style of Llama 3's.
TEST(TextPrefix, IsWhatThePublishedLibraryWritesBeforeTexts) {
  const std::string directory = std::string(golden::kDefaultDirectory) + "/tokenizer_bos";
  TextWorker worker(worker::default_worker_config(), directory);
  EXPECT_EQ(worker.text_prefix(), (std::vector<int32_t>{484}));
  EXPECT_TRUE(worker.is_special(484));
  for (const base::Json& published : read_cases(directory + "/text_cases.jsonl")) {
    std::vector<int32_t> ids = worker.text_prefix();
    const std::vector<int32_t> text = worker.encode({published["text"].get<std::string>()}).front();
    ids.insert(ids.end(), text.begin(), text.end());
    EXPECT_EQ(base::Json(ids), published["ids"]) << published["text"];
  }
  EXPECT_TRUE(TextWorker(worker::default_worker_config(), std::string(golden::kDefaultDirectory) + "/tokenizer_small")
                  .text_prefix()
                  .empty());
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Golden, testing::Values("tokenizer", "tokenizer_small"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tandem::text
