// Prompt files, good and bad, are read or refused, and records come in their order.
#include "data/prompts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "base/files.h"
#include "data/prompt_order.h"
#include "tandem/error.h"
#include "tests/base/thrown.h"
#include "tests/data/data_file.h"
#include "tests/golden/golden.h"

namespace tandem::data {
namespace {

std::string error_of(const PromptOptions& options) {
  return base::thrown_by([&] { read_prompts(options); }, "accepted");
}

std::string error_of_text(const std::string& text) {
  const DataFile file(text);
  const std::string error = error_of({.path = file.path()});
  return error.starts_with(file.path()) ? error.substr(file.path().size()) : error;
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\nexpected: " << part;
}

TEST(Prompts, ReadTheGoldenFile) {
  const PromptData data = read_prompts({.path = golden::directory() + "/prompts/math_small.jsonl"});
  ASSERT_EQ(data.records.size(), 64U);
  EXPECT_EQ(data.records[0].prompt[0]["role"], "user");
  EXPECT_EQ(data.records[0].label, "118");
  EXPECT_EQ(data.records[63].line, 64);
  EXPECT_TRUE(data.records[0].tools.is_null());
  EXPECT_EQ(data.bad_lines.count, 0);
}

// tests/golden/prompts/bad_lines.json names the mistake of each line; "edge" lines are decided here.
TEST(Prompts, AnswerEveryBadLineWithItsPlaceAndRemedy) {
  const std::string path = golden::directory() + "/prompts/bad_lines.jsonl";
  const std::string text = base::read_file(path);
  const base::Json table = base::read_json_file(golden::directory() + "/prompts/bad_lines.json");
  const std::map<int64_t, std::string> refused = {{2, ":1:"},
                                                  {3, ":1:1: the line is a JSON array"},
                                                  {4, ":1:1: the key prompt is missing"},
                                                  {5, ":1:2: the message list is empty"},
                                                  {6, ":1:2: message 1 has no text"},
                                                  {7, ":1:"},
                                                  {8, ":1:"},
                                                  {12, "appears twice"}};
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (refused.contains(number)) {
      expect_contains(error_of_text(line + "\n"), refused.at(number));
    } else if (number == 1) {
      expect_contains(error_of_text(line + "\n"), "no record to work on: 1 blank and 0 bad lines");
    } else {
      EXPECT_EQ(error_of_text(line + "\n"), "accepted") << "line " << number;
    }
  }
  EXPECT_EQ(number, 12);
  EXPECT_EQ(table.size(), 12U);
}

TEST(Prompts, CountBadLinesWhenAsked) {
  const std::string path = golden::directory() + "/prompts/bad_lines.jsonl";
  expect_contains(error_of({.path = path}), path + ":2:");
  expect_contains(error_of({.path = path}), "--skip-bad-lines");
  const PromptData data = read_prompts({.path = path, .skip_bad_lines = true});
  EXPECT_EQ(data.num_blank_lines, 1);
  EXPECT_EQ(data.bad_lines.count, 8);
  EXPECT_EQ(data.bad_lines.messages.size(), 8U);
  ASSERT_EQ(data.records.size(), 3U);
  EXPECT_TRUE(data.records[0].prompt.is_string());
  EXPECT_EQ(data.records[1].label, base::Json(208));
  EXPECT_EQ(data.records[2].label, "8");
  EXPECT_EQ(data.records[2].line, 11);
}

TEST(Prompts, SliceRowsAsPythonDoes) {
  std::string text;
  for (int i = 0; i < 5; ++i) text += "{\"prompt\": \"p" + std::to_string(i) + "\"}\n\n";
  const DataFile file(text);
  const std::map<std::string, std::vector<std::string>> cases = {{"", {"p0", "p1", "p2", "p3", "p4"}},
                                                                 {"@[1:3]", {"p1", "p2"}},
                                                                 {"@[:2]", {"p0", "p1"}},
                                                                 {"@[3:]", {"p3", "p4"}},
                                                                 {"@[-2:]", {"p3", "p4"}},
                                                                 {"@[:-4]", {"p0"}},
                                                                 {"@[:]", {"p0", "p1", "p2", "p3", "p4"}},
                                                                 {"@[2:100]", {"p2", "p3", "p4"}}};
  for (const auto& [slice, expected] : cases) {
    std::vector<std::string> prompts;
    for (const PromptRecord& record : read_prompts({.path = file.path() + slice}).records)
      prompts.push_back(record.prompt);
    EXPECT_EQ(prompts, expected) << slice;
  }
  expect_contains(error_of({.path = file.path() + "@[4:2]"}), "no record to work on");
  expect_contains(error_of({.path = file.path() + "@[1]"}), "not a slice");
  expect_contains(error_of({.path = file.path() + "@[1:2"}), "not a slice");
  expect_contains(error_of({.path = file.path() + "@[-:2]"}), "- is no row number");
  expect_contains(error_of({.path = file.path() + "@[99999999999999999999:]"}), "is no row number");
}

TEST(Prompts, KeepLabelsMetadataAndToolsOfAnyShape) {
  const DataFile file(
      "{\"q\": \"a\", \"answer\": 1.5, \"level\": 3, \"metadata\": {\"source\": \"x\", \"level\": 4}, \"tools\": "
      "[{}]}\n"
      "{\"q\": \"b\", \"answer\": null}\n"
      "{\"q\": \"c\", \"answer\": [1, \"two\"]}\n"
      "{\"q\": \"d\", \"answer\": true, \"metadata\": null}\n");
  const PromptData data = read_prompts({.path = file.path(), .input_key = "q", .label_key = "answer"});
  ASSERT_EQ(data.records.size(), 4U);
  EXPECT_EQ(data.records[0].label, base::Json(1.5));
  EXPECT_EQ(base::dump_json(data.records[0].metadata),
            R"({"level":4,"metadata":{"source":"x","level":4},"source":"x"})");
  EXPECT_EQ(data.records[0].tools.size(), 1U);
  EXPECT_TRUE(data.records[1].label.is_null());
  EXPECT_TRUE(data.records[1].metadata.is_object());
  EXPECT_EQ(data.records[2].label, base::Json::parse(R"([1, "two"])"));
  EXPECT_EQ(data.records[3].label, base::Json(true));
}

// A column of floats holds 40 as 40.0, which no completion says.
TEST(Prompts, AWholeLabelIsWrittenWithoutAFraction) {
  EXPECT_EQ(label_text(base::Json(40.0)), "40");
  EXPECT_EQ(label_text(base::Json(-3.0)), "-3");
  EXPECT_EQ(label_text(base::Json(-0.0)), "0");
  EXPECT_EQ(label_text(base::Json(9007199254740992.0)), "9007199254740992");
  EXPECT_EQ(label_text(base::Json(1.5)), "1.5");
  EXPECT_EQ(label_text(base::Json(1e20)), base::dump_json(base::Json(1e20)));
  EXPECT_EQ(label_text(base::Json(40)), "40");
}

TEST(Prompts, AWholeNumberOfMoreThan64BitsIsRefused) {
  expect_contains(error_of_text("{\"prompt\": \"a\", \"label\": 36893488147419103233}"),
                  ":1:26: a whole number of more than 64 bits; write it as text");
}

TEST(Prompts, NameTheColumnOfTheWrongKey) {
  expect_contains(error_of_text("{\"label\": \"é\", \"prompt\": 7}"), ":1:16: prompt is a number");
  expect_contains(error_of_text("\n{\"prompt\": \"\"}"), ":2:2: prompt is empty");
  expect_contains(error_of_text("{\"prompt\": \"a\", \"tools\": 1}"), ":1:17: tools is a number");
  expect_contains(error_of_text("{\"prompt\": \"a\", \"metadata\": []}"), ":1:17: metadata is an array");
  expect_contains(error_of_text("{\"prompt\": [1]}"), ":1:2: message 1 is no object");
  expect_contains(error_of_text("{\"prompt\": [{\"content\": \"a\"}]}"), "message 1 has no role");
  expect_contains(error_of_text("{\"prompt\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}"),
                  "only text");
  EXPECT_EQ(error_of_text("{\"prompt\": [{\"role\": \"assistant\", \"content\": null, \"tool_calls\": []}]}"),
            "accepted");
}

TEST(Prompts, JoinContentPartsToText) {
  const DataFile file(
      "{\"prompt\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"1 + \"}, "
      "{\"type\": \"text\", \"text\": \"1?\"}]}]}\n");
  EXPECT_EQ(read_prompts({.path = file.path()}).records[0].prompt[0]["content"], "1 + 1?");
  const auto with_part = [](const std::string& part) {
    return error_of_text("{\"prompt\": [{\"role\": \"user\", \"content\": [" + part + "]}]}");
  };
  expect_contains(with_part("{\"type\": \"image_url\", \"image_url\": {}}"),
                  ":1:2: message 1 has a content part of type image_url - only text is supported");
  expect_contains(with_part("\"text\""), "message 1 has a content part without a type");
  expect_contains(with_part("{\"type\": \"text\"}"), "message 1 has a content part without text");
}

TEST(Prompts, FilesOfAnotherFormAreNamedAsAWhole) {
  const std::string object = R"({"prompt": "a", "label": "b"})";
  for (const std::string& list : {"[\n" + object + ",\n" + object + "\n]\n", " [ " + object + "\n]"}) {
    expect_contains(error_of_text(list), ": is one JSON list; JSON lines are read");
  }
  expect_contains(error_of_text("[" + object + "]\n" + object + "\n"), ":1:1: the line is a JSON array");
  expect_contains(error_of_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n"),
                  ": is a Git LFS pointer and not the data; get the file with git lfs pull");
  for (const auto& [magic, name] :
       {std::pair{"\x1F\x8B", "gzip"}, {"\x28\xB5\x2F\xFD", "zstd"}, {"PK\x03\x04", "zip"}}) {
    expect_contains(error_of_text(magic + std::string("...")), std::string(": is compressed (") + name + ")");
  }
}

TEST(Prompts, RefuseAnEmptyOrMissingFile) {
  expect_contains(error_of_text(""), "no record to work on");
  expect_contains(error_of_text("\n \t\n"), "2 blank");
  expect_contains(error_of({.path = "no/such/file.jsonl"}), "no/such/file.jsonl");
}

TEST(Prompts, ListTheKeysThatAreThere) {
  const auto says = [](const std::string& line, const std::string& needed_by = "") {
    const DataFile file(line);
    return error_of({.path = file.path(), .label_needed_by = needed_by});
  };
  expect_contains(says(R"({"question": "q", "answer": "a"})"),
                  ":1:1: the key prompt is missing: there are question, answer - add it, or name the prompt's key with "
                  "--input-key question --label-key answer");
  expect_contains(says(R"({"x": 1})"), "there is x - add it, or name the prompt's key with --input-key (--skip");
  expect_contains(says("{}"), "there are none");
  expect_contains(
      says(R"({"prompt": "q", "reward_model": {"ground_truth": "4"}})", "--rm-type math"),
      "the key label is missing: there are prompt, reward_model, and --rm-type math compares completions with "
      "the label - give the line one, or name its key with --label-key reward_model.ground_truth");
  std::string many = "{";
  for (int i = 0; i < 100; ++i) many += "\"key" + std::to_string(i) + "\": 1, ";
  expect_contains(says(many + "\"z\": 1}"), "key11 and 89 more");
}

TEST(Prompts, ANameOfTheHubIsAnsweredWithItsDownload) {
  expect_contains(error_of({.path = "openai/gsm8k"}),
                  "openai/gsm8k: no such file; it reads like a data set of the Hugging Face Hub, and Tandem downloads "
                  "nothing: run `hf download openai/gsm8k --repo-type dataset --local-dir gsm8k`");
  for (const char* path : {"data/train.jsonl", "/openai/gsm8k", "./gsm8k", "a/b/c", "gsm8k", "tests/nothing"}) {
    EXPECT_EQ(error_of({.path = path}).find("Hub"), std::string::npos) << path;
  }
}

TEST(Prompts, AKeyWithDotsIsAPathThroughObjectsAndLists) {
  const base::Json line = base::parse_json(R"({"a": {"b": [{"c": 1}, [2, 3]]}, "a.b": {"0": 4}, "x": {"b.c": 5}})", "");
  const auto found = [&](const char* key) {
    const base::Json* const value = find_value(line, key);
    return value == nullptr ? std::string("none") : value->dump();
  };
  EXPECT_EQ(found("a.b"), R"({"0":4})") << "a member of that very name comes first";
  EXPECT_EQ(found("a.b.0.c"), "1");
  EXPECT_EQ(found("a.b.1.1"), "3");
  EXPECT_EQ(found("x.b.c"), "5");
  for (const char* key : {"a.b.2", "a.b.-1", "a.b.1.", "a.b.x", "a.b.0x", "a.b.1.1.0", "0", ""})
    EXPECT_EQ(found(key), "none");
}

// Makes a table of one row whose second column is no text; `keys` are the keys whose values had to have a form in JSON.
TEST(Prompts, AValueThatNobodyReadsIsLeftOutAndCounted) {
  const DataFile file("PAR1");
  std::vector<std::string> keys;
  const auto open = [&keys](const std::string&, const std::vector<std::string>& asked) {
    keys = asked;
    return Table{.num_rows = 2, .read = [](int64_t, int64_t) -> std::vector<TableRow> {
                   return {{R"({"prompt": "a", "img": null})", "", "column 'img' is no UTF-8 text"},
                           {R"({"prompt": "b", "img": "c"})", ""}};
                 }};
  };
  const PromptData data = read_prompts({.path = file.path(), .label_key = "a.b"}, open);
  EXPECT_EQ(keys, (std::vector<std::string>{"prompt", "a.b", "metadata", "tools"}));
  EXPECT_EQ(data.records.size(), 2U);
  EXPECT_EQ(data.num_rows_without_value, 1);
  EXPECT_EQ(data.first_without_value, file.path() + ":1: column 'img' is no UTF-8 text");
}

TEST(Prompts, AnEmptyTableIsNotToldToAddJson) {
  const DataFile file("PAR1");
  const auto open = [](const std::string&, const std::vector<std::string>&) {
    return Table{.num_rows = 0, .read = {}};
  };
  try {
    read_prompts({.path = file.path()}, open);
    FAIL();
  } catch (const UserError& error) {
    expect_contains(error.what(), "no record to work on: 0 blank and 0 bad lines - add rows");
  }
}

TEST(PromptOrder, GoesThroughTheFileInOrder) {
  PromptOrder order(3, /*shuffle=*/false, 1);
  std::vector<int64_t> seen;
  for (int i = 0; i < 7; ++i) seen.push_back(order.next());
  EXPECT_EQ(seen, (std::vector<int64_t>{0, 1, 2, 0, 1, 2, 0}));
  EXPECT_EQ(order.cursor(), (PromptCursor{.epoch = 2, .offset = 1}));
}

TEST(PromptOrder, ShuffledEpochsArePermutationsThatDiffer) {
  std::vector<int64_t> sorted(100);
  std::iota(sorted.begin(), sorted.end(), 0);
  std::vector<std::vector<int64_t>> orders;
  for (const uint64_t seed : {1, 2}) {
    for (int64_t epoch = 0; epoch < 3; ++epoch) orders.push_back(shuffled_indices(100, seed, epoch));
  }
  for (size_t i = 0; i < orders.size(); ++i) {
    EXPECT_TRUE(std::is_permutation(orders[i].begin(), orders[i].end(), sorted.begin(), sorted.end()));
    EXPECT_NE(orders[i], sorted);
    for (size_t j = 0; j < i; ++j) EXPECT_NE(orders[i], orders[j]);
  }
}

TEST(PromptOrder, EveryPlaceIsEquallyLikely) {
  std::vector<int64_t> counts(5 * 5, 0);
  for (int64_t epoch = 0; epoch < 5000; ++epoch) {
    const std::vector<int64_t> order = shuffled_indices(5, 7, epoch);
    for (size_t i = 0; i < 5; ++i) ++counts[i * 5 + static_cast<size_t>(order[i])];
  }
  // The expected count is 1000, its standard deviation 28: the bound is five of them.
  for (const int64_t count : counts) EXPECT_NEAR(static_cast<double>(count), 1000.0, 142.0);
}

// A run that is resumed goes on in the order in which it began, so no version may shuffle otherwise. The numbers were
// computed apart from this code: a Fisher-Yates shuffle whose draw for place i is Philox4x32-10 of the key 42 and the
// counter (2^63 + epoch, i).
TEST(PromptOrder, OneFileHasTheOrderThatItAlwaysHad) {
  PromptOrder order({5, 7}, {}, /*shuffle=*/true, 42), one(12, /*shuffle=*/true, 42);
  for (const int64_t expected : {1, 5, 4, 0, 3,  7, 10, 6,  9, 2, 8, 11,    // epoch 0
                                 9, 6, 4, 7, 11, 0, 2,  10, 1, 8, 5, 3}) {  // epoch 1
    EXPECT_EQ(order.next(), expected) << "files without weights are one data set";
    EXPECT_EQ(one.next(), expected);
  }
}

TEST(PromptOrder, DrawsFilesByWeightAndTakesEachInItsOwnEpochs) {
  constexpr int64_t kDraws = 10000;
  for (const bool shuffle : {false, true}) {
    PromptOrder order({10, 100, 7}, {7, 2, 1}, shuffle, 3);
    std::array<std::vector<int64_t>, 3> taken;
    for (int64_t i = 0; i < kDraws; ++i) {
      EXPECT_EQ(order.num_taken(), i);
      const int64_t record = order.next();
      taken[record < 10 ? 0 : record < 110 ? 1 : 2].push_back(record);
    }
    // The expected counts are 7000, 2000 and 1000, their standard deviation is at most 46: the bound is five of them.
    EXPECT_NEAR(static_cast<double>(taken[0].size()), 7000.0, 230.0);
    EXPECT_NEAR(static_cast<double>(taken[1].size()), 2000.0, 230.0);
    const std::array<int64_t, 3> begins = {0, 10, 110}, sizes = {10, 100, 7};
    for (size_t f = 0; f < 3; ++f) {
      bool differs = false;
      for (size_t epoch = 0; (epoch + 1) * static_cast<size_t>(sizes[f]) <= taken[f].size(); ++epoch) {
        const auto begin = taken[f].begin() + static_cast<std::ptrdiff_t>(epoch) * sizes[f];
        std::vector<int64_t> records(begin, begin + sizes[f]), sorted(static_cast<size_t>(sizes[f]));
        std::iota(sorted.begin(), sorted.end(), begins[f]);
        differs = differs || records != sorted;
        std::ranges::sort(records);
        ASSERT_EQ(records, sorted) << "each record once an epoch: file " << f << ", epoch " << epoch;
      }
      EXPECT_EQ(differs, shuffle);
    }
  }
}

TEST(PromptOrder, WithWeightsContinuesFromASavedCursorForwardAndBack) {
  PromptOrder whole({3, 50, 4}, {1, 1, 0.5}, true, 9), resumed({3, 50, 4}, {1, 1, 0.5}, true, 9);
  std::vector<int64_t> records;
  std::vector<PromptCursor> cursors;
  for (int i = 0; i < 400; ++i) {
    cursors.push_back(whole.cursor());
    records.push_back(whole.next());
  }
  for (const size_t from : {397U, 0U, 60U, 59U, 200U, 3U, 399U}) {
    resumed.set_cursor(cursors[from]);
    for (size_t i = from; i < records.size(); ++i) ASSERT_EQ(resumed.next(), records[i]) << from << " " << i;
  }
}

TEST(PromptOrder, ContinuesFromASavedCursor) {
  PromptOrder whole(10, true, 3), resumed(10, true, 3);
  for (int i = 0; i < 14; ++i) whole.next();
  resumed.set_cursor(whole.cursor());
  for (int i = 0; i < 30; ++i) EXPECT_EQ(whole.next(), resumed.next());
}

}  // namespace
}  // namespace tandem::data
