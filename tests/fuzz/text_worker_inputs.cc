// Odd input through one live text worker: texts of all of Unicode, conversations of every shape, template arguments of
// great depth, ids that no token has.
//
//   fuzz_text_worker [--runs N] [--seed S]
//
// Each call is answered or refused with a UserError of one line, in bounded time. The same process serves all of them:
// it neither dies nor grows, and what it knows stays what it was.
#include <chrono>
#include <cinttypes>
#include <cstring>
#include <fstream>
#include <random>

#include "base/json.h"
#include "tests/fuzz/target.h"
#include "text/text_worker.h"

namespace {

using namespace tandem::fuzz;
using tandem::base::Json;
using tandem::text::TextWorker;

constexpr double kMaxCallSeconds = 20;  // the deadline of a call is 60; sanitized builds on a busy machine are slow
constexpr int64_t kMaxGrowthBytes = int64_t{64} << 20;

class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}

  size_t below(size_t bound) { return std::uniform_int_distribution<size_t>(0, bound - 1)(engine_); }
  template <typename List>
  const auto& one_of(const List& list) {
    return list[below(list.size())];
  }

  // UTF-8 but for one in two hundred; mostly short, at times long.
  std::string text() {
    std::string text;
    const size_t num_pieces = below(200) == 0 ? 2000 : below(12);
    for (size_t i = 0; i < num_pieces; ++i) append_piece(text);
    if (below(200) == 0) text.insert(below(text.size() + 1), 1, static_cast<char>(0x80 + below(128)));
    return text;
  }

  // JSON text of a value, of at most `depth` levels.
  std::string json(size_t depth) {
    switch (below(depth == 0 ? 5 : 8)) {
      case 0: return "null";
      case 1: return below(2) == 0 ? "true" : "false";
      case 2: return one_of(kNumbers);
      case 3:
      case 4: return Json(valid_text()).dump();
      case 5: return nest("[", "]", depth);
      case 6: return nest("{\"a\":", "}", depth);
      default: {
        std::string object = "{";
        for (size_t i = below(4); i > 0; --i) {
          object +=
              Json(below(2) == 0 ? one_of(kKeys) : valid_text() + std::to_string(i)).dump() + ":" + json(depth / 4);
          if (i > 1) object += ",";
        }
        return object + "}";
      }
    }
  }

  std::string conversation() {
    if (below(20) == 0) return json(100);
    std::string list = "[";
    for (size_t i = below(20) == 0 ? 0 : 1 + below(4); i > 0; --i) list += message() + (i > 1 ? "," : "");
    return list + "]";
  }

  std::string kwargs() {
    switch (below(8)) {
      case 0: return "{}";
      case 1:
      case 2: return R"({"add_generation_prompt": true})";
      case 3: return R"({"enable_thinking": )" + json(10) + "}";
      case 4: return R"({"tools": [{"type": "function", "function": )" + json(100) + "}]}";
      case 5: return R"({"tools": )" + json(110) + "}";
      default: return "{" + Json(one_of(kKeys)).dump() + ": " + json(110) + "}";
    }
  }

 private:
  void append_piece(std::string& text) {
    switch (below(8)) {
      case 0: text += one_of(kPieces); break;
      case 1: text.append(1 + below(40), static_cast<char>(below(128))); break;
      case 2: append_code_point(text, 0x300 + below(0x70)); break;  // marks that join what is before
      case 3: append_code_point(text, 0x1F300 + below(0x500)); break;
      case 4: append_code_point(text, below(0x3000)); break;
      default: append_code_point(text, below(0x110000)); break;
    }
  }

  static void append_code_point(std::string& text, uint64_t code) {
    if (code >= 0xD800 && code < 0xE000) code = 0xFFFD;  // surrogates have no UTF-8
    const auto byte = [&](uint64_t bits) { text += static_cast<char>(bits); };
    if (code < 0x80) return byte(code);
    if (code < 0x800) {
      byte(0xC0 | (code >> 6));
    } else {
      if (code < 0x10000) {
        byte(0xE0 | (code >> 12));
      } else {
        byte(0xF0 | (code >> 18));
        byte(0x80 | ((code >> 12) & 0x3F));
      }
      byte(0x80 | ((code >> 6) & 0x3F));
    }
    byte(0x80 | (code & 0x3F));
  }

  std::string valid_text() {
    std::string text;
    for (size_t i = below(6); i > 0; --i) append_piece(text);
    return text;
  }

  std::string nest(const std::string& open, const std::string& close, size_t depth) {
    std::string begin, end;
    for (size_t i = 1 + below(depth); i > 0; --i) {
      begin += open;
      end += close;
    }
    return begin + one_of(kNumbers) + end;
  }

  std::string tool_calls() {
    if (below(4) == 0) return json(20);
    return R"([{"type": "function", "function": {"name": "f", "arguments": )" + json(60) + "}}]";
  }

  std::string role() {
    if (below(40) == 0) return json(3);
    return Json(below(20) == 0 ? one_of(kOddRoles) : one_of(kRoles)).dump();
  }

  // Mostly of the shape that data files may have, so that templates get far.
  std::string message() {
    if (below(40) == 0) return json(20);
    std::string text = R"({"role": )" + role();
    if (below(20) != 0) text += R"(, "content": )" + (below(20) == 0 ? json(20) : Json(valid_text()).dump());
    if (below(6) == 0) text += R"(, "tool_calls": )" + tool_calls();
    if (below(8) == 0) text += R"(, "reasoning_content": )" + (below(2) == 0 ? json(5) : Json(valid_text()).dump());
    return text + "}";
  }

  static inline const std::vector<std::string> kPieces = {"<|im_start|>",
                                                          "<|im_end|>",
                                                          "<|im_",
                                                          "|>",
                                                          "<think>",
                                                          "</think>",
                                                          "<tool_call>",
                                                          "\n\n",
                                                          "  ",
                                                          "\r\n",
                                                          "\t",
                                                          "{{ 1 }}",
                                                          "{% raise %}",
                                                          "{#",
                                                          "\\u0000",
                                                          "\xEF\xBB\xBF",
                                                          "\xE2\x80\x8B",
                                                          "\xE2\x80\xAE",
                                                          "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x9A\x80",
                                                          "and the",
                                                          "0123456789",
                                                          "\xEF\xBF\xBD",
                                                          "\xEF\xBF\xBF",
                                                          "'s",
                                                          "\xC2\xA0",
                                                          "\xE4\xB8\xAD\xE6\x96\x87",
                                                          "a\xCC\x8A",
                                                          "\xC3\xA5"};
  static inline const std::vector<std::string> kNumbers = {
      "0", "-1", "1.5", "1e300", "18446744073709551615", "-9223372036854775808", "null", "\"x\"", "[]", "{}"};
  static inline const std::vector<std::string> kKeys = {"messages",
                                                        "tools",
                                                        "documents",
                                                        "add_generation_prompt",
                                                        "raise_exception",
                                                        "namespace",
                                                        "range",
                                                        "loop",
                                                        "self",
                                                        "__class__",
                                                        "bos_token",
                                                        "eos_token",
                                                        "content",
                                                        "role",
                                                        "strftime_now",
                                                        "a",
                                                        ""};
  // The template knows the first four.
  static inline const std::vector<std::string> kRoles = {"system", "user", "assistant", "tool"};
  static inline const std::vector<std::string> kOddRoles = {"", "developer", "User", "user\n"};

  std::mt19937_64 engine_;
};

