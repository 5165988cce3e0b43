// data/prompts: every row becomes a record of the promised shape or is counted; a strict read accepts exactly the files
// in which a lenient one counts nothing. The first byte chooses prompts or SFT
// data, and which keys and labels are asked for.
#include "data/prompts.h"

#include <algorithm>
#include <optional>

#include "data/sft.h"
#include "tests/fuzz/json_mutator.h"

using namespace tandem::fuzz;
using tandem::base::Json;

namespace {

void require_messages(const Json& messages) {
  require(!messages.empty(), "a conversation has messages");
  for (const Json& message : messages) {
    require(message.is_object() && message.contains("role") && message["role"].is_string(), "a message has a role");
    const bool has_text = message.contains("content") && message["content"].is_string();
    require(has_text || message.contains("tool_calls"), "a message has text or calls");
  }
}

void require_prompt(const Json& prompt) {
  if (prompt.is_array()) return require_messages(prompt);
  require(prompt.is_string() && !prompt.get_ref<const std::string&>().empty(), "a prompt has text");
}

void require_record(const tandem::data::PromptRecord& record) {
  require_prompt(record.prompt);
  require(record.metadata.is_object(), "metadata is an object");
  require(record.tools.is_null() || record.tools.is_array(), "tools are a list or nothing");
}

void require_record(const tandem::data::SftRecord& record) {
  if (!record.messages.is_null()) {
    require_messages(record.messages);
    require(record.messages.back()["role"] == "assistant", "a conversation ends with an answer");
    require(!record.trained.empty() && record.trained.front() > 0, "something is trained, and after something");
    require(std::is_sorted(record.trained.begin(), record.trained.end()), "answers are in order");
    for (const size_t index : record.trained) {
      require(record.messages.at(index)["role"] == "assistant", "only answers are trained on");
    }
  } else {
    require(!record.prompt.empty(), "a prompt has text");
  }
  require(record.tools.is_null() || record.tools.is_array(), "tools are a list or nothing");
}

// Reads the file strictly and leniently.
template <typename Options, typename Read>
void check(Read read, Options options, std::string_view text) {
  using Data = decltype(read(options));
  const std::string path = options.path;
  const auto read_with = [&](bool skip_bad_lines) {
    options.skip_bad_lines = skip_bad_lines;
    return read(options);
  };
  const auto check_placed = [&](std::string_view message) {
    if (message.find("no record to work on") != std::string_view::npos) return require_message(message, path);
    require_placed_message(message, path);
  };
  std::optional<Data> strict, lenient;
  accepts([&] { strict = read_with(false); }, check_placed);
  accepts([&] { lenient = read_with(true); }, check_placed);
  require(strict.has_value() == (lenient && lenient->bad_lines.count == 0),
          "strict accepts what lenient counts as good");
  if (!lenient) return;
  const int64_t num_breaks = std::count(text.begin(), text.end(), '\n');
  const int64_t num_lines = num_breaks + (text.empty() || text.back() == '\n' ? 0 : 1);
  const auto num_records = static_cast<int64_t>(lenient->records.size());
  require(num_records + lenient->num_blank_lines + lenient->bad_lines.count == num_lines,
          "every line is accounted for");
  require(static_cast<int64_t>(lenient->bad_lines.messages.size()) == std::min<int64_t>(lenient->bad_lines.count, 10),
          "the first ten bad lines are told");
  for (const std::string& message : lenient->bad_lines.messages) require_placed_message(message, path);
  int64_t last_line = 0;
  for (const auto& record : lenient->records) {
    require(record.line > last_line && record.line <= num_lines, "records know their lines, in order");
    last_line = record.line;
    require_record(record);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const MemoryFile file;
  if (size == 0) return 0;
  const std::string_view text = text_of(data, size).substr(1);
  file.write(text);
  const int choice = data[0];
  if (choice % 2 == 0) {
    tandem::data::PromptOptions options{.path = file.path()};
    if ((choice & 2) != 0) options.label_needed_by = "--rm-type exact";
    if ((choice & 4) != 0) options.input_key = options.label_key = "a.b";
    check([](const auto& asked) { return tandem::data::read_prompts(asked); }, options, text);
  } else {
    tandem::data::SftOptions options{.path = file.path()};
    if ((choice & 2) != 0) options.prompt_key = options.response_key = "a.b";
    check([](const auto& asked) { return tandem::data::read_sft(asked); }, options, text);
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return mutate_json_lines(data, size, max_size, seed, /*num_prefix=*/1);
}
