// Changes JSON as a tree, so that what comes out is mostly JSON still and reaches the code behind the parser: numbers
// become extreme, keys go, come twice or get another's name, values change their types or places, lists grow and
// nest. A target whose input is JSON, or has it on each line, gives its LLVMFuzzerCustomMutator to one of the functions
// at the end; one change in eight is libFuzzer's own, of bytes.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <random>
#include <utility>

#include "base/json.h"
#include "tests/fuzz/target.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace tandem::fuzz {

class JsonMutator {
 public:
  explicit JsonMutator(uint64_t seed) : state_(seed) {}

  // Returns the text with one to four changes; nothing if it is no JSON by base/json.h.
  std::optional<std::string> changed(std::string_view text) {
    base::Json root;
    try {
      root = base::parse_json(text, "input");
    } catch (const UserError&) {
      return std::nullopt;
    }
    for (size_t i = 1 + below(4); i > 0; --i) change(root);
    return with_raw_text(root.dump(-1, ' ', false, base::Json::error_handler_t::replace));
  }

  size_t below(size_t bound) {
    // splitmix64 (Steele, Lea, Flood 2014): a generator that costs nothing to begin.
    uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return (z ^ (z >> 31)) % bound;
  }

 private:
  using Json = base::Json;
  static constexpr size_t kMaxNodes = 20000;
  // A string that begins so stands for the text behind it, which JSON may not have: NaN, bytes that are no UTF-8.
  static constexpr std::string_view kRaw = "@raw:";

  static void collect(Json& node, std::vector<Json*>& nodes) {
    if (nodes.size() >= kMaxNodes) return;
    nodes.push_back(&node);
    if (!node.is_structured()) return;
    for (Json& child : node) collect(child, nodes);
  }

  static std::string with_raw_text(std::string text) {
    for (size_t at = 0; (at = text.find("\"@raw:", at)) != std::string::npos;) {
      const size_t end = text.find('"', at + 1);
      if (end == std::string::npos) break;
      const std::string word = text.substr(at + 1 + kRaw.size(), end - at - 1 - kRaw.size());
      const std::string raw = word == "not-utf8" ? "\"\xff\xc3\"" : word;
      text.replace(at, end + 1 - at, raw);
      at += raw.size();
    }
    return text;
  }

  Json number() {
    static const std::vector<Json> kNumbers = {0,
                                               1,
                                               -1,
                                               2,
                                               3,
                                               7,
                                               255,
                                               256,
                                               65536,
                                               2147483647,
                                               int64_t{2147483648},
                                               int64_t{-2147483648},
                                               int64_t{-2147483649},
                                               int64_t{4294967295},
                                               int64_t{4294967296},
                                               int64_t{1} << 53,
                                               (int64_t{1} << 53) + 1,
                                               int64_t{1} << 62,
                                               INT64_MAX,
                                               INT64_MIN,
                                               INT64_MIN + 1,
                                               uint64_t{1} << 63,
                                               UINT64_MAX,
                                               UINT64_MAX - 1,
                                               0.5,
                                               -0.0,
                                               2.7,
                                               1e-7,
                                               1e19,
                                               1e38,
                                               4e38,
                                               1e308,
                                               -1e308,
                                               5e-324,
                                               "@raw:NaN",
                                               "@raw:Infinity",
                                               "@raw:-Infinity",
                                               "@raw:1e400",
                                               "@raw:1e-400",
                                               "@raw:-0",
                                               "@raw:1.0",
                                               "@raw:123456789012345678901234567890",
                                               "nan",
                                               "inf",
                                               "-inf"};
    return kNumbers[below(kNumbers.size())];
  }

  std::string word() {
    static const std::vector<std::string> kWords = {"",
                                                    " ",
                                                    "a",
                                                    "nan",
                                                    "inf",
                                                    "-inf",
                                                    "true",
                                                    "null",
                                                    "0",
                                                    "../a",
                                                    "a/b",
                                                    "/",
                                                    ".",
                                                    "..",
                                                    ".a",
                                                    "a\nb",
                                                    "\r",
                                                    "\t",
                                                    "\x1b]0;x\x07\x1b[2J",
                                                    "\x7f",
                                                    "@raw:not-utf8",
                                                    "completed",
                                                    "truncated",
                                                    "FAILED",
                                                    "exception",
                                                    "F32",
                                                    "BF16",
                                                    "user",
                                                    "assistant",
                                                    "0123456789abcdef",
                                                    "zz",
                                                    "fF",
                                                    "\xef\xbf\xbd",
                                                    "\xf0\x9f\x98\x80"};
    if (below(12) == 0) return std::string(1 + below(5000), 'w');
    if (below(12) == 0) return std::string("a\0b", 3);
    return kWords[below(kWords.size())];
  }

  Json value() {
    switch (below(8)) {
      case 0: return nullptr;
      case 1: return below(2) == 0;
      case 2: return Json::array();
      case 3: return Json::object();
      case 4:
      case 5: return word();
      default: return number();
    }
  }

  void change_text(std::string& text) {
    switch (below(5)) {
      case 0: text = word(); break;
      case 1: text += word(); break;
      case 2: text.resize(text.size() / 2); break;
      case 3:
        if (!text.empty()) text[below(text.size())] = static_cast<char>(' ' + below(95));
        break;
      default:
        if (!text.empty() && text.size() < 4096) text += text;
    }
  }

