// Strict JSON: malformed text is refused, messages point at the place, and kept values are kept exactly.
#include "base/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>

#include "base/data_json.h"
#include "base/files.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"
#include "tests/base/thrown.h"

namespace tandem::base {
namespace {

std::string refusal(std::string_view text, int64_t first_line = 1, int max_depth = 128) {
  return base::thrown_by([&] { parse_json(text, "f", first_line, max_depth); }, "accepted");
}

#define EXPECT_REFUSED(text, begin) EXPECT_TRUE(refusal(text).starts_with(begin)) << refusal(text)

TEST(Json, ReadsEveryKindOfValue) {
  const Json value =
      parse_json(R"( {"a": [1, -2, 3.5, true, false, null, "x\u00e9\ud83d\ude00"], "b": {}, "c": []} )", "f");
  EXPECT_EQ(value["a"][0], 1);
  EXPECT_EQ(value["a"][1], -2);
  EXPECT_EQ(value["a"][2], 3.5);
  EXPECT_EQ(value["a"][6].get<std::string>(), "x\xC3\xA9\xF0\x9F\x98\x80");
  EXPECT_TRUE(value["b"].is_object());
  EXPECT_TRUE(value["c"].is_array());
  EXPECT_EQ(value.size(), 3U);
  EXPECT_EQ(parse_json("7", "f"), 7);
}

TEST(Json, KeepsTheOrderOfKeys) {
  EXPECT_EQ(dump_json(parse_json(R"({"z":1,"a":{"y":2,"b":3},"m":[]})", "f")), R"({"z":1,"a":{"y":2,"b":3},"m":[]})");
}

TEST(Json, RefusesAKeyTwiceAndPointsAtIt) {
  EXPECT_REFUSED("{\"a\": 1,\n \"b\": 2, \"a\": 3}", "f:2:10: the key \"a\" appears twice");
  EXPECT_REFUSED(R"({"a\\": 1, "a\u005c": 2})", "f:1:12: the key");
  EXPECT_EQ(refusal(R"([{"a": 1}, {"a": 2}, {"b": {"a": 1}, "a": 2}])"), "accepted");
}

TEST(Json, RefusesMalformedTextWithItsPlace) {
  EXPECT_REFUSED("", "f:1:1: ");
  EXPECT_REFUSED("{\"a\": 1,\n\"b\" 2}", "f:2:5: ");
  EXPECT_REFUSED("{\"a\": 1", "f:1:8: ");
  EXPECT_REFUSED("{} {}", "f:1:4: ");
  EXPECT_REFUSED("[1,]", "f:1:4: ");
  EXPECT_REFUSED("[01]", "f:1:3: ");
  EXPECT_REFUSED("nan", "f:1:1: ");
  EXPECT_REFUSED("// comment\n1", "f:1:1: ");
  EXPECT_REFUSED("\"tab\there\"", "f:1:5: ");
}

TEST(Json, CountsCharactersNotBytes) { EXPECT_REFUSED("\"\xC3\xA9\xC3\xA9\" x", "f:1:6: "); }

TEST(Json, RefusesTextThatIsNoUnicode) {
  EXPECT_REFUSED("\"a\xE9\"", "f:1:");
  EXPECT_REFUSED("\"\xED\xA0\x80\"", "f:1:");  // surrogate in UTF-8
  EXPECT_REFUSED("\"\xC0\x80\"", "f:1:");      // overlong NUL
  EXPECT_REFUSED(R"("\ud83d")", "f:1:");       // high surrogate alone
  EXPECT_REFUSED(R"("\ude00")", "f:1:");       // low surrogate alone
  EXPECT_REFUSED(R"("\ud83d\u0041")", "f:1:");
}

TEST(Json, RefusesANulByteInsteadOfStoppingThere) {
  using namespace std::string_view_literals;
  EXPECT_REFUSED("{}\0garbage"sv, "f:1:3: a NUL byte");
}

TEST(Json, RefusesNumbersThatOverflow) {
  EXPECT_REFUSED("[1e999]", "f:1:");
  EXPECT_NE(refusal("[1e999]").find("number overflow"), std::string::npos);
  EXPECT_EQ(parse_json("18446744073709551615", "f").get<uint64_t>(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(parse_json("1000000000000000019884624838656", "f").get<double>(), 1e30);
}

TEST(Json, IntegersBeyond64BitsAreRefusedWhereTheyMeanThemselves) {
  const auto read = [](const std::string& text) { return parse_data_json(text, "f"); };
  EXPECT_EQ(read("[18446744073709551615]")[0], 18446744073709551615U);
  EXPECT_EQ(read("[-9223372036854775808]")[0], std::numeric_limits<int64_t>::min());
  EXPECT_EQ(read("[1e30, 36893488147419103232.0]")[0], 1e30);
  for (const char* const text : {"[18446744073709551616]", "[-9223372036854775809 ]", "[1000000000000000000000000]"}) {
    try {
      read(text);
      FAIL() << "accepted: " << text;
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what()), "f:1:2: a whole number of more than 64 bits; write it as text") << text;
    }
    EXPECT_TRUE(parse_json(text, "f")[0].is_number_float());
  }
}

TEST(Json, NumbersThatJsonDoesNotHaveAreNamed) {
  for (const std::string word : {"NaN", "nan", "Infinity", "-Infinity", "inf", "-inf"}) {
    EXPECT_EQ(refusal("{\"a\": " + word + "}"), "f:1:7: " + word + " is no JSON: write null, or leave the key out");
  }
}

TEST(Json, RefusesDeepNestingAndSurvivesIt) {
  EXPECT_EQ(refusal("[[[1]]]", 1, 3), "accepted");
  EXPECT_EQ(refusal("[[[[1]]]]", 1, 3), "f:1:4: nested deeper than 3 levels; flatten it");
  EXPECT_REFUSED(std::string(1 << 20, '['), "f:1:129: nested deeper than 128 levels");
}

TEST(Json, CountsLinesFromTheOneGiven) { EXPECT_TRUE(refusal("{", 17).starts_with("f:17:2: ")) << refusal("{", 17); }

TEST(Json, ReadsAnObjectOfManyKeysInLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 50000; ++i) text += (i > 0 ? ",\"k" : "\"k") + std::to_string(i) + "\":" + std::to_string(i);
  EXPECT_EQ(parse_json(text + "}", "f").size(), 50000U);  // comparing pairs of keys would take 10^9 steps
}

TEST(Json, DumpsWhatReadsBack) {
  const std::string text =
      R"({"s":"\"\\\n\u0001é","i":-5,"u":18446744073709551615,"d":0.1,"e":1e-300,"n":null,"l":[[],{},true]})";
  EXPECT_EQ(dump_json(parse_json(text, "f")), text);
  std::mt19937_64 random(5);
  std::printf("seed 5\n");
  for (int i = 0; i < 1000; ++i) {
    const uint64_t bits = random();
    double number = 0;
    std::memcpy(&number, &bits, sizeof number);
    if (!std::isfinite(number)) continue;
    ASSERT_EQ(parse_json(dump_json(Json(number)), "f").get<double>(), number);
  }
}

TEST(Json, DumpsWhatJsonCannotHold) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(dump_json(Json::array({inf, -inf, std::nan("")})), R"(["inf","-inf","nan"])");
  EXPECT_EQ(dump_json(Json("half \xE2\x82")), "\"half \xEF\xBF\xBD\"");
}

TEST(Json, NamesTheFileThatItReads) {
  const TemporaryDirectory directory;
  write_file_durably(directory / "x.json", "{\"a\":\n}");
  try {
    read_json_file(directory / "x.json");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with((directory / "x.json") + ":2:1: ")) << error.what();
  }
  EXPECT_THROW(read_json_file(directory / "x.json", 3), UserError);
  EXPECT_THROW(read_json_file(directory / "none.json"), UserError);
}

}  // namespace
}  // namespace tandem::base
