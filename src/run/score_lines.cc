#include "run/score_lines.h"

#include <fmt/format.h>

#include <exception>

#include "base/check.h"
#include "base/message_text.h"
#include "data/messages.h"

namespace tandem::run {

namespace {

std::vector<int32_t> token_list(const base::Json& value, const std::string& place, int64_t vocab) {
  TANDEM_USER_CHECK(value.is_array(), fmt::format("{}: tokens is not a list of token ids", place));
  std::vector<int32_t> tokens;
  tokens.reserve(value.size());
  for (const base::Json& id : value) {
    TANDEM_USER_CHECK(id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < vocab,
                      fmt::format("{}: {} is no token id of this model; ids are 0 to {}", place,
                                  base::one_line(base::dump_json(id)), vocab - 1));
    tokens.push_back(id.get<int32_t>());
  }
  return tokens;
}

}  // namespace

std::vector<ScoreLine> read_score_lines(const std::string& path, const data::OpenTable& open_parquet,
                                        const std::string& tool_key) {
  std::vector<ScoreLine> lines;
  std::exception_ptr refusal;  // of the first wrong line: no flag leaves it out
  const auto read = [&](const data::Place& place) {
    if (refusal) return;
    try {
      lines.push_back(
          {place.file, place.line, fmt::format("{}:{}", place.file, place.line), data::parse_object(place)});
    } catch (const UserError&) {
      refusal = std::current_exception();
    }
  };
  const data::LeftOut left_out = data::for_each_row(path, {"tokens", "prompt_length", "prompt", "response", tool_key},
                                                    /*skip_bad_lines=*/true, open_parquet, read);
  if (refusal) std::rethrow_exception(refusal);
  if (left_out.bad_lines.count > 0) throw UserError(left_out.bad_lines.messages.front());
  return lines;
}

rl::Sample token_sample(const ScoreLine& line, int64_t vocab) {
  const std::vector<int32_t> tokens = token_list(line.record.at("tokens"), line.place, vocab);
  int64_t prompt_length = 1;
  if (const base::Json* const given = data::find_present(line.record, "prompt_length")) {
    TANDEM_USER_CHECK(given->is_number_integer(), fmt::format("{}: prompt_length is not a whole number", line.place));
    prompt_length = given->get<int64_t>();
  }
  const auto length = static_cast<int64_t>(tokens.size());
  TANDEM_USER_CHECK(prompt_length >= 1 && prompt_length < length,
                    fmt::format("{}: prompt_length {} of {} tokens; at least one token comes before and one after it",
                                line.place, prompt_length, length));
  rl::Sample sample;
  sample.prompt = rl::make_prompt({tokens.begin(), tokens.begin() + prompt_length});
  sample.completion.assign(tokens.begin() + prompt_length, tokens.end());
  return sample;
}

base::Json prompt_of(const ScoreLine& line) {
  if (!line.record.contains("prompt") || !line.record.at("prompt").is_array()) return text_of(line, "prompt");
  return data::read_messages(line.record.at("prompt"), "prompt", line.at());
}

base::Json tools_of(const ScoreLine& line, const std::string& key) {
  return data::read_tools(line.record, key, line.at());
}

const std::string& text_of(const ScoreLine& line, const char* key) {
  TANDEM_USER_CHECK(line.record.contains(key) && line.record.at(key).is_string(),
                    fmt::format("{}: has no text under \"{}\": {}; give tokens, or prompt and response", line.place,
                                key, data::keys_text(line.record)));
  return line.record.at(key).get_ref<const std::string&>();
}

}  // namespace tandem::run