  void change_number(Json& node) {
    if (node.is_number_integer() && below(2) == 0) {
      const uint64_t bits = node.get<uint64_t>(), one = below(3);
      node = below(4) == 0 ? Json(static_cast<int64_t>(0 - bits)) : Json(static_cast<int64_t>(bits + one - 1));
    } else {
      node = number();
    }
  }

  void change_list(Json& node) {
    auto& list = node.get_ref<Json::array_t&>();
    switch (list.empty() ? 0 : below(5)) {
      case 0: list.push_back(value()); break;
      case 1: list.erase(list.begin() + static_cast<std::ptrdiff_t>(below(list.size()))); break;
      case 2: std::swap(list[below(list.size())], list[below(list.size())]); break;
      case 3: list.resize(below(list.size())); break;
      default: {  // much of one thing
        const Json one = list[below(list.size())];
        const size_t count = one.is_structured() ? size_t{1} << below(5) : size_t{1} << below(11);
        list.insert(list.end(), count, one);
      }
    }
  }

  void change_object(Json& node, const std::vector<Json*>& nodes) {
    auto& members = node.get_ref<Json::object_t&>();
    if (members.empty()) {
      members.emplace_back(word(), value());
      return;
    }
    // Keys cannot be changed where they stand: a member is made anew, in a new object.
    const size_t index = below(members.size());
    const Json* other = nodes[below(nodes.size())];
    std::vector<std::pair<std::string, Json>> changed(members.begin(), members.end());
    auto& [key, held] = changed[index];
    switch (below(6)) {
      case 0: changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(index)); break;
      case 1: changed.emplace_back(key, below(2) == 0 ? held : value()); break;  // given twice
      case 2: change_text(key); break;
      case 3:
        if (other->is_object() && !other->empty()) key = other->begin().key();
        break;
      case 4: changed.emplace_back(word(), *other); break;
      default: std::swap(held, changed[below(changed.size())].second);
    }
    members.clear();
    for (auto& [name, value] : changed) members.emplace_back(std::move(name), std::move(value));
  }

  void change(Json& root) {
    std::vector<Json*> nodes;
    collect(root, nodes);
    Json& node = *nodes[below(nodes.size())];
    switch (below(12)) {
      case 0: node = value(); return;
      case 1: {  // moved about
        const Json copy = *nodes[below(nodes.size())];
        node = copy;
        return;
      }
      case 2: {  // nested
        for (size_t depth = below(6) == 0 ? 1 + below(140) : 1; depth > 0; --depth) {
          node = below(2) == 0 ? Json::array({node}) : Json{{word(), node}};
        }
        return;
      }
      default: break;
    }
    if (node.is_object()) return change_object(node, nodes);
    if (node.is_array()) return change_list(node);
    if (node.is_number()) return change_number(node);
    if (node.is_string()) return change_text(node.get_ref<std::string&>());
    node = value();
  }

  uint64_t state_;
};

// Mutates an input that is `num_prefix` bytes, which choose how it is read, and then JSON.
inline size_t mutate_json(uint8_t* data, size_t size, size_t max_size, unsigned seed, size_t num_prefix = 0) {
  JsonMutator mutator(seed);
  if (size <= num_prefix || mutator.below(8) == 0) return LLVMFuzzerMutate(data, size, max_size);
  if (num_prefix > 0 && mutator.below(8) == 0)
    data[mutator.below(num_prefix)] = static_cast<uint8_t>(mutator.below(256));
  const auto text = mutator.changed(text_of(data + num_prefix, size - num_prefix));
  if (!text || text->size() + num_prefix > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::copy(text->begin(), text->end(), data + num_prefix);
  return num_prefix + text->size();
}

// Does the same for a file with JSON on each line: one line is changed, doubled, dropped or cut.
inline size_t mutate_json_lines(uint8_t* data, size_t size, size_t max_size, unsigned seed, size_t num_prefix = 0) {
  JsonMutator mutator(seed);
  if (size <= num_prefix || mutator.below(8) == 0) return LLVMFuzzerMutate(data, size, max_size);
  if (num_prefix > 0 && mutator.below(8) == 0)
    data[mutator.below(num_prefix)] = static_cast<uint8_t>(mutator.below(256));
  std::string text(text_of(data + num_prefix, size - num_prefix));
  const size_t somewhere = mutator.below(text.size());
  const size_t before = somewhere == 0 ? std::string::npos : text.rfind('\n', somewhere - 1);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  const size_t length = std::min(text.find('\n', begin), text.size()) - begin;
  const std::string line = text.substr(begin, length);
  switch (mutator.below(10)) {
    case 0: text.insert(begin, line + "\n"); break;
    case 1: text.erase(begin, std::min(length + 1, text.size() - begin)); break;
    default: {
      const auto changed = mutator.changed(line);
      if (!changed) return LLVMFuzzerMutate(data, size, max_size);
      text.replace(begin, length, *changed);
    }
  }
  if (text.size() + num_prefix > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::copy(text.begin(), text.end(), data + num_prefix);
  return num_prefix + text.size();
}

}  // namespace tandem::fuzz
