#include "session/answer_end.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/log.h"
#include "session/conversations.h"

namespace tandem::session {

std::string why_answers_run_on(const config::DataOptions& data, const config::RolloutOptions& rollout,
                               const model::ModelConfig& model, text::TextWorker& text) {
  if (rollout.ignore_eos) return "";
  std::string behind = text_behind_answer(data, text);
  const auto is_met = [&behind](const std::string& stop) { return behind.find(stop) != std::string::npos; };
  if (std::ranges::any_of(rollout.stop, is_met)) return "";
  behind.erase(0, behind.find_first_not_of(" \t\r\n"));  // the whole of it if it is all white space
  const std::vector<int32_t> tokens = text.encode({behind}).front();
  if (tokens.empty() || !text.is_special(tokens.front())) return "";
  const auto stops = [&](int32_t token) {
    return std::ranges::find(model.eos_token_ids, token) != model.eos_token_ids.end() ||
           std::ranges::find(rollout.stop_token_ids, token) != rollout.stop_token_ids.end();
  };
  if (std::ranges::any_of(tokens, stops)) return "";
  return fmt::format(
      "the chat template ends an answer with {} (token {}), at which sampling does not stop: eos_token_id of "
      "config.json and generation_config.json is {}, so completions run on to their length limit; give "
      "--rollout-stop-token-ids {}",
      text.decode({{tokens.front()}}, false).front(), tokens.front(), fmt::join(model.eos_token_ids, ", "),
      tokens.front());
}

void warn_where_answers_run_on(const config::DataOptions& data, const config::RolloutOptions& rollout,
                               const model::ModelConfig& model, text::TextWorker& text) {
  if (const std::string why = why_answers_run_on(data, rollout, model, text); !why.empty()) {
    base::log_warning("{}", why);
  }
}

}  // namespace tandem::session