struct Count {
  int64_t answered = 0, refused = 0, not_parsed = 0;
};

int64_t resident_bytes(int64_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/statm");
  int64_t total_pages = 0, resident_pages = 0;
  in >> total_pages >> resident_pages;
  require(in.good(), "the worker lives");
  return resident_pages * ::sysconf(_SC_PAGESIZE);
}

template <typename Call>
void attempt(Call call, Count& count) {
  const bool answered = accepts(call, [](std::string_view message) { require_message(message, ""); });
  (answered ? count.answered : count.refused) += 1;
}

void encode_texts(TextWorker& worker, Draw& draw, Count& count) {
  std::vector<std::string> texts;
  for (size_t i = draw.below(4); i > 0; --i) texts.push_back(draw.text());
  attempt(
      [&] {
        const auto ids = worker.encode(texts);
        require(ids.size() == texts.size(), "a list of ids for each text");
        for (const auto& list : ids) {
          for (const int32_t id : list) require(id >= 0 && id < worker.vocab_size(), "ids are in the vocabulary");
        }
        // Text may be normalised on its way in; after that it is what its ids say.
        const std::vector<std::string> said = worker.decode(ids, false);
        require(worker.decode(worker.encode(said), false) == said, "text is what its ids say");
      },
      count);
}

void decode_ids(TextWorker& worker, Draw& draw, Count& count) {
  std::vector<std::vector<int32_t>> ids(draw.below(4));
  for (auto& list : ids) {
    list.resize(draw.below(60));
    for (int32_t& id : list) {
      id = static_cast<int32_t>(draw.below(20) == 0 ? draw.below(size_t{1} << 31) : draw.below(500));
    }
  }
  const bool skip = draw.below(2) == 0;
  attempt([&] { require(worker.decode(ids, skip).size() == ids.size(), "a text for each list of ids"); }, count);
}

