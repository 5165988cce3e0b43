// A list of fields says what is written and what is read; what is no such list is refused.
#include "base/wire_fields.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace tandem::base {
namespace {

enum class Colour : uint8_t { kRed, kGreen };

struct Inner {
  int32_t number = 0;
  std::string text;
  static void fields(auto& wire, auto& m) { wire(m.number, m.text); }
  bool operator==(const Inner&) const = default;
};

struct Everything {
  bool flag = false;
  double real = 0.0;
  Json json;
  std::optional<Inner> maybe;
  std::vector<float> numbers;
  std::vector<Inner> inners;
  std::vector<std::string> texts;
  std::set<std::string> names;
  std::map<std::string, Inner> by_name;
  Colour colour = Colour::kRed;

  static void fields(auto& wire, auto& m) {
    wire(m.flag, m.real, m.json, m.maybe, m.numbers, m.inners, m.texts, m.names, m.by_name);
    wire.choice(m.colour, 2);
  }
};

constexpr uint32_t kFormat = 7;

Everything everything() {
  return {.flag = true,
          .real = -0.0,
          .json = {{"a", {1, "two", nullptr}}},
          .maybe = Inner{.number = -1, .text = "one"},
          .numbers = {1.5F, -2.5F},
          .inners = {{.number = 2, .text = ""}, {.number = 3, .text = std::string("\0x", 2)}},
          .texts = {"", "text"},
          .names = {"a", "b"},
          .by_name = {{"a", {.number = 4, .text = "four"}}},
          .colour = Colour::kGreen};
}

TEST(WireFields, ComeBackAsTheyWere) {
  const Everything sent = everything();
  const auto read = unpacked<Everything>(packed(sent, kFormat), kFormat);
  EXPECT_TRUE(read.flag);
  EXPECT_TRUE(std::signbit(read.real));
  EXPECT_EQ(read.json, sent.json);
  EXPECT_EQ(read.maybe, sent.maybe);
  EXPECT_EQ(read.numbers, sent.numbers);
  EXPECT_EQ(read.inners, sent.inners);
  EXPECT_EQ(read.texts, sent.texts);
  EXPECT_EQ(read.names, sent.names);
  EXPECT_EQ(read.by_name, sent.by_name);
  EXPECT_EQ(read.colour, Colour::kGreen);
}

struct OneJson {
  Json value;
  static void fields(auto& wire, auto& m) { wire(m.value); }
};

// JSON text has no infinity, and forgets whether a number was signed.
TEST(WireFields, JsonKeepsItsTypeAndItsBits) {
  for (const Json& value :
       {Json(nullptr), Json(true), Json(int64_t{-5}), Json(int64_t{5}), Json(uint64_t{5}), Json(UINT64_MAX), Json(1.0),
        Json(std::numeric_limits<double>::infinity()), Json("\xff is no UTF-8"), Json::array({1, 2}), Json::object()}) {
    const Json read = unpacked<OneJson>(packed(OneJson{value}, kFormat), kFormat).value;
    EXPECT_EQ(read.type(), value.type());
    EXPECT_EQ(read, value);
  }
  const double nan = std::nan("7");
  const double read = unpacked<OneJson>(packed(OneJson{nan}, kFormat), kFormat).value.get<double>();
  EXPECT_EQ(std::memcmp(&read, &nan, sizeof nan), 0);
}

TEST(WireFields, AVariantIsItsAlternative) {
  using Either = std::variant<Inner, OneJson>;
  const OneOf<Either> sent{OneJson{"text"}};
  EXPECT_EQ(std::get<OneJson>(unpacked<OneOf<Either>>(packed(sent, kFormat), kFormat).value).value, "text");
  std::string payload(unsealed(packed(sent, kFormat), kFormat));
  payload[0] = 2;
  EXPECT_THROW(unpacked<OneOf<Either>>(sealed(payload, kFormat), kFormat), EnvironmentError);
}

TEST(WireFields, RefuseAnotherPayload) {
  const std::string bytes = packed(everything(), kFormat);
  EXPECT_THROW(unpacked<Everything>(bytes, kFormat + 1), EnvironmentError);
  const std::string payload(unsealed(bytes, kFormat));
  const auto reads = [](const std::string& changed) {
    try {
      unpacked<Everything>(sealed(changed, kFormat), kFormat);
      return true;
    } catch (const EnvironmentError&) {
      return false;
    }
  };
  EXPECT_TRUE(reads(payload));
  for (size_t size = 0; size < payload.size(); ++size) EXPECT_FALSE(reads(payload.substr(0, size))) << size;
  EXPECT_FALSE(reads(payload + '\0'));
  std::string changed = payload;
  changed.back() = 2;
  EXPECT_FALSE(reads(changed)) << "a choice that there is not";
  changed = payload;
  changed.front() = 2;
  EXPECT_FALSE(reads(changed)) << "neither true nor false";
}

struct List {
  std::vector<std::string> names;
  static void fields(auto& wire, auto& m) { wire(m.names); }
};
struct Set {
  std::set<std::string> names;
  static void fields(auto& wire, auto& m) { wire(m.names); }
};

TEST(WireFields, ANameTwiceIsRefused) {
  EXPECT_EQ(unpacked<Set>(packed(List{{"a", "b"}}, kFormat), kFormat).names.size(), 2U);
  EXPECT_THROW(unpacked<Set>(packed(List{{"a", "a"}}, kFormat), kFormat), EnvironmentError);
}

}  // namespace
}  // namespace tandem::base