void render_conversations(TextWorker& worker, Draw& draw, Count& count) {
  std::vector<Json> conversations;
  Json kwargs;
  const bool parsed = accepts(
      [&] {
        for (size_t i = 1 + draw.below(2); i > 0; --i) {
          conversations.push_back(tandem::base::parse_json(draw.conversation(), "line"));
        }
        kwargs = tandem::base::parse_json(draw.kwargs(), "kwargs");
      },
      [](std::string_view message) { require_message(message, ""); });
  if (!parsed) {
    count.not_parsed += 1;
    return;
  }
  attempt(
      [&] {
        require(worker.apply_chat_template(conversations, kwargs).size() == conversations.size(),
                "a text for each conversation");
      },
      count);
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t num_runs = 2000, seed = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    (std::strcmp(argv[i], "--runs") == 0 ? num_runs : seed) = std::strtoull(argv[i + 1], nullptr, 10);
  }
  std::printf("%" PRIu64 " calls of --seed %" PRIu64 "\n", num_runs, seed);
  Draw draw(seed);
  TextWorker worker(tandem::worker::default_worker_config(), "tests/golden/tokenizer_small");
  const std::vector<std::string> sample = {"How many crates are twelve and seven?\n \xE4\xB8\xAD<|im_end|>"};
  const auto sample_ids = worker.encode(sample);
  const int64_t pid = worker.process_id();
  int64_t settled_bytes = 0;
  Count encoded, decoded, rendered;
  for (uint64_t i = 0; i < num_runs; ++i) {
    const auto start = std::chrono::steady_clock::now();
    switch (draw.below(4)) {
      case 0: encode_texts(worker, draw, encoded); break;
      case 1: decode_ids(worker, draw, decoded); break;
      default: render_conversations(worker, draw, rendered); break;
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    const std::string where = "call " + std::to_string(i) + " of seed " + std::to_string(seed);
    require(taken.count() < kMaxCallSeconds, "a call takes bounded time", where);
    require(worker.process_id() == pid && worker.restarts() == 0, "one process serves all calls", where);
    if (i % 1000 == 999) require(worker.encode(sample) == sample_ids, "the tokenizer stays what it was", where);
    if (i == num_runs / 4) settled_bytes = resident_bytes(pid);
  }
  const int64_t growth_bytes = resident_bytes(pid) - settled_bytes;
  require(growth_bytes < kMaxGrowthBytes, "the worker does not grow", std::to_string(growth_bytes));
  for (const auto& [name, count] : {std::pair{"encode", encoded}, {"decode", decoded}, {"template", rendered}}) {
    std::printf("%-9s answered %" PRId64 ", refused %" PRId64 ", no JSON by our rules %" PRId64 "\n", name,
                count.answered, count.refused, count.not_parsed);
  }
  std::printf("all promises held; the worker grew by %" PRId64 " kB after the first quarter\n", growth_bytes / 1024);
  return 0;
}
